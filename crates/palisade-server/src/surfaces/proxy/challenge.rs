//! Challenges before the application: the page, its address, and passes.

use std::sync::Arc;

use http::Response;
use http::request::Parts;
use http::uri::{Authority, PathAndQuery};
use hyper::body::Incoming;
use palisade::engine::RequestAnswer;
use palisade_core::challenge::ChallengeFlow;
use palisade_core::time::SECOND;
use palisade_policy::Spend;

use super::body::Relayed;
use super::headers::Hop;
use super::{Proxy, own, refused_for};
use crate::surfaces::challenge::{self, RefusedVisit};
use crate::surfaces::exchange::ids::RequestId;
use crate::surfaces::exchange::problem::Problem;

/// The part that challenges have in a request.
pub(super) struct ChallengeUses {
    /// Whether it is one for the challenge page.
    pub(super) is_for_page: bool,
    /// Time for which passes are good, in seconds; `None` where the policy has no challenges.
    pub(super) pass_seconds: Option<u64>,
}

impl Proxy {
    pub(super) fn challenges(&self, path: &str) -> ChallengeUses {
        self.enforcer.engine.with_policy(|policy| {
            let settings = &policy.settings.challenge;
            ChallengeUses {
                is_for_page: challenge::owns(settings, path),
                pass_seconds: settings.is_used.then_some(settings.pass_us / SECOND),
            }
        })
    }

    pub(super) async fn challenge_page(
        &self,
        hop: &Hop<'_>,
        parts: &Parts,
        body: Incoming,
        id: &RequestId,
    ) -> Result<Response<Relayed>, Problem> {
        let desk = challenge::Desk {
            engine: &self.enforcer.engine,
            edge: hop.edge,
            peer: hop.peer,
            is_secure: hop.is_secure(&parts.headers),
            timeout: self.link.upstream.read_timeout,
        };
        let answer = Box::pin(challenge::respond(&desk, parts, body, id));
        answer.await.map(own)
    }

    /// A refusal, in the shape that the route asks for. A browser that may pass a challenge gets
    /// its page.
    pub(super) fn refuse(
        &self,
        mut answer: RequestAnswer,
        flow: ChallengeFlow,
        spend: Option<&Arc<Spend>>,
        (hop, parts): (&Hop<'_>, &Parts),
        id: &RequestId,
    ) -> Response<Relayed> {
        if answer.decision.offer.is_some()
            && let Ok(ip) = challenge::client_of(hop.edge, hop.peer, &parts.headers)
        {
            let is_trusted = hop.edge.trusted_proxies.contains(hop.peer);
            let authority = parts.uri.authority().map(Authority::as_str);
            let visit = RefusedVisit {
                ip,
                flow,
                method: parts.method.as_str(),
                target: parts.uri.path_and_query().map_or("/", PathAndQuery::as_str),
                host: authority.or_else(|| challenge::host_of(&parts.headers, is_trusted)),
                headers: &parts.headers,
            };
            let engine = &self.enforcer.engine;
            if let Some(page) = challenge::page_for(engine, &mut answer, &visit, id) {
                return own(page);
            }
        }
        refused_for(spend, &answer, id, &parts.headers)
    }
}
