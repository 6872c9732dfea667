//! Denials that are known until a time: a bucket that the store found exhausted is
//! denied here until then, without asking again.
//!
//! Only waits are kept, measured on this node's own clock from the moment the
//! store was asked: clocks that differ change nothing, and a denial is never held
//! longer than the store said.

use hashbrown::HashMap;
use palisade_core::Digest;
use palisade_core::limit::Reading;
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::time::Micros;
use palisade_store::Charged;
use parking_lot::Mutex;

/// Most denials that are remembered.
const DENIALS_MAX: usize = 100_000;

#[derive(Default)]
pub(super) struct Denials {
    known: Mutex<HashMap<Digest, Denial>>,
}

#[derive(Clone, Copy)]
struct Denial {
    cost: u32,
    until: Micros,
    reading: Reading,
    /// The store's clock minus this node's, to give readings in the store's time.
    ahead_us: i64,
}

impl Denials {
    /// The readings of a plan that is known to be denied: only the bucket that
    /// denies is known, so only it is reported.
    pub(super) fn find<'c, 'p>(
        &self,
        charges: &'c [Charge<'p>],
        now: Micros,
    ) -> Option<(&'c Charge<'p>, Reading, Micros)> {
        let known = self.known.lock();
        if known.is_empty() {
            return None;
        }
        charges.iter().find_map(|charge| {
            let denial = known.get(&charge.memo())?;
            let holds = denial.until > now
                && charge.cost >= denial.cost
                && charge.on_exceed == OnExceed::Deny;
            let store_now = Micros(now.0.saturating_add_signed(denial.ahead_us));
            holds.then_some((charge, denial.reading, store_now))
        })
    }

    /// Remembers what the store denied when it was asked at `asked`.
    pub(super) fn learn(&self, charges: &[Charge<'_>], charged: &Charged, asked: Micros) {
        if charged.admitted {
            return;
        }
        let mut known = self.known.lock();
        if known.len() >= DENIALS_MAX {
            known.retain(|_, denial| denial.until > asked);
        }
        let ahead_us = i64::try_from(i128::from(charged.now.0) - i128::from(asked.0)).unwrap_or(0);
        for (charge, reading) in charges.iter().zip(&charged.readings) {
            let Some(retry_at) = reading.retry_at else {
                continue;
            };
            if charge.on_exceed == OnExceed::Deny && known.len() < DENIALS_MAX {
                let denial = Denial {
                    cost: charge.cost,
                    until: asked.plus(retry_at.since(charged.now)),
                    reading: *reading,
                    ahead_us,
                };
                known.insert(charge.memo(), denial);
            }
        }
    }

    /// Denials that are remembered.
    pub(super) fn len(&self) -> usize {
        self.known.lock().len()
    }

    /// Forgets everything, after a reset, a refund or a change of policy.
    pub(super) fn clear(&self) {
        self.known.lock().clear();
    }
}
