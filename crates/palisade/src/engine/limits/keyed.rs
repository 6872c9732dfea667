//! Buckets that a caller names and figures itself: one token bucket a decision, no policy.
//!
//! A bucket is named after its key alone. Figures may change from one call to the next, and
//! what was used stays used: the arrival time of a token bucket means the same under any.

use std::num::NonZeroU32;

use arrayvec::ArrayVec;
use palisade_core::decision::Mode;
use palisade_core::failure::{AffectedRequest, Caller, FallbackRule, Share};
use palisade_core::key::SegmentKind;
use palisade_core::limit::{Algorithm, BucketSpec, CountsFrom, Reading, State, Window};
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::policy::{ClassKind, Dimension, Limit, LimitDef, OnStoreFailure, WhenProlonged};
use palisade_core::time::{Micros, SECOND};
use palisade_store::{ChargeReadings, StoreError, Take};
use smallvec::SmallVec;
use tokio::time::Instant;

use super::super::Engine;

/// Most decisions of one call.
pub const KEYED_MAX: usize = 32;

/// Without a pipeline a call decides on one bucket.
const ALONE: usize = 1;

/// One bucket, and what is asked of it.
#[derive(Clone, Copy, Debug)]
pub struct Keyed<'a> {
    /// The bucket's name. Only its digest is kept.
    pub key: &'a [u8],
    /// The figures of the bucket.
    pub spec: BucketSpec,
    /// The cost to take.
    pub cost: u64,
    /// Whether the cost is taken, or only looked at.
    pub take: Take,
}

/// The answer of one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyedAnswer {
    /// Whether the cost fits; it was then taken.
    pub admitted: bool,
    /// The bucket after the charge.
    pub reading: Reading,
    /// The instant of the charge, by the clock of the counter.
    pub now: Micros,
    /// Whether the store answered.
    pub mode: Mode,
}

impl KeyedAnswer {
    fn of(charged: &ChargeReadings, mode: Mode) -> Option<Self> {
        Some(Self {
            admitted: charged.admitted,
            reading: *charged.readings.first()?,
            now: charged.now,
            mode,
        })
    }

    /// The answer while the kill switch is on: nothing is used.
    fn free(asked: &Keyed<'_>, now: Micros) -> Self {
        let reading = asked.spec.read(&State::Empty, now, asked.cost);
        Self {
            admitted: true,
            reading: Reading {
                retry_at: None,
                ..reading
            },
            now,
            mode: Mode::Normal,
        }
    }

    /// A refusal until `wait_us` from now.
    fn closed(asked: &Keyed<'_>, now: Micros, wait_us: u64) -> Self {
        let until = now.plus(wait_us);
        Self {
            admitted: false,
            reading: Reading {
                used: asked.spec.capacity(),
                remaining: 0,
                reset_at: until,
                retry_at: Some(until),
            },
            now,
            mode: Mode::FailClosed,
        }
    }
}

impl Engine {
    /// Decides on each bucket by itself, in this order: a later one finds what an earlier
    /// one left. Up to [`KEYED_MAX`] travel to the store in one call.
    ///
    /// No policy has a say, only the kill switch. While the store cannot be asked, each
    /// bucket is counted here as those of an auth class are: what the key protects is
    /// not known (F-FALLBACK).
    pub async fn check_keyed(&self, asked: &[Keyed<'_>]) -> Vec<KeyedAnswer> {
        let mut answers = Vec::with_capacity(asked.len());
        if !self.policy.load().enabled {
            let now = self.now();
            answers.extend(asked.iter().map(|one| KeyedAnswer::free(one, now)));
            return answers;
        }
        let ends = self.link.request_ends();
        for run in asked.chunk_by(|one, next| one.take == next.take) {
            for part in run.chunks(KEYED_MAX) {
                self.check_part(part, ends, &mut answers).await;
            }
        }
        self.link.observer().keyed(&answers);
        answers
    }

    /// Forgets what `key` has used. No node remembers anything of such a bucket, so that
    /// it holds everywhere at once.
    ///
    /// # Errors
    /// The store's.
    pub async fn reset_keyed(&self, key: &[u8]) -> Result<(), StoreError> {
        let spec = self.keyed.def.spec;
        let charge = self.keyed_charge(key, &spec, 1);
        self.reset_charges(std::slice::from_ref(&charge)).await?;
        Ok(())
    }

    fn keyed_charge<'p>(&'p self, key: &[u8], spec: &'p BucketSpec, cost: u64) -> Charge<'p> {
        let limit = &self.keyed;
        let segment = self.keyring.segment(SegmentKind::Descriptor, &[key]);
        let previous = self.keyring.previous().map(|previous| {
            let segment = previous.segment(SegmentKind::Descriptor, &[key]);
            Box::new(previous.bucket(limit.digest, ArrayVec::from_iter([segment])))
        });
        Charge {
            limit,
            spec,
            id: self.keyring.combine(limit.digest, &[segment]),
            segments: ArrayVec::from_iter([segment]),
            previous,
            cost,
            on_exceed: OnExceed::Deny,
            from: CountsFrom::Now,
        }
    }

    /// At most [`KEYED_MAX`] decisions, which all take or all look.
    async fn check_part(&self, part: &[Keyed<'_>], ends: Instant, answers: &mut Vec<KeyedAnswer>) {
        let Some(Keyed { take, .. }) = part.first() else {
            return;
        };
        let charges: SmallVec<[Charge<'_>; ALONE]> = part
            .iter()
            .map(|one| self.keyed_charge(one.key, &one.spec, one.cost))
            .collect();
        let charged = match self.counters.store.charge_each(&charges, *take, ends).await {
            Ok(charged) => charged,
            Err(no_answer) if self.counters.is_conflict(&no_answer) => {
                let now = self.now();
                let refused = part.iter().map(|one| KeyedAnswer::closed(one, now, SECOND));
                return answers.extend(refused);
            }
            Err(_) => Vec::new(),
        };
        let found = charged.iter().map(|one| KeyedAnswer::of(one, Mode::Normal));
        let found = found.chain(std::iter::repeat(None)).zip(part);
        answers.extend(found.map(|(found, one)| found.unwrap_or_else(|| self.without_store(one))));
    }

    /// The answer of this node's own counters, or a refusal where those may not speak.
    fn without_store(&self, asked: &Keyed<'_>) -> KeyedAnswer {
        let now = self.now();
        let affected = AffectedRequest {
            class: ClassKind::Auth,
            prolonged: WhenProlonged::Local,
            method: "",
            path: "",
            caller: Caller::Anonymous,
            limits: OnStoreFailure::Fallback,
        };
        let rule = self.link.modes().fallback(affected, now);
        let counted = match rule {
            FallbackRule::Share(share) => self.count_here(asked, share),
            _ => None,
        };
        counted.unwrap_or_else(|| {
            let wait = self.link.modes().closed(now).retry_after.unwrap_or(1);
            KeyedAnswer::closed(asked, now, wait.saturating_mul(SECOND))
        })
    }

    /// A cost that fits the bucket but not its share takes the whole share.
    fn count_here(&self, asked: &Keyed<'_>, share: Share) -> Option<KeyedAnswer> {
        let spec = share.of_spec(&asked.spec, asked.cost);
        let cost = match asked.cost > asked.spec.capacity() {
            true => asked.cost,
            false => asked.cost.min(spec.capacity()),
        };
        let charge = self.keyed_charge(asked.key, &spec, cost);
        let outcome = self.counters.charge_here(vec![charge], asked.take);
        KeyedAnswer::of(&outcome.charged, Mode::Degraded)
    }
}

/// The limit that all such buckets belong to. Names of a policy have no space: it is apart
/// from them. Its own figures count for nothing.
#[expect(
    clippy::expect_used,
    reason = "one a second is a valid figure, which a test builds"
)]
pub(in crate::engine) fn limit() -> Limit {
    let by = vec![Dimension::Descriptor("key".into())];
    let window = Window::Span(SECOND);
    let spec = BucketSpec::new(Algorithm::TokenBucket, NonZeroU32::MIN, window, None);
    Limit::bind(LimitDef::new("by key", by, spec.expect("a valid figure")))
}
