//! A candidate policy: evaluated beside the live one on the same facts, with counters of its own
//! and without effect on any answer (L-CANDIDATE).
//!
//! Its counters live in this process, so the candidate never calls, waits for or fails with the
//! shared store; a decision costs only the time to compute it. Changes by operators (allowlist,
//! tiers, resets, lifted blocks, sessions) apply to both policies.

mod counterparts;
mod reservations;
mod tally;
mod verdict;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use palisade_core::Id;
use palisade_core::budget::Reservation;
use palisade_core::decision::Decision;
use palisade_core::facts::{DescriptorFacts, GuardFacts, GuardOp, RequestFacts};
use palisade_core::policy::TenantPolicy;
use palisade_core::time::{Clock, Micros};
use palisade_policy::{CandidateBundle, FileTenants};
use palisade_store::memory::{MemoryConfig, MemoryStore};
use palisade_store::{Take, Vitals};

use super::ports::Tenants;
use super::{
    DescriptorAnswer, Engine, EngineConfig, LiftSubject, LiftTarget, ResetSelector, Score, Subject,
};
use counterparts::Counterparts;
use tally::Tally;

pub use tally::{CandidateReport, CauseCounts, ComparisonCounts, FirstDifference};
pub use verdict::{CandidateAnswer, Cause, Comparison};

/// Deadline of the candidate's guard commands. The store is in memory, so a command waits only for
/// another one on the same record.
const DEADLINE: Duration = Duration::from_millis(10);

/// The store admits one guard record and one receipt for every ten buckets, since both take more
/// memory than a bucket.
const KEYS_PER_RECORD: u64 = 10;

/// One comparison of the candidate's decision with the live one.
#[derive(Clone, Copy, Debug)]
pub struct CandidateSeen<'a> {
    /// The request, call or guard command that both decided.
    pub subject: Subject<'a>,
    /// The kind of difference, if there is one.
    pub verdict: Comparison,
    /// The decision that was answered.
    pub live: &'a Decision,
    /// The decision that the candidate would have answered.
    pub candidate: &'a Decision,
}

/// The live engine's clock. It needs a named type: the compiler cannot prove that a future which
/// borrows from a bare `dyn Clock` is `Send`.
struct Time(Arc<dyn Clock>);

impl Clock for Time {
    fn now(&self) -> Micros {
        self.0.now()
    }

    fn wall(&self) -> Micros {
        self.0.wall()
    }
}

/// A candidate's decision in progress. It is boxed and made by non-generic functions, so that
/// futures of the live engine do not grow by the state of a second decision, which most engines
/// never take, and so that this code is compiled once.
type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The candidate policy of an engine: its own engine, its receipts and the comparison so far.
pub(super) struct Candidate {
    engine: Engine,
    tenants: Arc<CandidateTenants>,
    receipts: Counterparts<Box<str>>,
    reservations: Counterparts<Reservation>,
    tally: Tally,
    keys_max: u64,
    shows_header: AtomicBool,
}

/// The tenants of the candidate's own file or, if tenants come from elsewhere, those of the live
/// policy.
struct CandidateTenants {
    own: ArcSwapOption<FileTenants>,
    live: Arc<dyn Tenants>,
}

impl Tenants for CandidateTenants {
    fn find(&self, org: &str) -> Option<Arc<TenantPolicy>> {
        match &*self.own.load() {
            Some(own) => own.find(org),
            None => self.live.find(org),
        }
    }
}

impl Candidate {
    fn new(live: &Engine, bundle: &CandidateBundle) -> Self {
        let tenants = Arc::new(CandidateTenants {
            own: ArcSwapOption::new(bundle.tenants.clone()),
            live: Arc::clone(&live.tenants),
        });
        let records_max = (bundle.keys_max / KEYS_PER_RECORD).max(1);
        let most = usize::try_from(records_max).unwrap_or(usize::MAX);
        let config = MemoryConfig {
            keys_max: bundle.keys_max,
            records_max,
            ..MemoryConfig::default()
        };
        let clock = Arc::clone(live.clock());
        let store = MemoryStore::new(Time(Arc::clone(&clock)), &config);
        let now = clock.now();
        let config = EngineConfig {
            policy: Arc::clone(&bundle.policy),
            deadline: DEADLINE,
            tenants: Arc::<CandidateTenants>::clone(&tenants),
            ..EngineConfig::new(
                Arc::new(store),
                palisade_core::PolicySet::empty(),
                live.keyring.clone(),
                clock,
            )
        };
        Self {
            engine: Engine::sharing(config, Arc::clone(&live.registries)),
            tenants,
            receipts: Counterparts::new(most),
            reservations: Counterparts::new(most),
            tally: Tally::new(live.policy.load().revision, &bundle.policy, now),
            keys_max: bundle.keys_max,
            shows_header: AtomicBool::new(bundle.header),
        }
    }

    /// Continues under a new candidate or live policy. The counters stay; the comparison starts
    /// anew.
    fn succeeded_by(&self, live: &Engine, bundle: &CandidateBundle) {
        self.shows_header.store(bundle.header, Ordering::Relaxed);
        self.tenants.own.store(bundle.tenants.clone());
        self.engine.set_policy(Arc::clone(&bundle.policy));
        let now = live.now();
        self.tally
            .start_anew(live.policy.load().revision, &bundle.policy, now);
    }

    /// Copies the API keys and clients that operators and the policy source have registered.
    pub(super) fn attach_registered(&self) {
        self.engine.attach_registered();
    }

    fn request<'a>(&'a self, facts: &'a RequestFacts) -> Later<'a, Decision> {
        Box::pin(async move {
            let (answer, _) = self
                .engine
                .answer(self.engine.policy(), facts, Take::Consume)
                .await;
            *answer.decision
        })
    }

    fn call<'a>(&'a self, facts: &'a DescriptorFacts<'_>) -> Later<'a, Decision> {
        Box::pin(async move {
            let answer = self.engine.answer_call(facts, Take::Consume, false).await;
            answer.decision
        })
    }

    /// Decides a guard command. `None` for facts that are not valid; the live policy has refused
    /// them as well.
    fn command<'a>(&'a self, op: GuardOp, facts: &'a GuardFacts) -> Later<'a, Option<Decision>> {
        Box::pin(async move {
            let (answer, _) = self.engine.answer_command(op, facts).await.ok()?;
            Some(*answer.decision)
        })
    }

    /// Counts the comparison and, if the decisions differ, reports it to the observer.
    fn compare(
        &self,
        live: &Engine,
        subject: Subject<'_>,
        decision: &Decision,
        would_be: &Decision,
    ) -> Option<Box<CandidateAnswer>> {
        let verdict = Comparison::of(decision, would_be);
        let seen = CandidateSeen {
            subject,
            verdict,
            live: decision,
            candidate: would_be,
        };
        self.tally.count(&live.keyring, &seen);
        if !verdict.differs() {
            return None;
        }
        live.observer().candidate_differs(&seen);
        Some(Box::new(CandidateAnswer {
            verdict,
            decision: would_be.outcome,
            cause: Cause::of(seen.refusing()),
            is_shown: self.shows_header.load(Ordering::Relaxed),
        }))
    }
}

impl CandidateSeen<'_> {
    /// The decision that refuses: the candidate's or, if the candidate newly allows, the live one.
    #[must_use]
    pub const fn refusing(&self) -> &Decision {
        match self.verdict {
            Comparison::NewlyAllowed => self.live,
            _ => self.candidate,
        }
    }
}

impl Engine {
    /// Installs a candidate policy, replaces it, or with `None` removes it. A replacement of the
    /// same size (`keys_max`) keeps the counters; the comparison always starts anew.
    pub fn set_candidate(&self, bundle: Option<&CandidateBundle>) {
        let Some(bundle) = bundle else {
            self.candidate.take_away();
            return;
        };
        match self.candidate.get() {
            Some(before) if before.keys_max == bundle.keys_max => {
                before.succeeded_by(self, bundle);
            }
            _ => {
                // The size of a store is fixed, so another size needs a new one.
                let fresh = Candidate::new(self, bundle);
                self.candidate.put(Arc::new(fresh));
            }
        }
    }

    /// The comparison of the candidate with the live policy so far; `None` without a candidate.
    pub fn candidate_report(&self) -> Option<CandidateReport> {
        let candidate = self.candidate.get()?;
        let mut stats = candidate.engine.store().stats();
        let local = candidate.engine.counters.process.stats();
        stats.tracked_keys += local.tracked_keys;
        stats.overflowed += local.overflowed;
        Some(candidate.tally.report(&stats))
    }

    /// Lets the candidate decide a request that was just answered. Returns its answer if it
    /// differs.
    pub(super) async fn beside_request(
        &self,
        facts: &RequestFacts,
        decision: &Decision,
    ) -> Option<Box<CandidateAnswer>> {
        let candidate = self.candidate.get()?;
        let mut would_be = candidate.request(facts).await;
        // If both allowed, a refund of the live charge must reach the candidate's buckets, too.
        if let (Some(live), Some(own)) = (&decision.receipt, would_be.receipt.take()) {
            candidate.receipts.note(&**live, own);
        }
        candidate.compare(self, Subject::Request(facts), decision, &would_be)
    }

    /// Lets the candidate decide a call of Envoy that was just answered. Returns its answer if it
    /// differs.
    pub(super) async fn beside_call(
        &self,
        facts: &DescriptorFacts<'_>,
        answer: &DescriptorAnswer,
    ) -> Option<Box<CandidateAnswer>> {
        let candidate = self.candidate.get()?;
        let would_be = candidate.call(facts).await;
        let subject = Subject::Descriptors(facts, &answer.statuses);
        candidate.compare(self, subject, &answer.decision, &would_be)
    }

    /// Lets the candidate decide a guard command that was just answered. Returns its answer if it
    /// differs.
    pub(super) async fn beside_command(
        &self,
        op: GuardOp,
        facts: &GuardFacts,
        decision: &Decision,
    ) -> Option<Box<CandidateAnswer>> {
        let candidate = self.candidate.get()?;
        let would_be = candidate.command(op, facts).await?;
        candidate.compare(self, Subject::Guard(op, facts), decision, &would_be)
    }

    /// The candidate's counters, for changes that apply to both policies; `None` without a
    /// candidate.
    pub(super) fn beside(&self) -> Option<Beside> {
        self.candidate.get().map(Beside)
    }
}

/// Handle through which operators' changes and refunds reach the candidate. Its store is in memory,
/// so their results are ignored.
pub(super) struct Beside(Arc<Candidate>);

impl Beside {
    /// Gives back what the candidate took for the request to which the live `receipt` belongs.
    pub(super) fn refund<'a>(&'a self, receipt: &'a str) -> Later<'a, ()> {
        Box::pin(async move {
            if let Some(own) = self.0.receipts.take(receipt) {
                let _ = self.0.engine.refund_receipt(&own).await;
            }
        })
    }

    pub(super) fn refund_facts<'a>(&'a self, facts: &'a RequestFacts) -> Later<'a, ()> {
        Box::pin(async move {
            let _ = self.0.engine.give_back_facts(facts).await;
        })
    }

    pub(super) fn add_session<'a>(&'a self, account: &'a Id, id: &'a str) -> Later<'a, ()> {
        Box::pin(async move {
            let _ = self.0.engine.add_session(account, id).await;
        })
    }

    pub(super) fn remove_sessions<'a>(
        &'a self,
        account: &'a Id,
        session: Option<&'a Id>,
    ) -> Later<'a, ()> {
        Box::pin(async move {
            let _ = self.0.engine.remove_sessions(account, session).await;
        })
    }

    pub(super) fn reset<'a>(&'a self, selectors: &'a [ResetSelector]) -> Later<'a, ()> {
        Box::pin(async move {
            let _ = self.0.engine.reset_selected(selectors).await;
        })
    }

    pub(super) fn lift<'a>(&'a self, target: &'a LiftTarget) -> Later<'a, ()> {
        Box::pin(async move {
            let _ = self.0.engine.lift(target).await;
        })
    }

    pub(super) fn lift_of<'a>(&'a self, subject: &'a LiftSubject, score: Score) -> Later<'a, ()> {
        Box::pin(async move {
            let _ = self.0.engine.lift_of(subject, score).await;
        })
    }
}

/// An instant in the format of reports.
fn shown(at: Micros) -> String {
    at.to_rfc3339()
}
