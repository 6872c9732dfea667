//! Thresholds of limits (B-WARN): operators are told once for each bucket, share and window, over
//! all nodes, that a share of the limit is used.
//!
//! A request notes the shares that its buckets have reached, which costs a look into a small map.
//! Whether another node was first is found out beside the requests: by charging a bucket for one in
//! the store that is named after the bucket and the share and has the limit's own window.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;
use palisade_core::decision::{Decision, LimitReading, Mode, ThresholdWarning};
use palisade_core::key::{Digest, Segment, SegmentKind};
use palisade_core::limit::{Algorithm, BucketSpec, CountsFrom};
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::policy::{Dimension, Limit, LimitDef, PolicySet};
use palisade_core::time::{Micros, SECOND};
use palisade_store::{StoreError, Take};
use parking_lot::Mutex;

use super::{Engine, Subject};
use crate::observe::subject_of;

/// Names of a policy have no space: no limit has this one.
const NAME: &str = "reached threshold";
/// Most thresholds that wait for the store; further ones are noted again by later requests.
const WAITING_MAX: usize = 1_000;
/// Most thresholds that a node remembers to be told. Beyond that the store is asked again.
const KNOWN_MAX: usize = 10_000;
/// Interval between looks whether a threshold waits.
const EVERY: Duration = Duration::from_millis(500);

/// A share of a limit that a bucket has reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReachedThreshold {
    /// The limit's name.
    pub limit: Arc<str>,
    /// The unit that it counts.
    pub unit: Arc<str>,
    /// The share, in thousandths.
    pub share_permille: u16,
    /// Used units.
    pub used: u64,
    /// The limit.
    pub capacity: u64,
    /// The kind of subject, for example `org`.
    pub kind: &'static str,
    /// The subject's digest; the bucket's where the subject is no one caller, or not known any
    /// more.
    pub subject: Digest,
    /// The bucket's digest.
    pub bucket: Digest,
    /// When it was noticed.
    pub at: Micros,
}

impl ReachedThreshold {
    /// The share as it is written in a policy, for example `0.8`.
    #[must_use]
    pub fn share(&self) -> String {
        (f64::from(self.share_permille) / 1000.0).to_string()
    }
}

/// A threshold of which the store has to say whether it was told before.
struct Untold {
    reached: ReachedThreshold,
    limit: Limit,
}

#[derive(Default)]
struct ThresholdQueue {
    waiting: VecDeque<Untold>,
    /// Bucket and share, and until when they are not told again.
    known: HashMap<(Digest, u16), Micros>,
}

/// The thresholds that this node has noticed.
#[derive(Default)]
pub(super) struct Thresholds(Mutex<ThresholdQueue>);

impl Thresholds {
    fn note(&self, untold: Untold, until: Micros, now: Micros) {
        let key = (untold.reached.bucket, untold.reached.share_permille);
        let mut noted = self.0.lock();
        if noted.known.get(&key).is_some_and(|until| *until > now) {
            return;
        }
        if noted.waiting.len() >= WAITING_MAX {
            return;
        }
        if noted.known.len() >= KNOWN_MAX {
            noted.known.retain(|_, until| *until > now);
        }
        if noted.known.len() < KNOWN_MAX {
            noted.known.insert(key, until);
        }
        noted.waiting.push_back(untold);
    }

    fn next(&self) -> Option<Untold> {
        self.0.lock().waiting.pop_front()
    }

    fn put_back(&self, untold: Untold) {
        self.0.lock().waiting.push_front(untold);
    }
}

/// The highest threshold that each of these buckets has reached.
pub(super) fn warnings(
    policy: &PolicySet,
    readings: &[LimitReading],
) -> Option<Box<[ThresholdWarning]>> {
    if !policy.has_thresholds() {
        return None;
    }
    let highest = |reading: &LimitReading| {
        let limit = policy.limit(&reading.name)?;
        let share_permille = reached(limit, reading).last()?;
        Some(ThresholdWarning {
            limit: Arc::clone(&reading.name),
            share_permille,
        })
    };
    let all: Box<[ThresholdWarning]> = readings.iter().filter_map(highest).collect();
    (!all.is_empty()).then_some(all)
}

/// The thresholds of a limit that a bucket has reached.
fn reached(limit: &Limit, reading: &LimitReading) -> impl DoubleEndedIterator<Item = u16> {
    let used = u128::from(used(reading)) * 1000;
    let capacity = u128::from(reading.limit);
    let shares = limit.def.warn_at.iter().copied();
    shares.filter(move |share| used >= capacity * u128::from(*share))
}

const fn used(reading: &LimitReading) -> u64 {
    reading.limit.saturating_sub(reading.remaining)
}

/// The bucket for one that says whether a threshold of a limit was told in this window.
fn mark_of(limit: &Limit) -> Option<Limit> {
    let spec = &limit.def.spec;
    let algorithm = match spec.algorithm() {
        Algorithm::FixedWindow => Algorithm::FixedWindow,
        Algorithm::SlidingLog | Algorithm::SlidingWheel | Algorithm::TokenBucket => {
            Algorithm::SlidingLog
        }
    };
    let spec = BucketSpec::new(algorithm, NonZeroU32::MIN, spec.window(), None).ok()?;
    let mut def = LimitDef::new(NAME, vec![Dimension::Descriptor(NAME.into())], spec);
    def.family = limit.family;
    Some(Limit::bind(def))
}

impl Engine {
    /// Notes the thresholds that the buckets of a decision have reached.
    pub(super) fn note_thresholds(
        &self,
        policy: &PolicySet,
        decision: &Decision,
        subject: Option<Subject<'_>>,
    ) {
        // Counters of an outage are this node's own: they say nothing about the whole.
        if decision.warnings.is_none() || decision.mode != Mode::Normal {
            return;
        }
        for reading in &decision.limits {
            self.note_reading(policy, reading, subject);
        }
    }

    /// Notes the thresholds that one bucket has reached.
    pub(super) fn note_reading(
        &self,
        policy: &PolicySet,
        reading: &LimitReading,
        subject: Option<Subject<'_>>,
    ) {
        let Some(limit) = policy.limit(&reading.name) else {
            return;
        };
        let now = self.now();
        let until = match limit.def.spec.algorithm() {
            Algorithm::FixedWindow => Micros(reading.reset.saturating_mul(SECOND)),
            _ => now.plus(limit.def.spec.window_us()),
        };
        for share_permille in reached(limit, reading) {
            let Some(mark) = mark_of(limit) else { return };
            let named = subject.and_then(|one| subject_of(&self.keyring, one, reading.scope));
            let (kind, digest) = named.unwrap_or((reading.scope, reading.partition));
            let reached = ReachedThreshold {
                limit: Arc::clone(&reading.name),
                unit: limit.def.unit.name().into(),
                share_permille,
                used: used(reading),
                capacity: reading.limit,
                kind,
                subject: digest,
                bucket: reading.partition,
                at: now,
            };
            let untold = Untold {
                reached,
                limit: mark,
            };
            self.thresholds.note(untold, until, now);
        }
    }

    /// Tells of the thresholds that were reached, for as long as it is polled.
    pub(super) async fn tell_thresholds_forever(&self) {
        loop {
            tokio::time::sleep(EVERY).await;
            self.tell_thresholds().await;
        }
    }

    /// Tells of the thresholds that no node has told of yet, until the store does not answer.
    pub async fn tell_thresholds(&self) {
        while let Some(untold) = self.thresholds.next() {
            match self.is_first(&untold).await {
                Ok(true) => self.observer().threshold(&untold.reached),
                Ok(false) => {}
                Err(_) => return self.thresholds.put_back(untold),
            }
        }
    }

    /// True if no node has told of this threshold in its window.
    async fn is_first(&self, untold: &Untold) -> Result<bool, StoreError> {
        let share = u128::from(untold.reached.share_permille);
        // Buckets' digests are keyed already; shares differ in their lowest bits.
        let id = Digest(untold.reached.bucket.0.rotate_left(1) ^ share);
        let segment = Segment {
            kind: SegmentKind::Descriptor,
            digest: id,
        };
        let charge = [Charge {
            limit: &untold.limit,
            spec: &untold.limit.def.spec,
            id,
            segments: ArrayVec::from_iter([segment]),
            previous: None,
            cost: 1,
            on_exceed: OnExceed::Deny,
            from: CountsFrom::Now,
        }];
        let charged = self
            .link
            .attend(|store| store.charge(&charge, Take::Consume));
        Ok(charged.await?.admitted)
    }
}
