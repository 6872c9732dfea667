//! Challenges by kind, flow and step. Few requests meet one, so that a lock costs nothing.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::cells::LabelCount;
use crate::engine::ChallengeEvent;

/// Counts by the names of kind, flow and step, each of which has a few values.
#[derive(Debug, Default)]
pub(super) struct Challenges(Mutex<BTreeMap<[&'static str; 3], u64>>);

impl Challenges {
    pub(super) fn saw(&self, event: &ChallengeEvent) {
        let labels = [event.kind.name(), event.flow.name(), event.step.name()];
        *self.0.lock().entry(labels).or_default() += 1;
    }

    pub(super) fn read(&self) -> Vec<LabelCount<3>> {
        let counted = |(labels, count): (&[&'static str; 3], &u64)| LabelCount {
            labels: labels.map(str::to_owned),
            count: *count,
        };
        self.0.lock().iter().map(counted).collect()
    }
}
