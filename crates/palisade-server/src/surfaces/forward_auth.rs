//! `/forward-auth`: a proxy asks about a request that it holds, and passes the answer on.

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use hyper::body::Incoming;
use palisade::extract::arrive_forward_auth;
use palisade::extract::client_id::FORM_BYTES_MAX;
use palisade_core::facts::Surface;

use super::Enforcer;
use super::enforcer::{ArrivalCheck, Visit};
use super::exchange::ids::RequestId;
use super::exchange::problem::Problem;
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
    let arrived = arrive_forward_auth(&edge, visit.request(None), visit.now);
    let arrived = match enforcer.admit(visit, arrived).await? {
        ArrivalCheck::In(arrived) => arrived,
        ArrivalCheck::Out(answer) => return Ok(reply::enforced(&answer, id)),
    };
    let ip = arrived.facts.ip;
    let answer = match posted(&parts.method, body, timeout).await {
        Ok(form) => {
            let decided = enforcer.decide(visit, arrived, form.as_deref(), None).await;
            decided?.answer
        }
        Err(problem) => enforcer.turn_away(visit, ip, problem).await?,
    };
    Ok(reply::enforced(&answer, id))
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
