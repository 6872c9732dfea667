//! Decisions as the arrays that `palisade.decide` takes, and its answer as readings.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

use palisade_core::limit::{Algorithm, BucketSpec, COUNT_MAX, CountsFrom, Reading, Window};
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::time::Micros;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::{BucketReadings, ChargeReadings, StoreError};

/// The one statement of every decision.
pub(super) const DECIDE: &str = "SELECT * FROM palisade.decide(\
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)";

/// The statement of returns.
pub(super) const GIVE_BACK: &str = "SELECT * FROM palisade.give_back(\
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)";

/// The statement of corrections.
pub(super) const CORRECT: &str = "SELECT * FROM palisade.correct(\
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, \
    $19, $20, $21, $22, $23)";

/// Added to the code of `on_exceed` where an earlier charge of the decision has the same bucket.
const REPEATED: i16 = 4;

/// Places of [`Known`]: two mebibytes.
const KNOWN_PLACES: usize = 1 << 18;

/// Operation on the buckets of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Consume = 0,
    Peek = 1,
    Refund = 2,
    Reset = 3,
}

/// One decision, independent of the policy that it came from.
pub(super) struct Ask {
    pub(super) op: Op,
    pub(super) charges: Vec<Bucket>,
}

pub(super) struct Bucket {
    key: String,
    spec: BucketSpec,
    cost: u64,
    on_exceed: OnExceed,
    from: CountsFrom,
}

impl Ask {
    pub(super) fn new(op: Op, charges: &[Charge<'_>]) -> Self {
        let charges = charges
            .iter()
            .map(|charge| Bucket {
                key: charge.key(),
                spec: *charge.spec,
                cost: charge.cost,
                on_exceed: charge.on_exceed,
                from: match op {
                    Op::Consume => charge.from,
                    Op::Peek | Op::Refund | Op::Reset => CountsFrom::Now,
                },
            })
            .collect();
        Self { op, charges }
    }
}

/// Arguments of one call, named as in the SQL function.
#[derive(Default)]
pub(super) struct Batch<'a> {
    now: Option<i64>,
    keys: Vec<&'a str>,
    need: Vec<bool>,
    create: Vec<bool>,
    kinds: Vec<i16>,
    months: Vec<bool>,
    capacities: Vec<i64>,
    spans: Vec<i64>,
    slots: Vec<i64>,
    steps: Vec<i64>,
    bursts: Vec<i64>,
    ops: Vec<i16>,
    lasts: Vec<i32>,
    key_numbers: Vec<i32>,
    spec_numbers: Vec<i32>,
    costs: Vec<i64>,
    exceeds: Vec<i16>,
    specs: Vec<(BucketSpec, CountsFrom)>,
}

impl<'a> Batch<'a> {
    pub(super) fn new(asks: impl Iterator<Item = &'a Ask> + Clone, now: Option<Micros>) -> Self {
        let mut batch = Self {
            now: now.map(|now| signed(now.0)),
            keys: asks
                .clone()
                .flat_map(|ask| ask.charges.iter().map(|bucket| bucket.key.as_str()))
                .collect(),
            ..Self::default()
        };
        // Rows are locked in this order, on every node.
        batch.keys.sort_unstable();
        batch.keys.dedup();
        batch.need = vec![false; batch.keys.len()];
        asks.for_each(|ask| batch.push(ask));
        batch.create = batch.need.clone();
        batch
    }

    /// Skips the creation of buckets that existed a moment ago. If one does not exist, the server
    /// says so and nothing is done.
    pub(super) fn trust(&mut self, known: &Known) {
        for (key, create) in self.keys.iter().zip(&mut self.create) {
            *create &= !known.has(key);
        }
    }

    /// Remembers the buckets that exist now.
    pub(super) fn confirm(&self, known: &Known) {
        let needed = self.keys.iter().zip(&self.need);
        needed
            .filter(|(_, need)| **need)
            .for_each(|(key, _)| known.add(key));
    }

    fn push(&mut self, ask: &Ask) {
        let first = self.key_numbers.len();
        for bucket in &ask.charges {
            let key = self.keys.partition_point(|key| *key < bucket.key.as_str());
            if ask.op == Op::Consume
                && let Some(need) = self.need.get_mut(key)
            {
                *need = true;
            }
            let spec = self.spec_number((bucket.spec, bucket.from));
            let key = number(key + 1);
            let is_repeated = self.key_numbers[first..].contains(&key);
            self.key_numbers.push(key);
            self.spec_numbers.push(spec);
            self.costs.push(signed(bucket.cost.min(COUNT_MAX)));
            let on_exceed = match bucket.on_exceed {
                OnExceed::Deny => 0,
                OnExceed::Report => 1,
                OnExceed::Count => 2,
                OnExceed::Overdraft => 3,
            };
            self.exceeds
                .push(on_exceed + if is_repeated { REPEATED } else { 0 });
        }
        self.ops.push(ask.op as i16);
        self.lasts.push(number(self.key_numbers.len()));
    }

    /// Few limits are in use at a time: a search is cheaper than a map.
    fn spec_number(&mut self, (spec, from): (BucketSpec, CountsFrom)) -> i32 {
        if let Some(known) = self.specs.iter().position(|known| *known == (spec, from)) {
            return number(known + 1);
        }
        let (step, burst) = spec.gcra_ticks();
        self.specs.push((spec, from));
        self.kinds.push(match spec.algorithm() {
            Algorithm::SlidingLog | Algorithm::SlidingWheel => 1,
            Algorithm::TokenBucket => 2,
            Algorithm::FixedWindow => 3,
        });
        self.months
            .push(matches!(spec.window(), Window::Month | Window::Year));
        self.capacities.push(signed(spec.capacity()));
        self.spans.push(signed(spec.window_us()));
        self.slots.push(slot(&spec, from));
        self.steps.push(signed(step));
        self.bursts.push(signed(burst));
        number(self.specs.len())
    }

    pub(super) fn params(&self) -> [&(dyn ToSql + Sync); 17] {
        [
            &self.now,
            &self.keys,
            &self.need,
            &self.create,
            &self.kinds,
            &self.months,
            &self.capacities,
            &self.spans,
            &self.slots,
            &self.steps,
            &self.bursts,
            &self.ops,
            &self.lasts,
            &self.key_numbers,
            &self.spec_numbers,
            &self.costs,
            &self.exceeds,
        ]
    }
}

/// Buckets that were seen lately, in a small table that may forget some: one hash per place, of
/// which the last one stays.
pub(super) struct Known {
    places: Vec<AtomicU64>,
    hasher: RandomState,
}

impl Known {
    pub(super) fn new() -> Self {
        Self {
            places: (0..KNOWN_PLACES).map(|_| AtomicU64::new(0)).collect(),
            hasher: RandomState::new(),
        }
    }

    fn place(&self, key: &str) -> (u64, Option<&AtomicU64>) {
        // Never 0, which stands for an empty place.
        let hash = self.hasher.hash_one(key) | 1;
        let index = usize::try_from(hash >> 40).unwrap_or(0) % KNOWN_PLACES;
        (hash, self.places.get(index))
    }

    fn has(&self, key: &str) -> bool {
        let (hash, place) = self.place(key);
        place.is_some_and(|place| place.load(Ordering::Relaxed) == hash)
    }

    fn add(&self, key: &str) {
        let (hash, place) = self.place(key);
        if let Some(place) = place {
            place.store(hash, Ordering::Relaxed);
        }
    }
}

/// The answer to a batch.
pub(super) struct Answers {
    now: Micros,
    admitted: Vec<bool>,
    rebuilt: Vec<i32>,
    used: Vec<i64>,
    reset_at: Vec<i64>,
    retry_at: Vec<i64>,
    decided: usize,
    charged: usize,
}

impl Answers {
    pub(super) fn read(rows: &[Row]) -> Result<Self, StoreError> {
        let row = rows.first().ok_or_else(odd)?;
        let read = || -> Result<Self, tokio_postgres::Error> {
            Ok(Self {
                now: unsigned(row.try_get(0)?),
                admitted: row.try_get(1)?,
                rebuilt: row.try_get(2)?,
                used: row.try_get(3)?,
                reset_at: row.try_get(4)?,
                retry_at: row.try_get(5)?,
                decided: 0,
                charged: 0,
            })
        };
        read().map_err(|_| odd())
    }

    /// The answer to the next decision, in order.
    pub(super) fn next(&mut self, ask: &Ask) -> Result<ChargeReadings, StoreError> {
        let decision = self.decided;
        self.decided += 1;
        let readings: Option<BucketReadings> = ask
            .charges
            .iter()
            .map(|bucket| self.reading(bucket))
            .collect();
        Ok(ChargeReadings {
            readings: readings.ok_or_else(odd)?,
            now: self.now,
            admitted: *self.admitted.get(decision).ok_or_else(odd)?,
            rebuilt: u32::try_from(*self.rebuilt.get(decision).ok_or_else(odd)?)
                .map_err(|_| odd())?,
            instants: Vec::new(),
        })
    }

    fn reading(&mut self, bucket: &Bucket) -> Option<Reading> {
        let charge = self.charged;
        self.charged += 1;
        let used = u64::try_from(*self.used.get(charge)?).ok()?;
        let retry_at = *self.retry_at.get(charge)?;
        Some(Reading {
            used,
            remaining: bucket.spec.capacity().saturating_sub(used),
            reset_at: unsigned(*self.reset_at.get(charge)?),
            retry_at: match retry_at {
                0 => None,
                i64::MAX => Some(Micros(u64::MAX)),
                at => Some(unsigned(at)),
            },
        })
    }
}

/// The slot of a bucket of hits or, below zero, the instant that a charge counts from: four times
/// that (or how long ago it is), plus 2 for an instant, plus 1 on a wheel.
fn slot(spec: &BucketSpec, from: CountsFrom) -> i64 {
    let is_wheel = match spec.algorithm() {
        Algorithm::SlidingLog => 0,
        Algorithm::SlidingWheel => 1,
        // These count every charge from now.
        Algorithm::TokenBucket | Algorithm::FixedWindow => return signed(spec.slot_us()),
    };
    let (value, is_instant) = match from {
        CountsFrom::Now => return signed(spec.slot_us()),
        CountsFrom::Ago(us) => (us, 0),
        CountsFrom::Instant(at) => (at.0, 2),
    };
    // One more, so that it is below zero also where everything else is none.
    -signed(
        value
            .saturating_mul(4)
            .saturating_add(is_instant + is_wheel + 1),
    )
}

fn odd() -> StoreError {
    StoreError::Corrupt("a decision of another shape".to_owned())
}

/// A number as Postgres holds it. Times and spans are far below 2⁶³ µs; a larger one is the end of
/// time.
pub(super) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

pub(super) fn unsigned(value: i64) -> Micros {
    match value {
        i64::MAX => Micros(u64::MAX),
        value => Micros(u64::try_from(value).unwrap_or(0)),
    }
}

/// Batches are bounded far below 2³¹.
fn number(index: usize) -> i32 {
    i32::try_from(index).unwrap_or(i32::MAX)
}
