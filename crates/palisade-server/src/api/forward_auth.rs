//! `/forward-auth`: a proxy asks about the request it holds, and passes on what
//! it is told.

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request};
use hyper::body::Incoming;
use palisade::extract::client_id::FORM_BYTES_MAX;
use palisade::extract::{EdgeRequest, Extracted, TokenStatus, extract_forward_auth};
use palisade_core::policy::{ClassKind, PolicySet};
use palisade_core::{Id, RequestFacts};

use super::checks::identify;
use super::ids::RequestId;
use super::problem::Problem;
use super::{Api, Reply, body, reply};

/// The class that guessing tokens counts in.
const AUTH_CLASS: &str = "auth";

pub(super) async fn forward_auth(
    api: &Api,
    peer: IpAddr,
    request: Request<Incoming>,
    id: &mut RequestId,
) -> Result<Reply, Problem> {
    let (parts, body) = take_form(request, api.bounds.read_timeout).await?;
    let edge = api.edge.load();
    let asked = EdgeRequest {
        peer,
        method: &parts.method,
        uri: &parts.uri,
        headers: &parts.headers,
        body: body.as_deref(),
    };
    let now = api.engine.clock().now();
    let extracted = extract_forward_auth(&edge, asked, now).inspect_err(|error| {
        if error.is_audited() {
            tracing::warn!(field = error.field(), "a forwarded request was refused");
        }
    })?;
    drop(edge);
    let mut facts = in_class(extracted, &api.engine.policy());
    identify(&mut facts, id);
    Ok(reply::enforced(&api.engine.check(&facts).await, id))
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

/// A token that was refused makes a request count as a guess (I-JWT).
pub(crate) fn in_class(extracted: Extracted, policy: &PolicySet) -> RequestFacts {
    let mut facts = extracted.facts;
    let guess = matches!(extracted.token, TokenStatus::Unverified(_));
    if guess && policy.class_kind(AUTH_CLASS) == ClassKind::Auth {
        facts.class = Id::new("class", AUTH_CLASS).ok();
    }
    facts
}
