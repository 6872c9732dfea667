//! Judges: an engine with its policy, or one limiter.

use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;

use arrayvec::ArrayVec;
use palisade_core::decide::{JudgedCharges, decide_boxed};
use palisade_core::facts::{ID_BYTES_MAX, Layers};
use palisade_core::key::{Digest, Prefix};
use palisade_core::limit::CountsFrom;
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::policy::{Dimension, Limit, LimitDef};
use palisade_core::time::{Clock, Micros};
use palisade_core::{PolicySet, RequestFacts};
use palisade_store::memory::TimedReading;

use crate::SystemClock;
use crate::engine::{Engine, RequestAnswer, ReservationGuard};
use crate::limiter::Limiter;

/// Decides requests.
///
/// A [`Gate`](super::Gate) is built on one.
pub trait Judge: Send + Sync + 'static {
    /// Decides a request, under the policy that its facts were read for, and charges what it
    /// costs.
    fn check(
        &self,
        policy: &Arc<PolicySet>,
        facts: &RequestFacts,
    ) -> impl Future<Output = RequestAnswer> + Send;

    /// Whether a request with these facts is to be held until the last byte of its answer, because
    /// a limit on what is in progress applies to it (B-SLOT). It is then asked by
    /// [`Judge::hold`].
    fn takes_slots(&self, _policy: &PolicySet, _facts: &RequestFacts) -> bool {
        false
    }

    /// Decides a request like [`Judge::check`], and holds what it takes until the guard is dropped.
    fn hold(
        self: &Arc<Self>,
        policy: &Arc<PolicySet>,
        facts: &RequestFacts,
    ) -> impl Future<Output = (RequestAnswer, Option<ReservationGuard>)> + Send {
        async { (self.check(policy, facts).await, None) }
    }

    /// Whether [`Judge::check`] is ready when it is polled first: a gate then decides without
    /// a future of its own.
    fn answers_at_once(&self) -> bool {
        false
    }

    /// Returns whether the user agent can change a decision under this policy (I-BOT).
    fn asks_for_agents(&self, _policy: &PolicySet) -> bool {
        true
    }

    /// Returns whether decisions are logged, audited or traced under the request's id (I-ID): if
    /// so, the id is made before the decision.
    fn records_requests(&self) -> bool {
        true
    }

    /// Foresees a refusal before anything costly is done for the request (I-COST).
    fn foresee(&self, facts: &RequestFacts) -> impl Future<Output = Option<RequestAnswer>> + Send;

    /// The policy in force.
    fn policy(&self) -> Arc<PolicySet>;

    /// Calls `look` with the policy in force. An implementation can save the clone of
    /// [`Judge::policy`].
    fn with_policy<T>(&self, look: impl FnOnce(&Arc<PolicySet>) -> T) -> T {
        look(&self.policy())
    }

    /// The time of day.
    fn wall(&self) -> Micros;

    /// Records that a request was refused because its origin could not be believed (I-XFF).
    fn edge_refused(&self, peer: IpAddr, field: &'static str);
}

impl Judge for Engine {
    async fn check(&self, policy: &Arc<PolicySet>, facts: &RequestFacts) -> RequestAnswer {
        self.check_under(Arc::clone(policy), facts).await
    }

    fn takes_slots(&self, policy: &PolicySet, facts: &RequestFacts) -> bool {
        Self::takes_slots(self, policy, facts)
    }

    async fn hold(
        self: &Arc<Self>,
        policy: &Arc<PolicySet>,
        facts: &RequestFacts,
    ) -> (RequestAnswer, Option<ReservationGuard>) {
        match Self::hold(self, Arc::clone(policy), facts).await {
            Ok(held) => held,
            // The facts that layers read name no costs: nothing is wrong with their units.
            Err(_) => (self.check_under(Arc::clone(policy), facts).await, None),
        }
    }

    fn answers_at_once(&self) -> bool {
        Self::answers_at_once(self)
    }

    fn asks_for_agents(&self, policy: &PolicySet) -> bool {
        policy.asks_for_agents() || self.has_candidate()
    }

    async fn foresee(&self, facts: &RequestFacts) -> Option<RequestAnswer> {
        Self::foresee(self, facts).await
    }

    fn policy(&self) -> Arc<PolicySet> {
        Self::policy(self)
    }

    fn with_policy<T>(&self, look: impl FnOnce(&Arc<PolicySet>) -> T) -> T {
        Self::with_policy(self, look)
    }

    fn wall(&self) -> Micros {
        self.clock().wall()
    }

    fn edge_refused(&self, peer: IpAddr, field: &'static str) {
        self.observer()
            .edge_refused(peer, field, self.clock().now());
    }
}

/// One limit in this process. Before authentication it counts by address, after it by user, token
/// or organisation (the first that is known).
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use palisade::core::RequestFacts;
/// use palisade::tower::{Gate, Judge, OneLimit};
/// use palisade::{Limiter, Quota};
///
/// let limiter = Limiter::new(Quota::sliding(1, Duration::from_secs(60))?);
/// let judge = Arc::new(OneLimit::new("one", limiter));
/// let gate = Gate::of(Arc::clone(&judge));
/// let facts = RequestFacts::new("203.0.113.5".parse()?, "GET", "/");
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let policy = judge.policy();
/// assert_eq!(judge.check(&policy, &facts).await.decision.status, 200);
/// assert_eq!(judge.check(&policy, &facts).await.decision.status, 429);
/// # });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct OneLimit<C = SystemClock> {
    limiter: Limiter<C>,
    limit: Limit,
    class: Arc<str>,
    policy: Arc<PolicySet>,
}

impl<C: Clock> OneLimit<C> {
    /// The limit of `limiter`; `name` is its name in headers.
    #[must_use]
    pub fn new(name: &str, limiter: Limiter<C>) -> Self {
        let def = LimitDef::new(name, vec![Dimension::Ip], *limiter.spec());
        Self {
            limiter,
            limit: Limit::bind(def),
            class: name.into(),
            policy: Arc::new(PolicySet::empty()),
        }
    }

    fn answer(&self, kind: Kind, id: &[u8]) -> RequestAnswer {
        let mut key = ArrayVec::<u8, { 1 + ID_BYTES_MAX }>::new_const();
        key.push(kind as u8);
        // Cannot fail: no identifier is longer than the buffer.
        let _ = key.try_extend_from_slice(id);
        let TimedReading { reading, now } = self.limiter.check_and_read(&key);
        let charge = Charge {
            limit: &self.limit,
            spec: &self.limit.def.spec,
            id: Digest::default(),
            segments: ArrayVec::new(),
            previous: None,
            cost: 1,
            on_exceed: OnExceed::Deny,
            from: CountsFrom::Now,
        };
        let judged = JudgedCharges {
            charges: std::slice::from_ref(&charge),
            readings: &[reading],
            now,
        };
        RequestAnswer {
            decision: decide_boxed(None, &self.class, judged),
            policy: Arc::clone(&self.policy),
            candidate: None,
        }
    }

    /// Returns an answer that allows and charges nothing, for facts without a key.
    fn uncounted(&self) -> RequestAnswer {
        let judged = JudgedCharges {
            charges: &[],
            readings: &[],
            now: self.limiter.now(),
        };
        RequestAnswer {
            decision: decide_boxed(None, &self.class, judged),
            policy: Arc::clone(&self.policy),
            candidate: None,
        }
    }
}

impl<C: Clock> OneLimit<C> {
    fn decide(&self, facts: &RequestFacts) -> RequestAnswer {
        let known = [
            (Kind::User, &facts.user),
            (Kind::Token, &facts.token),
            (Kind::Org, &facts.org),
        ];
        let mut known = known
            .into_iter()
            .filter_map(|(kind, id)| Some((kind, id.as_ref()?)));
        match (facts.layers, known.next()) {
            (Layers::Identity, None) => self.uncounted(),
            (Layers::Edge, _) | (Layers::All, None) => {
                self.answer(Kind::Address, Prefix::of(facts.ip).bytes())
            }
            (Layers::Identity | Layers::All, Some((kind, id))) => self.answer(kind, id.as_bytes()),
        }
    }
}

/// The kind of a key of [`OneLimit`]. It is part of the key: a user may have the same name as an
/// organisation, or one with the bytes of an address.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Kind {
    Address,
    User,
    Token,
    Org,
}

impl<C: Clock> Judge for OneLimit<C> {
    async fn check(&self, _policy: &Arc<PolicySet>, facts: &RequestFacts) -> RequestAnswer {
        self.decide(facts)
    }

    fn answers_at_once(&self) -> bool {
        true
    }

    fn asks_for_agents(&self, _policy: &PolicySet) -> bool {
        false
    }

    fn records_requests(&self) -> bool {
        false
    }

    async fn foresee(&self, _facts: &RequestFacts) -> Option<RequestAnswer> {
        None
    }

    fn policy(&self) -> Arc<PolicySet> {
        Arc::clone(&self.policy)
    }

    fn with_policy<T>(&self, look: impl FnOnce(&Arc<PolicySet>) -> T) -> T {
        look(&self.policy)
    }

    fn wall(&self) -> Micros {
        self.limiter.wall()
    }

    fn edge_refused(&self, _peer: IpAddr, _field: &'static str) {}
}
