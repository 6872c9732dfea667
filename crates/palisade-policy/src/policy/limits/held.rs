//! `max_share` and `on_expiry`: what reservations may hold (B-SHARE, B-EXPIRE).

use palisade_core::limit::{Algorithm, BucketSpec};
use palisade_core::policy::{Accuracy, OnExpiry};

use super::Checker;
use crate::policy::tables::LimitTable;

impl Checker<'_> {
    /// Refuses both keys where no reservation holds anything, and where it is not known exactly.
    pub(super) fn held(&mut self, table: &LimitTable) {
        let keys = [
            ("max_share", table.max_share.is_some()),
            ("on_expiry", table.on_expiry == OnExpiry::Release),
        ];
        let others = [
            ("concurrency", table.concurrency.is_some()),
            ("unlimited", table.unlimited),
            ("throttle", table.throttle),
            ("domain", table.domain.is_some()),
        ];
        for (key, _) in keys.into_iter().filter(|(_, is_set)| *is_set) {
            for (other, _) in others.into_iter().filter(|(_, is_set)| *is_set) {
                let problem = format!("and `{other}` exclude each other");
                self.refuse(key, &problem, "leave one of them out");
            }
            if table.accuracy != Accuracy::Exact {
                let problem = format!("must be `exact` beside `{key}`");
                let hint = "leave it out: what is held is counted over all nodes";
                self.refuse("accuracy", &problem, hint);
            }
        }
    }

    /// Refuses to give back at the end of reservations where the bucket keeps no charge by itself.
    pub(super) fn released(&mut self, table: &LimitTable, spec: &BucketSpec) {
        let has_hits = matches!(
            spec.algorithm(),
            Algorithm::SlidingLog | Algorithm::SlidingWheel
        );
        if table.on_expiry == OnExpiry::Release && !has_hits {
            let problem = "cannot be `release` on a token bucket or a fixed window";
            let hint = "use a rolling window, such as `30d` instead of `month`";
            self.refuse("on_expiry", problem, hint);
        }
    }
}
