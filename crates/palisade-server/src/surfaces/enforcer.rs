//! State that all deciding surfaces share: the engine, the parsing of requests, and the handling of
//! requests that cannot be parsed.

use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use http::request::Parts;
use palisade::Engine;
use palisade::engine::{Observer, RequestAnswer, ReservationGuard};
use palisade::extract::{
    ArrivedRequest, EdgeConfig, EdgeRequest, ExtractError, RefusedRequest, identify,
};
use palisade_core::budget::Costs;
use palisade_core::facts::Surface;
use palisade_core::{Micros, PolicySet, RequestFacts};
use palisade_policy::{Outcomes, Spends};

use super::exchange::ids::RequestId;
use super::exchange::problem::Problem;

/// The parsing of requests, which a reload replaces. The admin address verifies signed tokens with
/// it, too.
pub(crate) type Edge = Arc<ArcSwap<EdgeConfig>>;

/// State that the decision API and the proxy share.
pub(crate) struct Enforcer {
    pub(crate) engine: Arc<Engine>,
    pub(crate) edge: Edge,
    /// Routes on which the proxy recognises logins.
    pub(crate) outcomes: ArcSwap<Outcomes>,
    /// Routes on which the proxy reads what requests cost.
    pub(crate) spends: ArcSwap<Spends>,
    pub(crate) observer: Arc<dyn Observer>,
}

/// A request on its way in, with everything that is needed to parse it.
#[derive(Clone, Copy)]
pub(super) struct Visit<'a> {
    pub(super) edge: &'a EdgeConfig,
    pub(super) policy: &'a Arc<PolicySet>,
    pub(super) peer: IpAddr,
    pub(super) parts: &'a Parts,
    pub(super) now: Micros,
    /// The surface that the request came to.
    pub(super) surface: Surface,
    /// The one id of the request, made before anything is decided (I-ID).
    pub(super) id: &'a RequestId,
}

impl<'a> Visit<'a> {
    pub(super) fn request(self, body: Option<&'a [u8]>) -> EdgeRequest<'a> {
        EdgeRequest {
            policy: self.policy,
            peer: self.peer,
            method: &self.parts.method,
            uri: &self.parts.uri,
            headers: &self.parts.headers,
            body,
        }
    }
}

/// The result of the checks that come before any costly work.
pub(super) enum ArrivalCheck<'a> {
    In(Box<ArrivedRequest<'a>>),
    Out(Box<RequestAnswer>),
}

/// A decision and, if it admits the request, the path to forward.
pub(super) struct RequestDecision {
    pub(super) answer: RequestAnswer,
    pub(super) forward_path: Option<Box<str>>,
    /// The facts it was decided by.
    pub(super) facts: RequestFacts,
    /// Whatever the request holds until the last byte of its answer (B-SLOT).
    pub(super) guard: Option<Box<ReservationGuard>>,
}

impl Enforcer {
    /// Runs the checks that come before any costly work (I-COST).
    pub(super) async fn admit<'a>(
        &self,
        visit: Visit<'a>,
        arrived: Result<ArrivedRequest<'a>, RefusedRequest>,
    ) -> Result<ArrivalCheck<'a>, Problem> {
        let mut arrived = match arrived {
            Ok(arrived) => arrived,
            Err(refused) => {
                self.tell(visit.peer, &refused.error);
                let problem = refused.error.into();
                let answer = self.turn_away(visit, refused.ip, problem).await?;
                return Ok(ArrivalCheck::Out(Box::new(answer)));
            }
        };
        arrived.facts.surface = visit.surface;
        arrived.facts.request_id = visit.id.id();
        // What the application cannot answer in time is shed before any other work.
        if visit.surface == Surface::Proxy
            && let Some(shed) = self.engine.foresee_load(visit.policy, &arrived.facts)
        {
            return Ok(ArrivalCheck::Out(Box::new(shed)));
        }
        // The limits of the address come before a signature is verified or a body is read (I-COST).
        if arrived.is_costly()
            && let Some(refusal) = Box::pin(self.engine.foresee(&arrived.facts)).await
        {
            return Ok(ArrivalCheck::Out(Box::new(refusal)));
        }
        Ok(ArrivalCheck::In(Box::new(arrived)))
    }

    /// Decides an admitted request by all of its facts.
    pub(super) async fn decide(
        &self,
        visit: Visit<'_>,
        arrived: Box<ArrivedRequest<'_>>,
        body: Option<&[u8]>,
        costs: Option<Costs>,
    ) -> Result<RequestDecision, Problem> {
        let ip = arrived.facts.ip;
        let request = EdgeRequest {
            body,
            ..visit.request(None)
        };
        let mut extracted = match identify(visit.edge, request, *arrived, visit.now) {
            Ok(extracted) => extracted,
            Err(error) => {
                let answer = self.turn_away(visit, ip, error.into()).await?;
                return Ok(RequestDecision {
                    answer,
                    forward_path: None,
                    facts: RequestFacts::unread(ip),
                    guard: None,
                });
            }
        };
        extracted.facts.costs = costs.map(Box::new);
        // Only the proxy sees a request to its end.
        let is_held = visit.surface == Surface::Proxy
            && (extracted.facts.costs.is_some()
                || self.engine.takes_slots(visit.policy, &extracted.facts));
        let (answer, guard) = match is_held {
            true => Box::pin(self.hold(visit, &extracted.facts)).await?,
            false => (self.engine.check(&extracted.facts).await, None),
        };
        Ok(RequestDecision {
            answer,
            forward_path: extracted.forward_path,
            facts: extracted.facts,
            guard,
        })
    }

    async fn hold(
        &self,
        visit: Visit<'_>,
        facts: &RequestFacts,
    ) -> Result<(RequestAnswer, Option<Box<ReservationGuard>>), Problem> {
        let policy = Arc::clone(visit.policy);
        let (answer, guard) = self.engine.hold(policy, facts).await?;
        Ok((answer, guard.map(Box::new)))
    }

    /// Counts a request that is refused unread for its address all the same. If the address has
    /// exhausted its limits, the answer is that denial and not `problem`.
    pub(super) async fn turn_away(
        &self,
        visit: Visit<'_>,
        ip: IpAddr,
        problem: Problem,
    ) -> Result<RequestAnswer, Problem> {
        let facts = RequestFacts {
            surface: visit.surface,
            request_id: visit.id.id(),
            ..RequestFacts::unread(ip)
        };
        let answer = self.engine.check(&facts).await;
        if answer.decision.is_allowed() {
            return Err(problem);
        }
        Ok(answer)
    }

    fn tell(&self, peer: IpAddr, error: &ExtractError) {
        if error.is_audited() {
            let now = self.engine.clock().now();
            self.observer.edge_refused(peer, error.field(), now);
        }
    }
}
