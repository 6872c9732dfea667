//! `max_share` and `on_expiry`: what reservations may hold (B-SHARE, B-EXPIRE).

use palisade_core::limit::{Algorithm, BucketSpec};
use palisade_core::policy::{Accuracy, LimitDef, OnExpiry};

use super::Checker;
use crate::document::error::Sink;
use crate::document::tree::{Node, member_origin};
use crate::policy::tables::LimitTable;

/// Refuses holds that outlive a charge: a place may be held for longer than a limit in a unit of the
/// policy's own counts what was reserved with it (B-BOUND).
pub(super) fn outlived_windows(limits: &[(LimitDef, &Node)], sink: &mut Sink) {
    for (slots, item) in limits.iter().filter(|(limit, _)| limit.concurrency) {
        let hold_us = slots.spec.window_us();
        let outlived = limits.iter().find(|(limit, _)| {
            let counts_unit = limit.unit.is_named() && limit.descriptor.is_none();
            counts_unit && meet(limit, slots) && limit.spec.window_us() < hold_us
        });
        if let Some((limit, _)) = outlived {
            let message = format!("`limit.hold` is longer than the window of `{}`", limit.name);
            let hint = "lower it: holders extend their places while they work";
            sink.report_with(&member_origin(item, "hold"), message, hint);
        }
    }
}

/// Whether one request can meet both limits.
fn meet(one: &LimitDef, other: &LimitDef) -> bool {
    let overlap = |a: &[String], b: &[String]| {
        a.is_empty() || b.is_empty() || a.iter().any(|name| b.contains(name))
    };
    overlap(&one.classes, &other.classes) && overlap(&one.operations, &other.operations)
}

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
