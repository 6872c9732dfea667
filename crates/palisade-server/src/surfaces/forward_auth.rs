//! `/forward-auth`: a proxy asks about a request that it holds, and passes the answer on.

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use hyper::body::Incoming;
use palisade::engine::RequestAnswer;
use palisade::extract::arrive_forward_auth;
use palisade::extract::client_id::FORM_BYTES_MAX;
use palisade_core::challenge::{ChallengeFlow, ShownPass};
use palisade_core::facts::Surface;

use super::Enforcer;
use super::challenge::{self, Passes, RefusedVisit};
use super::enforcer::{ArrivalCheck, Visit};
use super::exchange::ids::RequestId;
use super::exchange::problem::Problem;
use super::exchange::proto::is_secure_before;
use super::exchange::{Reply, body, reply};

/// Answers about the request that a proxy holds. The body must arrive within `timeout`.
pub(super) async fn answer(
    enforcer: &Enforcer,
    timeout: Duration,
    peer: IpAddr,
    request: Request<Incoming>,
    id: &mut RequestId,
) -> Result<Reply, Problem> {
    let (parts, body) = request.into_parts();
    let edge = enforcer.edge.load();
    let policy = enforcer.engine.policy();
    *id = RequestId::sent_by(edge.trusted_proxies.contains(peer), &parts.headers);
    let visit = Visit {
        edge: &edge,
        policy: &policy,
        peer,
        parts: &parts,
        now: enforcer.engine.clock().wall(),
        surface: Surface::ForwardAuth,
        id: &*id,
    };
    let mut arrived = arrive_forward_auth(&edge, visit.request(None), visit.now);
    if let Ok(arrived) = arrived.as_mut() {
        arrived.facts.pass = pass_of(&visit);
    }
    let arrived = match enforcer.admit(visit, arrived).await? {
        ArrivalCheck::In(arrived) => arrived,
        ArrivalCheck::Out(answer) => return Ok(answered(enforcer, visit, *answer)),
    };
    let ip = arrived.facts.ip;
    let answer = match posted(&parts.method, body, timeout).await {
        Ok(form) => {
            let decided = enforcer.decide(visit, arrived, form.as_deref(), None).await;
            decided?.answer
        }
        Err(problem) => enforcer.turn_away(visit, ip, problem).await?,
    };
    Ok(answered(enforcer, visit, answer))
}

/// The pass that the client shows. The proxy passes it on to the application, too.
fn pass_of(visit: &Visit<'_>) -> Option<Box<ShownPass>> {
    let headers = &visit.parts.headers;
    let is_used = visit.policy.settings.challenge.is_used;
    let is_secure = is_used && is_secure_before(visit.edge, visit.peer, headers);
    let passes = is_used.then(|| Passes::read(headers, is_secure))?;
    passes.of(ChallengeFlow::Request)
}

/// The decision applied; a browser that may pass a challenge gets its page.
fn answered(enforcer: &Enforcer, visit: Visit<'_>, mut answer: RequestAnswer) -> Reply {
    let headers = &visit.parts.headers;
    if answer.decision.offer.is_some()
        && let Ok(ip) = challenge::client_of(visit.edge, visit.peer, headers)
    {
        let refused = RefusedVisit {
            ip,
            flow: ChallengeFlow::Request,
            method: text(headers, ["x-forwarded-method", "x-original-method"]).unwrap_or("GET"),
            target: text(headers, ["x-forwarded-uri", "x-original-uri"]).unwrap_or_default(),
            host: challenge::host_of(headers, true),
            headers,
        };
        let page = challenge::page_for(&enforcer.engine, &mut answer, &refused, visit.id);
        if let Some(page) = page {
            return page;
        }
    }
    reply::enforced(&answer, visit.id)
}

/// The first of these headers that is sent. Where both are, they say the same.
fn text<'h>(headers: &'h HeaderMap, names: [&str; 2]) -> Option<&'h str> {
    let mut sent = names.into_iter().filter_map(|name| headers.get(name));
    sent.next()?.to_str().ok()
}

/// Reads the body of a POST. Proxies that pass bodies on do so for POST only; with other methods
/// there is none to wait for.
async fn posted(
    method: &Method,
    body: Incoming,
    timeout: Duration,
) -> Result<Option<Bytes>, Problem> {
    if *method != Method::POST {
        return Ok(None);
    }
    body::read(body, FORM_BYTES_MAX, timeout).await.map(Some)
}
