//! Denials that are known until a time: a bucket that the store found exhausted is
//! denied here until then, without asking again.
//!
//! Only waits are kept, measured on this node's own clock from the moment the
//! store was asked: clocks that differ change nothing, and a denial is never held
//! longer than the store said.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

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
    /// Spares the lock while nobody is denied.
    any: AtomicBool,
    /// Grows with each [`Denials::clear`].
    epoch: AtomicU64,
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
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let known = self.known.lock();
        charges.iter().find_map(|charge| {
            let denial = known.get(&charge.memo())?;
            let holds = denial.until > now
                && charge.cost >= denial.cost
                && charge.on_exceed == OnExceed::Deny;
            let store_now = now.moved(denial.ahead_us);
            holds.then_some((charge, denial.reading, store_now))
        })
    }

    /// To be read before the store is asked.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Remembers what the store denied when it was asked at `asked`, unless everything
    /// was forgotten since `epoch`: such an answer may be older than a reset.
    pub(super) fn learn(
        &self,
        charges: &[Charge<'_>],
        charged: &Charged,
        asked: Micros,
        epoch: u64,
    ) {
        if charged.admitted {
            return;
        }
        let mut known = self.known.lock();
        if self.epoch() != epoch {
            return;
        }
        if known.len() >= DENIALS_MAX {
            known.retain(|_, denial| denial.until > asked);
        }
        let ahead_us = charged.now.ahead_of(asked);
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
                self.any.store(true, Ordering::Release);
            }
        }
    }

    /// Denials that are remembered.
    pub(super) fn len(&self) -> usize {
        self.known.lock().len()
    }

    /// Forgets what is known of these buckets: something was given back to them. An
    /// answer that is on its way may be older than that, so none is remembered.
    pub(super) fn forget(&self, charges: &[Charge<'_>]) {
        let mut known = self.known.lock();
        self.epoch.fetch_add(1, Ordering::AcqRel);
        for charge in charges {
            known.remove(&charge.memo());
        }
    }

    /// Forgets everything, after a reset or a change of policy.
    pub(super) fn clear(&self) {
        let mut known = self.known.lock();
        self.epoch.fetch_add(1, Ordering::AcqRel);
        known.clear();
        self.any.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use palisade_core::facts::RequestFacts;
    use palisade_core::key::Keyring;
    use palisade_core::policy::{PolicySet, resolve};

    use super::*;

    fn policy() -> Arc<PolicySet> {
        let text = "[policy]\ndefaults = false\n\
            [[limit]]\nname = \"few\"\nby = [\"ip\"]\nrate = \"5/min\"\n";
        let loaded = palisade_policy::load_text(
            std::path::Path::new("test.toml"),
            text,
            &palisade_policy::Env::default(),
            &palisade_policy::Overrides::default(),
        );
        loaded.unwrap().policy
    }

    #[test]
    fn an_answer_that_is_older_than_a_reset_is_not_remembered() {
        let policy = policy();
        let ring = Keyring::new(&[1; 32], None).unwrap();
        let facts = RequestFacts::new([192, 0, 2, 1].into(), "GET", "/x");
        let plan = resolve(&policy, None, &ring, &facts, |_| None);
        let now = Micros(1_000_000);
        let reading = Reading {
            used: 5,
            remaining: 0,
            reset_at: now.plus(60),
            retry_at: Some(now.plus(60)),
        };
        let denied = Charged {
            now,
            admitted: false,
            readings: vec![reading; plan.charges.len()].into(),
            rebuilt: 0,
            instants: Vec::new(),
        };
        let denials = Denials::default();
        let asked_in = denials.epoch();
        denials.clear();
        denials.learn(&plan.charges, &denied, now, asked_in);
        assert!(denials.find(&plan.charges, now).is_none());
        denials.learn(&plan.charges, &denied, now, denials.epoch());
        assert!(denials.find(&plan.charges, now).is_some());
    }
}
