//! `/forward-auth`: a proxy asks about the request it holds, and passes on what
//! it is told.

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request};
use hyper::body::Incoming;
use palisade::extract::client_id::FORM_BYTES_MAX;
use palisade::extract::{EdgeRequest, extract_forward_auth};

use super::Enforcer;
use super::exchange::ids::{RequestId, identify};
use super::exchange::problem::Problem;
use super::exchange::{Reply, body, reply};

/// Answers about the request that a proxy holds; its form has `timeout` to arrive.
pub(super) async fn answer(
    enforcer: &Enforcer,
    timeout: Duration,
    peer: IpAddr,
    request: Request<Incoming>,
    id: &mut RequestId,
) -> Result<Reply, Problem> {
    let (parts, body) = take_form(request, timeout).await?;
    let asked = EdgeRequest {
        peer,
        method: &parts.method,
        uri: &parts.uri,
        headers: &parts.headers,
        body: body.as_deref(),
    };
    let now = enforcer.engine.clock().wall();
    let extracted = extract_forward_auth(&enforcer.edge.load(), asked, now);
    let mut facts = enforcer.facts(peer, extracted)?;
    identify(&mut facts, id);
    Ok(reply::enforced(&enforcer.engine.check(&facts).await, id))
}

/// Proxies that pass bodies on do so for POST; on other methods there is none to
/// wait for.
async fn take_form(
    request: Request<Incoming>,
    timeout: Duration,
) -> Result<(Parts, Option<Bytes>), Problem> {
    let (parts, body) = request.into_parts();
    if parts.method != Method::POST {
        return Ok((parts, None));
    }
    let bytes = body::read(body, FORM_BYTES_MAX, timeout).await?;
    Ok((parts, Some(bytes)))
}
