//! Challenges: issued without remembering anything, verified here or by a provider, and exchanged
//! for passes whose uses are counted in the store (C-API, C-BUYS).
//!
//! [`issue`] makes them, [`verify`] judges solutions, [`spend`] takes a use of a pass, [`offer`]
//! puts a challenge into the answers of the guard. Limits that admit more after a challenge are in
//! `limits/challenge.rs`.

mod issue;
mod offer;
mod provider;
mod spend;
mod verify;

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use arrayvec::ArrayVec;
use palisade_core::challenge::{ChallengeFlow, ChallengeKind, ChallengeRefusal};
use palisade_core::key::{Prefix, SegmentKind};
use palisade_core::limit::{Algorithm, BucketSpec, CountsFrom, Window};
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::policy::{Accuracy, Dimension, Limit, LimitDef};
use palisade_core::time::{MINUTE, retry_after_seconds};
use palisade_store::Take;

use super::Engine;

pub use issue::IssueOutcome;
pub use provider::{ChallengeProvider, PROVIDER_DEADLINE, ProviderQuery, ProviderUnavailable};
pub(in crate::engine) use spend::OpenPass;
pub use verify::ChallengeOutcome;

/// State of challenges on this node.
#[derive(Default)]
pub(super) struct Challenges {
    provider: OnceLock<std::sync::Arc<dyn ChallengeProvider>>,
    /// Instant until which the provider counts as failing, in microseconds; zero while it answers.
    provider_fails_until: AtomicU64,
}

/// A step in the life of a challenge, for metrics and the audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChallengeEvent {
    /// The step.
    pub step: ChallengeStep,
    /// Kind of the challenge; of a pass the kind that the policy names now.
    pub kind: ChallengeKind,
    /// The flow.
    pub flow: ChallengeFlow,
}

/// Steps in the life of a challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChallengeStep {
    /// It was issued.
    Issued,
    /// It was passed.
    Passed,
    /// A solution was refused.
    Refused(ChallengeRefusal),
    /// A use of a token or a pass was taken.
    Spent,
    /// A token or a pass was refused.
    PassRefused(ChallengeRefusal),
    /// The address has had its share of this minute.
    Limited,
}

impl ChallengeStep {
    /// Name of the step in metric labels.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Issued => "issued",
            Self::Passed => "passed",
            Self::Refused(reason) => reason.name(),
            Self::Spent => "spent",
            Self::PassRefused(_) => "pass_refused",
            Self::Limited => "limited",
        }
    }
}

impl Engine {
    fn note_challenge(&self, step: ChallengeStep, kind: ChallengeKind, flow: ChallengeFlow) {
        self.observer()
            .challenge(&ChallengeEvent { step, kind, flow });
    }

    /// Takes one of a prefix's `per_minute` for `what` on this node; the wait in seconds if there
    /// is none left. The count stays in the process: it holds in an outage, and precedes every
    /// call of a store or a provider.
    fn limit_prefix(&self, what: &'static str, ip: IpAddr, per_minute: u32) -> Result<(), u64> {
        let Some(limit) = per_prefix(what, per_minute) else {
            return Ok(());
        };
        let segment = self
            .keyring
            .segment(SegmentKind::Ip, &[Prefix::of(ip).bytes()]);
        let charge = Charge {
            limit: &limit,
            spec: &limit.def.spec,
            id: self.keyring.combine(limit.digest, &[segment]),
            segments: ArrayVec::from_iter([segment]),
            previous: None,
            cost: 1,
            on_exceed: OnExceed::Deny,
            from: CountsFrom::Now,
        };
        let charged = self
            .counters
            .process
            .charge_now(std::slice::from_ref(&charge), Take::Consume);
        let denied = charged.readings.first().and_then(|one| one.retry_at);
        match denied.filter(|_| !charged.admitted) {
            Some(at) => Err(retry_after_seconds(at.since(charged.now))),
            None => Ok(()),
        }
    }
}

fn per_prefix(what: &str, per_minute: u32) -> Option<Limit> {
    let window = Window::Span(MINUTE);
    let most = NonZeroU32::new(per_minute)?;
    let spec = BucketSpec::new(Algorithm::TokenBucket, most, window, None).ok()?;
    let mut def = LimitDef::new(what, vec![Dimension::Ip], spec);
    def.accuracy = Accuracy::Local;
    Some(Limit::bind(def))
}
