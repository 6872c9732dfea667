//! State and failures of the application's instances behind the proxy. Only changes and failures
//! are counted, so that answers of healthy instances cost nothing.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::cells::LabelCount;
use crate::engine::InstanceFailure;

/// Instances by address, as many as are configured.
#[derive(Debug, Default)]
pub(super) struct Instances(Mutex<BTreeMap<Box<str>, Instance>>);

#[derive(Debug, Default)]
struct Instance {
    is_up: bool,
    failures: BTreeMap<InstanceFailure, u64>,
}

impl Instances {
    pub(super) fn saw(&self, address: &str, failure: Option<InstanceFailure>) {
        let mut all = self.0.lock();
        let instance = all.entry(address.into()).or_default();
        match failure {
            None => instance.is_up = true,
            Some(why) => {
                *instance.failures.entry(why).or_default() += 1;
                instance.is_up &= why == InstanceFailure::Late;
            }
        }
    }

    pub(super) fn up(&self) -> Vec<(String, u64)> {
        let all = self.0.lock();
        all.iter()
            .map(|(address, instance)| (address.to_string(), u64::from(instance.is_up)))
            .collect()
    }

    pub(super) fn failures(&self) -> Vec<LabelCount<2>> {
        let mut counted = Vec::new();
        for (address, instance) in self.0.lock().iter() {
            for (why, count) in &instance.failures {
                counted.push(LabelCount {
                    labels: [address.to_string(), why.name().to_owned()],
                    count: *count,
                });
            }
        }
        counted
    }
}
