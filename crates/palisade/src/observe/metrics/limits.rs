//! The time at which a request last met each limit of the policy. A limit that no request meets
//! protects nothing, which an operator should notice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use hashbrown::HashMap;
use palisade_core::decision::LimitReading;
use palisade_core::policy::PolicySet;
use palisade_core::time::{Micros, SECOND};

/// The limits of the policy in force, each with an instant in seconds. Readers find a limit without
/// a lock; the map is replaced with the policy and never grows otherwise.
#[derive(Debug, Default)]
pub(super) struct Limits(ArcSwap<HashMap<Arc<str>, AtomicU64>>);

impl Limits {
    /// Takes over the limits of a policy; a new limit starts with `now`.
    pub(super) fn learn(&self, policy: &PolicySet, now: Micros) {
        let known = self.0.load();
        let since = |name: &str| {
            let before = known.get(name).map(|at| at.load(Ordering::Relaxed));
            AtomicU64::new(before.unwrap_or(now.0 / SECOND))
        };
        let limits = policy.limits().iter();
        let all = limits.map(|limit| (Arc::clone(&limit.name), since(&limit.name)));
        self.0.store(Arc::new(all.collect()));
    }

    pub(super) fn saw(&self, met: &[LimitReading], at: Micros) {
        let known = self.0.load();
        let second = at.0 / SECOND;
        for reading in met {
            // Usually nothing is written, so the cache line stays shared between cores.
            if let Some(last) = known.get(&reading.name)
                && last.load(Ordering::Relaxed) < second
            {
                last.store(second, Ordering::Relaxed);
            }
        }
    }

    /// Returns every limit with its instant, by name.
    pub(super) fn read(&self) -> Vec<(String, u64)> {
        let known = self.0.load();
        let all = known.iter();
        let mut all: Vec<(String, u64)> = all
            .map(|(name, at)| (name.to_string(), at.load(Ordering::Relaxed)))
            .collect();
        all.sort_unstable();
        all
    }
}
