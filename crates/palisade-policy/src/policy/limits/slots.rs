//! `concurrency` and `hold`: limits on what is in progress (B-SLOT).

use std::num::NonZeroU32;
use std::time::Duration;

use palisade_core::limit::{Algorithm, BucketSpec, Window};
use palisade_core::policy::{Accuracy, Dimension, LimitDef, QuotaUnit, SlotQueue, Standing};

use super::{Checker, define};
use crate::policy::tables::LimitTable;

/// Most slots of a limit: each is an instant in its bucket.
const CONCURRENCY_MAX: u32 = 1_000;
/// Most callers that wait for a bucket on a node.
const QUEUE_MAX: u16 = 1_000;
/// Shortest and longest wait.
const WAIT_MIN: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Shortest and longest hold.
const HOLD_MIN: Duration = Duration::from_secs(1);
const HOLD_MAX: Duration = Duration::from_secs(3_600);

impl Checker<'_> {
    /// The limit with this many slots. A slot is a hit of a sliding log whose window is the hold:
    /// it is free again when it is given back, or when the window has passed.
    pub(super) fn slots(&mut self, table: LimitTable, by: Vec<Dimension>) -> Option<LimitDef> {
        self.excluded(&table);
        let count = self.count(&table);
        let hold = self.hold(&table);
        let queue = self.queue(&table);
        let (count, hold, queue) = (count?, hold?, queue?);
        let window = Window::Span(u64::try_from(hold.as_micros()).ok()?);
        let spec = BucketSpec::new(Algorithm::SlidingLog, count, window, None).ok()?;
        let slots = LimitDef {
            concurrency: true,
            queue,
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

    /// Who waits for a slot, if the limit has a queue; `None` if its keys are not valid.
    #[expect(
        clippy::option_option,
        reason = "a queue that is wrong is not one that is absent"
    )]
    fn queue(&mut self, table: &LimitTable) -> Option<Option<SlotQueue>> {
        let (most, wait) = match (table.queue, table.wait) {
            (None, None) => return Some(None),
            (Some(most), Some(wait)) => (most, wait),
            (Some(_), None) => {
                self.refuse("queue", "needs `wait`", "add `wait = \"2s\"`");
                return None;
            }
            (None, Some(_)) => {
                self.refuse("wait", "needs `queue`", "add `queue = 10`");
                return None;
            }
        };
        if !(WAIT_MIN..=WAIT_MAX).contains(&wait) {
            let hint = "whoever waits longer had better come again later";
            self.refuse("wait", "must be 100ms to 30s", hint);
            return None;
        }
        let most = u16::try_from(most.get()).ok();
        let Some(most) = most.filter(|most| *most <= QUEUE_MAX) else {
            let problem = format!("must be 1 to {QUEUE_MAX}");
            self.refuse(
                "queue",
                &problem,
                "a node keeps no more callers waiting in all",
            );
            return None;
        };
        let wait_us = u64::try_from(wait.as_micros()).ok()?;
        Some(Some(SlotQueue { most, wait_us }))
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
