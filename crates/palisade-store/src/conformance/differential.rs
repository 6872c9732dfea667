//! Comparison of a store with the model on random plans and records: both must answer alike.

use std::num::NonZeroU32;
use std::sync::Arc;

use palisade_core::limit::{Algorithm, BucketSpec, CountsFrom, FIGURE_MAX, Reading, Window};
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::record::{Flow, RecordKey, RecordKind, RecordWrite};
use palisade_core::time::{Clock, DAY, HOUR, MINUTE, Micros, SECOND};

use super::records::{key, write};
use super::registries::{entry, list};
use super::{Conversions, Rng, TestClock, TestLimits, spec};
use crate::model::ModelStore;
use crate::{
    Buckets, ChargeReadings, Correction, CorrectionOutcome, Entries, Mark, Records, Registries,
    Registry, Store, Take, TakenCharge,
};

/// Parameters of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct Differential {
    /// Seed from which the whole run follows.
    pub seed: u64,
    /// Number of calls.
    pub steps: u32,
    /// Changes of limits to make on the way.
    pub conversions: Conversions,
}

/// Drives `store`, which must be empty and judge by `clock`, and a
/// [`ModelStore`] with the same calls, and compares every answer.
///
/// # Panics
/// If an answer differs; the message names seed and step.
pub async fn differential<S: Store>(store: &S, clock: &Arc<TestClock>, plan: Differential) {
    let mut run = Run {
        store,
        clock,
        model: ModelStore::new(Arc::clone(clock)),
        rng: Rng::new(plan.seed),
        policies: policies(plan.conversions),
        taken: Vec::new(),
        marks_end: Micros(0),
    };
    for step in 0..plan.steps {
        let name = format!("seed {} step {step}", plan.seed);
        run.pass_time();
        match run.rng.below(16) {
            0..=6 => run.charge(&name).await,
            12 | 13 => run.give_back(&name).await,
            14 | 15 => run.correct(&name).await,
            7 => run.refund(&name).await,
            8 => run.reset().await,
            9 | 10 => run.commit(&name).await,
            _ => run.registry(&name).await,
        }
    }
}

const NAMES: [&str; 13] = [
    "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m",
];

/// The first name of limits above 2³² (B-UNIT).
const LARGE: &str = "j";

/// Costs that such limits are charged.
const LARGE_COSTS: [u64; 7] = [
    1,
    300,
    1 << 32,
    2_500_000_000,
    (1 << 45) + 7,
    FIGURE_MAX - 1,
    FIGURE_MAX,
];

/// Limits by name, in several versions: the same windows, other amounts and, on the
/// first three, other algorithms.
fn policies(conversions: Conversions) -> Vec<TestLimits> {
    use Algorithm::{FixedWindow, SlidingLog, SlidingWheel, TokenBucket};
    const ALL: [Algorithm; 4] = [SlidingLog, SlidingWheel, TokenBucket, FixedWindow];
    let version = |version: usize| {
        let turning = match conversions {
            Conversions::LogAndWheel => ALL[version % 2],
            Conversions::All => ALL[version % 4],
        };
        let back = match conversions {
            Conversions::LogAndWheel => ALL[(version + 1) % 2],
            Conversions::All => ALL[(version + 1) % 4],
        };
        let more = if version == 2 { 3 } else { 0 };
        TestLimits::new([
            ("a", spec(turning, 3 + more, Window::Span(10 * SECOND))),
            ("b", spec(back, 9, Window::Span(MINUTE))),
            ("c", spec(SlidingLog, 4 + more, Window::Span(SECOND))),
            ("d", spec(SlidingWheel, 300, Window::Span(MINUTE))),
            ("e", spec(TokenBucket, 7, Window::Span(3 * SECOND))),
            ("f", gcra(11, 5)),
            ("g", spec(FixedWindow, 5 + more, Window::Span(10 * SECOND))),
            ("h", spec(FixedWindow, 40, Window::Month)),
            ("i", spec(FixedWindow, 50, Window::Year)),
            // Few enough in a minute for a token bucket, too.
            (
                "j",
                spec(turning, (5 + more) * 1_000_000_000, Window::Span(MINUTE)),
            ),
            (
                "k",
                spec(SlidingLog, FIGURE_MAX - more, Window::Span(10 * SECOND)),
            ),
            (
                "l",
                spec(FixedWindow, FIGURE_MAX - more, Window::Span(MINUTE)),
            ),
            ("m", spec(TokenBucket, FIGURE_MAX, Window::Span(62 * DAY))),
        ])
    };
    (0..4).map(version).collect()
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
fn gcra(limit: u32, burst: u32) -> BucketSpec {
    let [limit, burst] = [limit, burst].map(|n| NonZeroU32::new(n).unwrap());
    BucketSpec::new(
        Algorithm::TokenBucket,
        limit,
        Window::Span(SECOND),
        Some(burst),
    )
    .unwrap()
}

struct Run<'a, S> {
    store: &'a S,
    clock: &'a TestClock,
    model: ModelStore<Arc<TestClock>>,
    rng: Rng,
    policies: Vec<TestLimits>,
    /// Charges that were taken lately.
    taken: Vec<PastCharge>,
    /// End of the latest mark.
    marks_end: Micros,
}

/// A charge that was taken, to be given back later under any version of its limit.
#[derive(Clone, Debug)]
struct PastCharge {
    name: String,
    subject: &'static str,
    cost: u64,
    at: Micros,
}

fn charges<'p>(policies: &'p [TestLimits], rng: &mut Rng) -> Vec<Charge<'p>> {
    let subject = *rng.pick(&["x", "y"]);
    charges_of(policies, subject, rng)
}

/// One to five charges on distinct limits.
fn charges_of<'p>(policies: &'p [TestLimits], subject: &str, rng: &mut Rng) -> Vec<Charge<'p>> {
    let limits = rng.pick(policies);
    let (first, count) = (rng.index(NAMES.len()), 1 + rng.index(5));
    let names = NAMES.iter().cycle().skip(first).take(count);
    names
        .map(|name| {
            let on_exceed = match rng.below(8) {
                0 => OnExceed::Report,
                1 => OnExceed::Count,
                2 | 3 => OnExceed::Overdraft,
                _ => OnExceed::Deny,
            };
            let cost = match on_exceed {
                _ if *name >= LARGE => *rng.pick(&LARGE_COSTS),
                // Also looks, and costs above every limit.
                OnExceed::Overdraft => *rng.pick(&[0, 1, 4, 60, 400]),
                _ => 1 + rng.below(3),
            };
            // Many from now: others are as rare as holds are.
            let from = match rng.below(10) {
                0 | 1 => CountsFrom::Ago(rng.below(2 * MINUTE)),
                2 => CountsFrom::Instant(super::START.plus(rng.below(HOUR))),
                _ => CountsFrom::Now,
            };
            Charge {
                from,
                ..limits.charge_of(name, subject, cost, on_exceed)
            }
        })
        .collect()
}

/// Makes answers comparable: a store may have forgotten a bucket of which nothing is used, and
/// with it `reset_at`.
fn comparable(mut charged: ChargeReadings) -> ChargeReadings {
    for reading in &mut charged.readings {
        if reading.used == 0 {
            *reading = Reading {
                reset_at: charged.now,
                ..*reading
            };
        }
    }
    charged
}

/// Like [`comparable`], for a correction.
fn corrected(outcome: CorrectionOutcome) -> CorrectionOutcome {
    match outcome {
        CorrectionOutcome::Made(readings) => CorrectionOutcome::Made(comparable(readings)),
        CorrectionOutcome::Repeated(readings) => CorrectionOutcome::Repeated(comparable(readings)),
        CorrectionOutcome::Conflict => CorrectionOutcome::Conflict,
    }
}

impl<S: Store> Run<'_, S> {
    fn pass_time(&mut self) {
        let us = match self.rng.below(10) {
            0..=3 => 0,
            4 => self.rng.below(4),
            5..=7 => self.rng.below(SECOND),
            8 => self.rng.below(MINUTE),
            _ => self.rng.below(SECOND) * 1_000,
        };
        self.clock.advance(us);
    }

    #[expect(clippy::unwrap_used, reason = "part of a test suite")]
    async fn charge(&mut self, name: &str) {
        let subject = *self.rng.pick(&["x", "y"]);
        let charges = charges_of(&self.policies, subject, &mut self.rng);
        let take = if self.rng.one_in(5) {
            Take::Peek
        } else {
            Take::Consume
        };
        let expected = self.model.charge(&charges, take).await.unwrap();
        let got = self.store.charge(&charges, take).await.unwrap();
        if take == Take::Consume {
            let taken = expected.taken(&charges).into_iter();
            self.taken.extend(taken.map(|taken| PastCharge {
                name: taken.charge.limit.name.to_string(),
                subject,
                cost: taken.charge.cost,
                at: taken.at,
            }));
        }
        let asked: Vec<_> = charges
            .iter()
            .map(|c| (&c.limit.name, c.cost, c.on_exceed, c.from))
            .collect();
        assert_eq!(
            comparable(got),
            comparable(expected),
            "{name}: {take:?} {asked:?}"
        );
    }

    #[expect(clippy::unwrap_used, reason = "part of a test suite")]
    async fn refund(&mut self, name: &str) {
        let charges = charges(&self.policies, &mut self.rng);
        let expected = self.model.refund(&charges).await.unwrap();
        let got = self.store.refund(&charges).await.unwrap();
        assert_eq!(comparable(got), comparable(expected), "{name}: refund");
    }

    /// Gives back mostly recent charges. Some are given back twice, which is wrong and must be
    /// wrong in the same way.
    #[expect(clippy::unwrap_used, reason = "part of a test suite")]
    async fn give_back(&mut self, name: &str) {
        let limits = self.rng.pick(&self.policies);
        let recent = self.taken.len().saturating_sub(20);
        self.taken.drain(..recent);
        let mut taken: Vec<TakenCharge<'_>> = Vec::new();
        for _ in 0..1 + self.rng.index(3) {
            if self.taken.is_empty() {
                return;
            }
            let one = self.taken[self.rng.index(self.taken.len())].clone();
            let charge = limits.charge_of(&one.name, one.subject, one.cost, OnExceed::Deny);
            // Each bucket once: the suite leaves open how a bucket that occurs twice is read.
            taken.retain(|earlier| earlier.charge.id != charge.id);
            taken.push(TakenCharge { charge, at: one.at });
        }
        let expected = self.model.give_back(&taken).await.unwrap();
        let got = self.store.give_back(&taken).await.unwrap();
        let asked: Vec<_> = taken.iter().map(|t| (&t.charge.limit.name, t.at)).collect();
        assert_eq!(
            comparable(got),
            comparable(expected),
            "{name}: give back {asked:?}"
        );
    }

    /// Corrects buckets, mostly with a mark that can be written; sometimes with one that was.
    #[expect(clippy::unwrap_used, reason = "part of a test suite")]
    async fn correct(&mut self, name: &str) {
        let key = key(RecordKind::Reservation, 1 + u128::from(self.rng.below(2)));
        let known = self.model.load(&[key]).await.unwrap().records.pop();
        let record = known.flatten();
        let revision = record.as_ref().map_or(0, |record| record.revision);
        let bytes = vec![u8::try_from(self.rng.below(3)).unwrap()];
        // Not before the mark that it replaces.
        let ends = self.clock.now().plus(self.rng.below(HOUR));
        self.marks_end = self.marks_end.max(ends);
        let mark = Mark {
            key,
            expect: revision.saturating_sub(u64::from(self.rng.one_in(4))),
            bytes,
            expires_at: self.marks_end,
        };
        let limits = self.rng.pick(&self.policies);
        let mut correction = Correction {
            mark,
            more: Vec::new(),
            back: Vec::new(),
        };
        for charge in charges_of(&self.policies[..1], "z", &mut self.rng) {
            let on_exceed = match self.rng.one_in(4) {
                true => OnExceed::Report,
                false => OnExceed::Count,
            };
            let charge = limits.charge_of(&charge.limit.name, "z", charge.cost, on_exceed);
            correction.more.push(charge);
        }
        if let Some(one) = self.taken.last().cloned() {
            let charge = limits.charge_of(&one.name, one.subject, one.cost, OnExceed::Count);
            correction.back.push(TakenCharge { charge, at: one.at });
        }
        let expected = self.model.correct(&correction).await.unwrap();
        let got = self.store.correct(&correction).await.unwrap();
        assert_eq!(
            corrected(got),
            corrected(expected),
            "{name}: {correction:?}"
        );
    }

    #[expect(clippy::unwrap_used, reason = "part of a test suite")]
    async fn reset(&mut self) {
        let charges = charges(&self.policies, &mut self.rng);
        self.model.reset(&charges).await.unwrap();
        self.store.reset(&charges).await.unwrap();
    }

    #[expect(clippy::unwrap_used, reason = "part of a test suite")]
    async fn commit(&mut self, name: &str) {
        let keys = record_keys();
        let known = self.model.load(&keys).await.unwrap();
        assert_eq!(self.store.load(&keys).await.unwrap(), known, "{name}: load");
        let rng = &mut self.rng;
        let (first, count) = (rng.index(keys.len()), 1 + rng.index(3));
        let now = self.clock.now();
        let writes: Vec<RecordWrite> = (first..first + count)
            .map(|index| index % keys.len())
            .map(|index| {
                let revision = known.records[index].as_ref().map_or(0, |r| r.revision);
                let expect = if rng.one_in(8) {
                    rng.below(4)
                } else {
                    revision
                };
                let mut one = write(keys[index], expect, &rng.next().to_be_bytes());
                one.expires_at = now.plus(rng.below(HOUR));
                if rng.one_in(6) {
                    one.bytes = None;
                }
                one
            })
            .collect();
        if self.rng.one_in(10) {
            self.model.set_aside(writes[0].key).await.unwrap();
            self.store.set_aside(writes[0].key).await.unwrap();
        }
        let expected = self.model.commit(&writes).await.unwrap();
        let got = self.store.commit(&writes).await.unwrap();
        assert_eq!(got, expected, "{name}: commit");
        let expected = self.model.load(&keys).await.unwrap();
        assert_eq!(
            self.store.load(&keys).await.unwrap(),
            expected,
            "{name}: after commit"
        );
    }

    #[expect(clippy::unwrap_used, reason = "part of a test suite")]
    async fn registry(&mut self, name: &str) {
        let rng = &mut self.rng;
        let registry = *rng.pick(&Registry::ALL);
        let id = *rng.pick(&["one", "two", "three"]);
        if rng.one_in(3) {
            let expected = self.model.remove_entry(registry, id).await.unwrap();
            let got = self.store.remove_entry(registry, id).await.unwrap();
            assert_eq!(got, expected, "{name}: remove");
        } else {
            let until = (!rng.one_in(3)).then(|| self.clock.now().plus(rng.below(HOUR)));
            let new = entry(id, &rng.next().to_be_bytes(), until);
            self.model.put_entry(registry, new.clone()).await.unwrap();
            self.store.put_entry(registry, new).await.unwrap();
        }
        let Entries { entries, .. } = list(&self.model, registry).await;
        assert_eq!(
            list(self.store, registry).await.entries,
            entries,
            "{name}: entries"
        );
    }
}

fn record_keys() -> Vec<RecordKey> {
    let kinds = [
        RecordKind::Account(Flow::Login),
        RecordKind::Network(Flow::Login),
        RecordKind::Device(Flow::Login),
        RecordKind::Lockout,
    ];
    kinds
        .into_iter()
        .flat_map(|kind| (1..=2).map(move |number| key(kind, number)))
        .collect()
}
