//! Verdicts of each limit of Envoy domains. The names in labels are the policy's own.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use palisade_core::policy::PolicySet;

use super::cells::LabelCount;
use crate::engine::{DescriptorStatus, DescriptorVerdict};

/// Label of descriptors that no limit matches (R-DOMAIN).
const NONE: &str = "none";

const RESULTS: [(DescriptorVerdict, &str); 4] = [
    (DescriptorVerdict::Admitted, "ok"),
    (DescriptorVerdict::Denied, "over_limit"),
    (DescriptorVerdict::WouldDeny, "shadow_over_limit"),
    (DescriptorVerdict::NotRefunded, "not_refunded"),
];

type Results = Arc<[AtomicU64; RESULTS.len()]>;

/// Verdicts by limit, one entry per limit of the policy in force, and those of no limit.
#[derive(Debug, Default)]
pub(super) struct Descriptors {
    known: ArcSwap<HashMap<Arc<str>, Results>>,
    unmatched: AtomicU64,
}

impl Descriptors {
    /// Gives the limits of a policy labels of their own; limits that it no longer has are dropped.
    pub(super) fn learn(&self, policy: &PolicySet) {
        let before = self.known.load();
        let limits = policy.limits().iter().filter(|l| !l.is_of_requests());
        let kept = |name: &Arc<str>| before.get(name).map(Arc::clone).unwrap_or_default();
        let known = limits.map(|limit| (Arc::clone(&limit.name), kept(&limit.name)));
        self.known.store(Arc::new(known.collect()));
    }

    pub(super) fn count(&self, statuses: &[DescriptorStatus]) {
        let known = self.known.load();
        for status in statuses {
            let Some(limit) = &status.limit else {
                self.unmatched.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            let result = RESULTS.iter().position(|(one, _)| *one == status.verdict);
            let cells = known.get(limit);
            if let Some(cell) = cells.zip(result).and_then(|(cells, at)| cells.get(at)) {
                cell.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn read(&self) -> Vec<LabelCount<2>> {
        let counted = |limit: &str, result: &str, cell: &AtomicU64| LabelCount {
            labels: [limit.to_owned(), result.to_owned()],
            count: cell.load(Ordering::Relaxed),
        };
        let known = self.known.load();
        let mut limits: Vec<_> = known.iter().collect();
        limits.sort_by_key(|(name, _)| Arc::clone(name));
        let of_limits = limits.iter().flat_map(|(name, cells)| {
            let named = RESULTS.iter().zip(cells.iter());
            named.map(|((_, result), cell)| counted(name, result, cell))
        });
        let unmatched = counted(NONE, RESULTS[0].1, &self.unmatched);
        of_limits
            .chain([unmatched])
            .filter(|one| one.count > 0)
            .collect()
    }
}
