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

use super::checks::identify;
use super::ids::RequestId;
use super::problem::Problem;
use super::{Api, Reply, body, reply};

pub(super) async fn forward_auth(
    api: &Api,
    peer: IpAddr,
    request: Request<Incoming>,
    id: &mut RequestId,
) -> Result<Reply, Problem> {
    let (parts, body) = take_form(request, api.bounds.read_timeout).await?;
    let surface = &api.surface;
    let asked = EdgeRequest {
        peer,
        method: &parts.method,
        uri: &parts.uri,
        headers: &parts.headers,
        body: body.as_deref(),
    };
    let now = surface.engine.clock().now();
    let extracted = extract_forward_auth(&surface.edge.load(), asked, now);
    let mut facts = surface.facts(peer, extracted)?;
    identify(&mut facts, id);
    Ok(reply::enforced(&surface.engine.check(&facts).await, id))
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
