//! Remembered denials: a bucket that the store found exhausted is denied here until it can
//! admit again, without another call.
//!
//! Only waits are kept, measured on this node's own clock from the moment the store was asked:
//! clocks that differ change nothing, and a denial never outlasts the wait that the store named.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hashbrown::{HashMap, HashSet};
use palisade_core::Digest;
use palisade_core::limit::Reading;
use palisade_core::plan::Charge;
use palisade_core::policy::Scope;
use palisade_core::time::Micros;
use palisade_store::ChargeReadings;
use parking_lot::Mutex;

use super::{ChargeOutcome, denied};

/// Longest memory of a denial by a bucket that may be given back at any moment, so that what one
/// node gives back another can use (B-REMEMBER).
const RESERVABLE_US: u64 = 100_000;

/// Most denials that are remembered.
const DENIALS_MAX: usize = 100_000;

/// Most readings beside denials that are remembered.
const COMPANIONS_MAX: usize = 100_000;

/// Denials that this node remembers.
#[derive(Default)]
pub(super) struct Denials {
    /// By bucket. If two policies have different figures for one, the later denial stays.
    known: Mutex<HashMap<Digest, Denial>>,
    /// False while no denial is known: most requests then take no lock.
    any: AtomicBool,
    /// Grows with each [`Denials::clear`].
    epoch: AtomicU64,
    /// Limits of requests that this node has made reservations on.
    reserved: Mutex<HashSet<Digest>>,
    /// Readings of the other buckets of calls of Envoy that were denied, by [`Charge::memo`]:
    /// each descriptor has an answer of its own (R-STATUS).
    companions: Mutex<HashMap<Digest, Companion>>,
}

#[derive(Clone, Copy)]
struct Denial {
    /// [`Charge::memo`]: under other figures the bucket may admit.
    memo: Digest,
    cost: u64,
    until: Micros,
    reading: Reading,
    /// The store's clock minus this node's, to give readings in the store's time.
    ahead_us: i64,
}

/// A bucket beside one that denied.
#[derive(Clone, Copy)]
struct Companion {
    cost: u64,
    reading: Reading,
    /// By the store's clock, like the reading.
    until: Micros,
}

impl Companion {
    /// The reading as far as it answers this cost at `now`.
    fn answer(&self, cost: u64, now: Micros) -> Option<Reading> {
        let answers = match self.reading.retry_at {
            None => cost <= self.reading.remaining,
            Some(retry_at) => retry_at > now && cost >= self.cost,
        };
        (answers && self.until > now).then_some(self.reading)
    }
}

impl Denials {
    /// The readings of a plan that is known to be denied: of the bucket that denies and, for
    /// a call of Envoy, of the others as far as they are known.
    pub(super) fn find<'c, 'p>(
        &self,
        charges: &'c [Charge<'p>],
        now: Micros,
    ) -> Option<ChargeOutcome<'c, 'p>> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let (denying, denial) = self.denial_of(charges, now)?;
        let now = now.moved(denial.ahead_us);
        let companions = self.companions.lock();
        if charges.len() == 1 || companions.is_empty() {
            return Some(ChargeOutcome {
                charges: Cow::Borrowed(std::slice::from_ref(denying)),
                charged: denied(now, [denial.reading]),
            });
        }
        let reading = |charge: &Charge<'_>| match std::ptr::eq(charge, denying) {
            true => Some(denial.reading),
            false => companions
                .get(&charge.memo())?
                .answer(charge.required(), now),
        };
        let known = charges
            .iter()
            .filter_map(|charge| Some((charge.clone(), reading(charge)?)));
        let (charges, readings): (Vec<_>, Vec<_>) = known.unzip();
        Some(ChargeOutcome {
            charges: charges.into(),
            charged: denied(now, readings),
        })
    }

    fn denial_of<'c, 'p>(
        &self,
        charges: &'c [Charge<'p>],
        now: Micros,
    ) -> Option<(&'c Charge<'p>, Denial)> {
        let known = self.known.lock();
        charges.iter().find_map(|charge| {
            let denial = known.get(&charge.id)?;
            let holds = denial.until > now
                && denial.memo == charge.memo()
                && charge.required() >= denial.cost
                && charge.on_exceed.denies();
            holds.then_some((charge, *denial))
        })
    }

    /// The count of resets, to be read before the store is asked; see [`Denials::learn`].
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Remembers the denials in an answer that the store was asked for at `asked`, unless
    /// something was forgotten since `epoch` was read: the answer may be older than a reset.
    pub(super) fn learn(
        &self,
        charges: &[Charge<'_>],
        charged: &ChargeReadings,
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

    /// Remembers the readings of a call of Envoy that was denied.
    pub(super) fn learn_companions(&self, charges: &[Charge<'_>], charged: &ChargeReadings) {
        let is_call = |charge: &Charge<'_>| charge.limit.scope == Scope::Descriptor;
        if charged.admitted || charges.len() < 2 || !charges.first().is_some_and(is_call) {
            return;
        }
        let waits = charged.readings.iter().filter_map(|one| one.retry_at);
        let Some(until) = waits.max() else {
            return;
        };
        let mut known = self.companions.lock();
        // To forget is harmless: these readings deny nobody, and a descriptor without one is
        // answered as not read.
        if known.len() + charges.len() > COMPANIONS_MAX {
            known.clear();
        }
        for (charge, reading) in charges.iter().zip(&charged.readings) {
            let companion = Companion {
                cost: charge.required(),
                reading: *reading,
                until,
            };
            known.insert(charge.memo(), companion);
        }
    }

    /// Shortens the memory of denials of these limits, since something is reserved of them that
    /// may come back before their windows end.
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

    /// Forgets the denials of these buckets, since something was given back to them. An answer
    /// that is on its way may be older than that, so none is remembered.
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
        self.companions.lock().clear();
        self.reserved.lock().clear();
        self.any.store(false, Ordering::Release);
    }
}

/// True if every node soon asks again about a denial of this bucket.
pub(in crate::engine) const fn is_reservable(charge: &Charge<'_>) -> bool {
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
        let denied = ChargeReadings {
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

    #[test]
    fn r_status_a_reading_answers_while_the_denial_holds_and_for_costs_it_speaks_of() {
        let of = |remaining: u64, retry_at: Option<u64>| Companion {
            cost: 3,
            reading: Reading {
                used: 0,
                remaining,
                reset_at: Micros(0),
                retry_at: retry_at.map(Micros),
            },
            until: Micros(50),
        };
        let answers = |one: Companion, cost: u64, now: u64| one.answer(cost, Micros(now)).is_some();
        assert!(answers(of(5, None), 5, 49));
        assert!(!answers(of(5, None), 6, 49), "it may deny that");
        assert!(!answers(of(5, None), 5, 50), "the denial is over");
        assert!(answers(of(0, Some(40)), 3, 39));
        assert!(!answers(of(0, Some(40)), 2, 39), "less may fit");
        assert!(!answers(of(0, Some(40)), 3, 40), "it may fit by now");
    }
}
