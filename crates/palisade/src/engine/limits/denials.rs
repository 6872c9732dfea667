//! Denials that are known until a time: a bucket that the store found exhausted is
//! denied here until then, without asking again.
//!
//! Only waits are kept, measured on this node's own clock from the moment the
//! store was asked: clocks that differ change nothing, and a denial is never held
//! longer than the store said.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hashbrown::{HashMap, HashSet};
use palisade_core::Digest;
use palisade_core::limit::Reading;
use palisade_core::plan::Charge;
use palisade_core::time::Micros;
use palisade_store::ChargeOutcome;
use parking_lot::Mutex;

/// Longest memory of a denial by a bucket that may be given back at any moment, so that what one
/// node gives back another can use (B-REMEMBER).
const RESERVABLE_US: u64 = 100_000;

/// Most denials that are remembered.
const DENIALS_MAX: usize = 100_000;

#[derive(Default)]
pub(super) struct Denials {
    /// By bucket. Of two policies with other figures for one the later denial stays.
    known: Mutex<HashMap<Digest, Denial>>,
    /// Spares the lock while nobody is denied.
    any: AtomicBool,
    /// Grows with each [`Denials::clear`].
    epoch: AtomicU64,
    /// Limits of requests that this node has made reservations on.
    reserved: Mutex<HashSet<Digest>>,
}

#[derive(Clone, Copy)]
struct Denial {
    /// [`Charge::memo`]: under other figures the bucket may admit.
    memo: Digest,
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
            let denial = known.get(&charge.id)?;
            let holds = denial.until > now
                && denial.memo == charge.memo()
                && charge.required() >= denial.cost
                && charge.on_exceed.denies();
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
        charged: &ChargeOutcome,
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
            if charge.on_exceed.denies() && known.len() < DENIALS_MAX {
                let wait = retry_at.since(charged.now).min(self.longest_us(charge));
                let denial = Denial {
                    memo: charge.memo(),
                    cost: charge.required(),
                    until: asked.plus(wait),
                    reading: *reading,
                    ahead_us,
                };
                known.insert(charge.id, denial);
                self.any.store(true, Ordering::Release);
            }
        }
    }

    /// Something is reserved of these limits, and may come back before their windows end.
    pub(super) fn note_reserved(&self, charges: &[Charge<'_>]) {
        let mut reserved = self.reserved.lock();
        reserved.extend(charges.iter().map(|charge| charge.limit.digest));
    }

    /// The longest that a denial of this bucket is remembered here.
    fn longest_us(&self, charge: &Charge<'_>) -> u64 {
        if is_reservable(charge) || self.reserved.lock().contains(&charge.limit.digest) {
            RESERVABLE_US
        } else {
            u64::MAX
        }
    }

    /// Denials that are remembered.
    pub(super) fn len(&self) -> usize {
        self.known.lock().len()
    }

    /// Forgets what is known of these buckets: something was given back to them. An
    /// answer that is on its way may be older than that, so none is remembered.
    pub(super) fn forget<'a>(&self, buckets: impl IntoIterator<Item = &'a Digest>) {
        let mut known = self.known.lock();
        self.epoch.fetch_add(1, Ordering::AcqRel);
        for bucket in buckets {
            known.remove(bucket);
        }
    }

    /// Forgets everything, after a reset or a change of policy.
    pub(super) fn clear(&self) {
        let mut known = self.known.lock();
        self.epoch.fetch_add(1, Ordering::AcqRel);
        known.clear();
        self.reserved.lock().clear();
        self.any.store(false, Ordering::Release);
    }
}

/// True if every node soon asks again about a denial of this bucket.
pub(super) const fn is_reservable(charge: &Charge<'_>) -> bool {
    charge.limit.def.concurrency || charge.limit.def.unit.is_named()
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
        let denied = ChargeOutcome {
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
