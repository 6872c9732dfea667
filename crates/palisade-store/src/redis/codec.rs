//! Decisions as the charge script reads them, and its answers as readings.
//!
//! The script returns the state that it found. Readings are computed from it here, with the pure
//! functions, so that a reading cannot differ from the definition.

use arrayvec::ArrayVec;
use palisade_core::limit::{
    Algorithm, BucketSpec, COUNT_MAX, CountsFrom, Hits, Reading, State, Window,
};
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::time::Micros;

use super::config::Effect;
use super::error::misread;
use crate::{BucketReadings, ChargeReadings, StoreError, Take};

/// Last instant that a script can hold: Lua's numbers are floating-point.
pub(super) const AT_MAX: Micros = Micros(1 << 53);

/// Most buckets of one decision: the script counts them in a byte.
pub(super) const CHARGES_MAX: usize = 255;

const ASKED_BYTES: usize = 10;
/// Added to the code of an operation whose instant the caller gives.
const AT_AN_INSTANT: u8 = 128;
/// Added to the code of an operation that a mark stands for.
const MARKED: u8 = 64;
/// In place of the instant of a charge that is given back: the cost is charged instead.
const CHARGED_INSTEAD: f64 = -1.0;
/// Length of the clock, which comes before the first answer.
const CLOCK_BYTES: usize = 8;
/// Length of a figure or a cost.
const FIGURE_BYTES: usize = 6;
/// Longest limit: one whose charge counts from another instant than now says which.
const LIMIT_BYTES_MAX: usize = 29;
/// Added to the first byte of such a limit.
const COUNTS_FROM: u8 = 16;

/// First byte of a bucket that is described in full, and the length of that description.
const IN_FULL: u8 = 0;
const IN_FULL_BYTES: usize = 26;
/// First byte of a bucket's short form: tokens, a window and, from 64 on, hits.
const TOKENS: u8 = 4;
const WINDOW: u8 = 5;
const HITS_MIN: u8 = 64;

/// Effect of a decision on its buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// Takes from all of them, or from none.
    Charge,
    /// Takes from those buckets of a decision that are in one slot.
    ChargePart,
    /// Only reads.
    Peek,
    /// Gives back, whatever it was charged for.
    Refund,
    /// Gives back what was taken at an instant, as far as it still counts. A bucket without an
    /// instant is charged.
    GiveBack,
}

impl From<Take> for Operation {
    fn from(take: Take) -> Self {
        match take {
            Take::Consume => Self::Charge,
            Take::Peek => Self::Peek,
        }
    }
}

impl Operation {
    pub(super) const fn effect(self) -> Effect {
        match self {
            Self::Peek => Effect::Reads,
            Self::Charge | Self::ChargePart | Self::Refund | Self::GiveBack => Effect::Writes,
        }
    }

    const fn code(self) -> u8 {
        match self {
            Self::Charge => 0,
            Self::Peek => 1,
            Self::Refund => 2,
            Self::GiveBack => 3,
            Self::ChargePart => 4,
        }
    }

    const fn takes(self) -> bool {
        matches!(self, Self::Charge | Self::ChargePart)
    }
}

/// An instant as a script argument in text; −1 is the server's clock.
pub(super) fn now_arg(now: Option<Micros>) -> String {
    now.map_or_else(|| "-1".to_owned(), |now| now.0.to_string())
}

/// A limit as the script reads it.
pub(super) type Limit = ArrayVec<u8, LIMIT_BYTES_MAX>;

/// One bucket of a decision, ready to be sent.
#[derive(Clone)]
pub(super) struct Bucket {
    pub(super) key: String,
    pub(super) limit: Limit,
    on_exceed: OnExceed,
    cost: u64,
    spec: BucketSpec,
    from: CountsFrom,
    /// When the charge was made, if it is given back.
    taken_at: Option<Micros>,
}

impl Bucket {
    pub(super) fn new(key: String, charge: &Charge<'_>) -> Self {
        Self {
            key,
            limit: limit(charge),
            on_exceed: charge.on_exceed,
            cost: charge.cost,
            spec: *charge.spec,
            from: charge.from,
            taken_at: None,
        }
    }

    pub(super) const fn taken_at(mut self, at: Option<Micros>) -> Self {
        self.taken_at = at;
        self
    }
}

fn limit(charge: &Charge<'_>) -> Limit {
    let algorithm = match charge.spec.algorithm() {
        Algorithm::SlidingLog => 0,
        Algorithm::SlidingWheel => 1,
        Algorithm::TokenBucket => 2,
        Algorithm::FixedWindow => 3,
    };
    let on_exceed = match charge.on_exceed {
        OnExceed::Deny => 0,
        OnExceed::Report => 1,
        OnExceed::Count => 2,
        OnExceed::Overdraft => 3,
    };
    let window = match charge.spec.window() {
        Window::Span(span) => exact(Micros(span)),
        Window::Month => 0.0,
        Window::Year => -1.0,
    };
    let from = match charge.from {
        CountsFrom::Now => None,
        // One more, so that it is below zero even for now.
        CountsFrom::Ago(us) => Some(-exact(Micros(us)) - 1.0),
        CountsFrom::Instant(at) => Some(exact(at)),
    };
    let flag = from.map_or(0, |_| COUNTS_FROM);
    let mut bytes = Limit::new();
    bytes.push(algorithm + 4 * on_exceed + flag);
    bytes.extend(figure(charge.spec.limit()));
    bytes.extend(figure(charge.spec.capacity()));
    bytes.extend(window.to_le_bytes());
    bytes.extend(from.into_iter().flat_map(f64::to_le_bytes));
    bytes
}

/// A figure or a cost as the script reads it.
fn figure(value: u64) -> [u8; FIGURE_BYTES] {
    let [a, b, c, d, e, f, ..] = value.min(COUNT_MAX).to_le_bytes();
    [a, b, c, d, e, f]
}

/// A record that is written with a decision, which changes nothing without it.
#[derive(Clone)]
pub(super) struct MarkWrite {
    /// Key of the record, in the slot of the decision's buckets.
    pub(super) key: String,
    pub(super) expect: u64,
    pub(super) bytes: Vec<u8>,
    pub(super) expires_at: Micros,
}

impl MarkWrite {
    fn write(self, bytes: &mut Vec<u8>, place: u16) {
        bytes.extend(place.to_le_bytes());
        bytes.extend(exact(Micros(self.expect)).to_le_bytes());
        bytes.extend(exact(self.expires_at.min(AT_MAX)).to_le_bytes());
        let length = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        bytes.extend(length.to_le_bytes());
        bytes.extend(self.bytes);
    }
}

/// A decision, ready to be sent.
pub(super) struct Decision {
    pub(super) operation: Operation,
    pub(super) buckets: Vec<Bucket>,
    mark: Option<MarkWrite>,
    /// The caller's instant, instead of the server's clock.
    pub(super) now: Option<Micros>,
}

impl Decision {
    /// # Errors
    /// [`StoreError::Exhausted`] for more buckets than a decision may have.
    pub(super) fn new(
        operation: Operation,
        buckets: Vec<Bucket>,
        now: Option<Micros>,
    ) -> Result<Self, StoreError> {
        if buckets.len() > CHARGES_MAX {
            let message = format!("more than {CHARGES_MAX} buckets in one decision");
            return Err(StoreError::Exhausted(message));
        }
        Ok(Self {
            operation,
            buckets,
            mark: None,
            now,
        })
    }

    /// This decision, made only together with a mark.
    pub(super) fn marked(mut self, mark: MarkWrite) -> Self {
        self.mark = Some(mark);
        self
    }

    /// Appends the decision in the form that the script reads; `place` returns the positions of a
    /// key and of a bucket's limit, from 1. The result says how to read the answer.
    pub(super) fn write(
        self,
        bytes: &mut Vec<u8>,
        mut place: impl FnMut(String, Option<Limit>) -> (u16, u16),
    ) -> Expected {
        let count = self.buckets.len();
        bytes.reserve(2 + 8 + 2 * ASKED_BYTES * count);
        let flag = self.now.map_or(0, |_| AT_AN_INSTANT) + self.mark.as_ref().map_or(0, |_| MARKED);
        // It fits in a byte: `new` has checked that.
        bytes.extend([
            self.operation.code() + flag,
            u8::try_from(count).unwrap_or(u8::MAX),
        ]);
        bytes.extend(
            self.now
                .into_iter()
                .flat_map(|now| exact(now).to_le_bytes()),
        );
        if let Some(mut mark) = self.mark {
            let (key, _) = place(std::mem::take(&mut mark.key), None);
            mark.write(bytes, key);
        }
        let gives_back = self.operation == Operation::GiveBack;
        let instants = self.buckets.iter().filter(|_| gives_back);
        let instants: Vec<u8> = instants
            .flat_map(|bucket| bucket.taken_at.map_or(CHARGED_INSTEAD, exact).to_le_bytes())
            .collect();
        for bucket in self.buckets {
            let (key, limit) = place(bucket.key, Some(bucket.limit));
            bytes.extend(key.to_le_bytes());
            bytes.extend(limit.to_le_bytes());
            bytes.extend(figure(bucket.cost));
        }
        bytes.extend(instants);
        Expected {
            count,
            now: self.now,
        }
    }
}

/// Expected form of the answer to a decision.
#[derive(Clone, Copy)]
pub(super) struct Expected {
    count: usize,
    now: Option<Micros>,
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a double holds every instant until the year 2255"
)]
const fn exact(at: Micros) -> f64 {
    at.0 as f64
}

/// One bucket in the script's answer.
#[derive(Clone, Debug)]
struct Found {
    state: State,
    wait: Option<Micros>,
    shown: Shown,
}

/// State of a bucket that an answer shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    /// Before a charge, or after a refund.
    Found,
    /// After a charge that took.
    Taken,
}

/// A decision as the script made it.
#[derive(Clone, Debug)]
pub(super) struct Decided {
    pub(super) now: Micros,
    pub(super) admitted: bool,
    /// Whether the decision's mark was there before, so that nothing was changed.
    pub(super) is_repeated: bool,
    pub(super) rebuilt: u32,
    found: Vec<Found>,
}

/// The answers of one call, read one after the other.
pub(super) struct Answers<'b> {
    /// Clock that the call's decisions were judged by.
    clock: Micros,
    rest: &'b [u8],
}

impl<'b> Answers<'b> {
    pub(super) fn new(bytes: &'b [u8]) -> Result<Self, StoreError> {
        let clock = number(bytes, 0).and_then(whole);
        let clock = clock.map(Micros).ok_or_else(|| misread("charge"))?;
        let rest = &bytes[CLOCK_BYTES..];
        Ok(Self { clock, rest })
    }

    /// The answer to the next decision.
    pub(super) fn next(&mut self, expected: Expected) -> Result<Decided, StoreError> {
        self.read(expected).ok_or_else(|| misread("charge"))
    }

    fn read(&mut self, expected: Expected) -> Option<Decided> {
        let (header, mut rest) = self.rest.split_at_checked(2)?;
        let mut found = Vec::with_capacity(expected.count);
        for _ in 0..expected.count {
            let (bucket, after) = rest.split_at_checked(bucket_bytes(*rest.first()?)?)?;
            found.push(read_bucket(bucket)?);
            rest = after;
        }
        self.rest = rest;
        Some(Decided {
            now: expected.now.unwrap_or(self.clock),
            admitted: header[0] == 1,
            is_repeated: header[0] == 2,
            rebuilt: u32::from(header[1]),
            found,
        })
    }

    /// Fails if bytes are left over.
    pub(super) fn end(&self) -> Result<(), StoreError> {
        match self.rest.is_empty() {
            true => Ok(()),
            false => Err(misread("charge")),
        }
    }
}

const fn bucket_bytes(tag: u8) -> Option<usize> {
    match tag {
        IN_FULL => Some(IN_FULL_BYTES),
        TOKENS => Some(11),
        WINDOW => Some(15),
        // Six bytes of hits in each entry, the newest included.
        HITS_MIN.. if tag % 16 == 6 => Some(21),
        HITS_MIN.. => Some(19),
        _ => None,
    }
}

fn read_bucket(bytes: &[u8]) -> Option<Found> {
    let state = match *bytes.first()? {
        IN_FULL => return read_in_full(bytes),
        TOKENS => gcra(small(bytes, 2, 7)?, small(bytes, 9, 2)?)?,
        WINDOW => State::Fixed {
            start: Micros(small(bytes, 2, 7)?),
            count: small(bytes, 9, 6)?,
        },
        _ => State::Hits(hits(small(bytes, 2, 6)?, Micros(small(bytes, 8, 7)?))),
    };
    Some(Found {
        state,
        wait: None,
        shown: Shown::Taken,
    })
}

fn read_in_full(bytes: &[u8]) -> Option<Found> {
    let (a, b) = (whole(number(bytes, 2)?)?, whole(number(bytes, 10)?)?);
    let state = match bytes.get(1)? {
        0 => State::Empty,
        1 => State::Hits(hits(a, Micros(b))),
        2 => gcra(a, b)?,
        3 => State::Fixed {
            start: Micros(a),
            count: b,
        },
        _ => return None,
    };
    let wait = match number(bytes, 18)? {
        -1.0 => None,
        -2.0 => Some(Micros(u64::MAX)),
        at => Some(Micros(whole(at)?)),
    };
    Some(Found {
        state,
        wait,
        shown: Shown::Found,
    })
}

fn gcra(us: u64, ticks: u64) -> Option<State> {
    Some(State::Gcra(us.checked_mul(4096)?.checked_add(ticks)?))
}

/// A little-endian number of `count` bytes.
fn small(bytes: &[u8], at: usize, count: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + count)?;
    let sum = bytes.iter().rev();
    Some(sum.fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}

/// Hits that read like the real ones: the same number, and the same newest instant.
fn hits(total: u64, newest: Micros) -> Hits {
    Hits::from_entries([(newest, total)])
}

fn number(bytes: &[u8], at: usize) -> Option<f64> {
    let bytes = bytes.get(at..at + 8)?;
    Some(f64::from_le_bytes(bytes.try_into().ok()?))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked to be a whole number that a double holds exactly"
)]
fn whole(number: f64) -> Option<u64> {
    let exact = (0.0..=9_007_199_254_740_992.0).contains(&number) && number.fract() == 0.0;
    exact.then_some(number as u64)
}

impl Decided {
    /// Whether the decision was not made, because its mark could not be written.
    pub(super) const fn is_conflict(&self) -> bool {
        !self.admitted && !self.is_repeated
    }

    /// Readings of the buckets after `operation`, where the decision as a whole was `admitted` or
    /// not.
    pub(super) fn readings<'c, 'p: 'c>(
        &self,
        charges: impl Iterator<Item = &'c Charge<'p>>,
        operation: Operation,
        admitted: bool,
    ) -> BucketReadings {
        let takes = admitted && operation.takes();
        charges
            .zip(&self.found)
            .map(|(charge, found)| {
                let is_due = found.shown == Shown::Found && found.is_taken(charge.on_exceed);
                let read = match takes && is_due {
                    true => {
                        let mut state = found.state.clone();
                        charge.take(&mut state, self.now);
                        charge.spec.read(&state, self.now, charge.cost)
                    }
                    false => charge.spec.read(&found.state, self.now, charge.cost),
                };
                Reading {
                    retry_at: found.wait,
                    ..read
                }
            })
            .collect()
    }

    /// Those of `buckets` that took something, if all were admitted, with their instant. Of a
    /// bucket that occurs twice, the last occurrence has the cost of both.
    pub(super) fn taken(&self, buckets: &[Bucket]) -> Vec<Bucket> {
        let mut taken: Vec<Bucket> = Vec::with_capacity(buckets.len());
        for (bucket, found) in buckets.iter().zip(&self.found) {
            if found.is_taken(bucket.on_exceed) {
                taken.retain(|earlier| earlier.key != bucket.key);
                let cost = bucket.spec.taken_of(&found.state, self.now, bucket.cost);
                let bucket = Bucket {
                    cost,
                    ..bucket.clone()
                };
                let at = bucket.spec.counted_at(self.now, bucket.from);
                taken.push(bucket.taken_at(Some(at)));
            }
        }
        taken
    }

    /// The decision in the engine's form.
    pub(super) fn charged(&self, charges: &[Charge<'_>], operation: Operation) -> ChargeReadings {
        ChargeReadings {
            now: self.now,
            admitted: self.admitted,
            readings: self.readings(charges.iter(), operation, self.admitted),
            rebuilt: self.rebuilt,
            instants: Vec::new(),
        }
    }
}

impl Found {
    fn is_taken(&self, on_exceed: OnExceed) -> bool {
        self.wait.is_none() || on_exceed == OnExceed::Count
    }
}
