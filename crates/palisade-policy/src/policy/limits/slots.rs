//! `concurrency` and `hold`: limits on what is in progress (B-SLOT).

use std::num::NonZeroU32;
use std::time::Duration;

use palisade_core::limit::{Algorithm, BucketSpec, Window};
use palisade_core::policy::{Accuracy, Dimension, LimitDef, QuotaUnit, Standing};

use super::{Checker, define};
use crate::policy::tables::LimitTable;

/// Most places of a bucket: each is an instant in it.
const CONCURRENCY_MAX: u32 = 1_000;
/// Shortest and longest hold.
const HOLD_MIN: Duration = Duration::from_secs(1);
const HOLD_MAX: Duration = Duration::from_secs(3_600);

impl Checker<'_> {
    /// The limit of so many places. A place is a hit of a sliding log whose window is the
    /// hold: it is free again when it is given back, or when the window has passed.
    pub(super) fn slots(mut self, table: LimitTable, by: Vec<Dimension>) -> Option<LimitDef> {
        self.excluded(&table);
        let count = self.count(&table);
        let hold = self.hold(&table);
        let (count, hold) = (count?, hold?);
        let window = Window::Span(u64::try_from(hold.as_micros()).ok()?);
        let spec = BucketSpec::new(Algorithm::SlidingLog, count, window, None).ok()?;
        let slots = LimitDef {
            concurrency: true,
            ..define(table, by, spec, Standing::Counted)
        };
        Some(slots)
    }

    fn count(&mut self, table: &LimitTable) -> Option<NonZeroU32> {
        let Some(count) = table.concurrency else {
            self.refuse("hold", "needs `concurrency`", "add `concurrency = …`");
            return None;
        };
        if count.get() > CONCURRENCY_MAX {
            let problem = format!("must be 1 to {CONCURRENCY_MAX}");
            self.refuse("concurrency", &problem, "count rates instead, with `rate`");
            return None;
        }
        Some(count)
    }

    fn hold(&mut self, table: &LimitTable) -> Option<Duration> {
        let Some(hold) = table.hold else {
            let hint = "add `hold = \"30s\"`: so long after its last sign a place is free again";
            self.refuse("concurrency", "needs `hold`", hint);
            return None;
        };
        if !(HOLD_MIN..=HOLD_MAX).contains(&hold) {
            let hint = "holders extend it while they work";
            self.refuse("hold", "must be 1s to 1h", hint);
            return None;
        }
        Some(hold)
    }

    /// Keys that say how a rate is counted.
    fn excluded(&mut self, table: &LimitTable) {
        let set = [
            ("rate", table.rate.is_some()),
            ("algorithm", table.algorithm.is_some()),
            ("burst", table.burst.is_some()),
            ("cost", table.cost != NonZeroU32::MIN),
            ("family", table.family.is_some()),
            ("throttle", table.throttle),
            ("domain", table.domain.is_some()),
            ("unlimited", table.unlimited),
            ("unit", table.unit != QuotaUnit::Requests),
        ];
        for (key, _) in set.into_iter().filter(|(_, is_set)| *is_set) {
            let problem = "and `concurrency` exclude each other";
            self.refuse(key, problem, "write a second `[[limit]]`");
        }
        if table.accuracy == Accuracy::Leased {
            let hint = "use `exact` or `local`: a place cannot be taken ahead";
            self.refuse(
                "accuracy",
                "must not be `leased` beside `concurrency`",
                hint,
            );
        }
    }
}
