//! The reverse proxy: every request is decided first, then handed to the application
//! with the path that was judged (I-PATH).

mod body;
mod headers;
mod upgrade;
mod upstream;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use palisade::extract::client_id::FORM_BYTES_MAX;
use palisade::extract::{EdgeConfig, arrive};

use crate::failure::Failure;
use crate::serve::{Handler, On, Place, Surface};
use crate::surfaces::enforcer::{Admitted, Decided, Visit};
use crate::surfaces::exchange::ids::RequestId;
use crate::surfaces::exchange::problem::Problem;
use crate::surfaces::exchange::reply::enforced;
use crate::surfaces::exchange::{Reply, body as whole};
use crate::surfaces::{Enforcer, Given};
use body::{Outgoing, Relayed};
use headers::Hop;
use upstream::Link;

pub(crate) use upstream::Upstream;

/// The proxy, if there is an application to stand before.
pub(super) fn surface(given: &Given<'_>) -> Result<Option<Box<dyn Surface>>, Failure> {
    let Some(upstream) = Upstream::of(given.config)? else {
        return Ok(None);
    };
    let enforcer = Arc::clone(given.enforcer);
    let place = Place {
        name: "proxy",
        flag: "proxy",
        scheme: "http",
        address: given.config.proxy.listen,
    };
    let tls = given.tls.proxy.clone();
    let spoken = if tls.is_some() { "https" } else { "http" };
    let make = move || Arc::new(Proxy::new(Arc::clone(&enforcer), upstream.clone(), spoken));
    let surface = On::new(place, given.bounds(), make);
    Ok(Some(Box::new(surface.within(tls))))
}

/// The proxy of one worker, with connections of its own to the application.
struct Proxy {
    enforcer: Arc<Enforcer>,
    link: Link,
    /// What its clients speak: `http` or `https`.
    spoken: &'static str,
}

impl Proxy {
    fn new(enforcer: Arc<Enforcer>, upstream: Upstream, spoken: &'static str) -> Self {
        Self {
            enforcer,
            link: Link::new(upstream),
            spoken,
        }
    }

    async fn relay(
        &self,
        peer: SocketAddr,
        request: Request<Incoming>,
        id: &mut RequestId,
    ) -> Result<Response<Relayed>, Problem> {
        let edge = self.enforcer.edge.load_full();
        let (parts, body) = request.into_parts();
        let (decided, body) = self.decide(&edge, peer.ip(), &parts, body, id).await?;
        let answer = decided.answer;
        let Some(body) = body.filter(|_| answer.decision.is_allowed()) else {
            return Ok(own(enforced(&answer, id)));
        };
        let mut request = Request::from_parts(parts, body);
        let method = request.method().clone();
        let hop = Hop {
            peer: peer.ip(),
            spoken: self.spoken,
            authority: authority(request.uri()),
            edge: &edge,
        };
        headers::towards_upstream(&method, request.headers_mut(), &hop, id);
        *request.uri_mut() = self
            .link
            .target(request.uri(), decided.forward_path.as_deref())?;
        *request.version_mut() = http::Version::HTTP_11;
        let mut response = self.forward(request).await?;
        headers::towards_client(response.headers_mut(), &answer);
        Ok(response)
    }

    /// The decision, and the body of a request that may go on.
    async fn decide(
        &self,
        edge: &EdgeConfig,
        peer: IpAddr,
        parts: &Parts,
        body: Incoming,
        id: &mut RequestId,
    ) -> Result<(Decided, Option<Outgoing>), Problem> {
        let enforcer = &self.enforcer;
        let out = |answer| {
            let decided = Decided {
                answer,
                forward_path: None,
            };
            (decided, None)
        };
        let policy = enforcer.engine.policy();
        let visit = Visit {
            edge,
            policy: &policy,
            peer,
            parts,
            now: enforcer.engine.clock().wall(),
        };
        let arrived = arrive(edge, visit.request(None), visit.now);
        let arrived = match enforcer.admit(visit, arrived).await? {
            Admitted::In(arrived) => arrived,
            Admitted::Out(answer) => return Ok(out(answer)),
        };
        let ip = arrived.facts.ip;
        let body = match self.take_body(arrived.reads_body, body).await {
            Ok(body) => body,
            Err(problem) => return Ok(out(enforcer.turn_away(ip, problem).await?)),
        };
        let decided = enforcer.decide(visit, arrived, body.bytes(), id).await?;
        Ok((decided, Some(body)))
    }

    /// Bodies are streamed; only one that may name an OAuth client is read first.
    async fn take_body(&self, is_read: bool, body: Incoming) -> Result<Outgoing, Problem> {
        if !is_read {
            return Ok(Outgoing::Streamed(body));
        }
        let bytes = whole::read(body, FORM_BYTES_MAX, self.link.upstream.read_timeout).await?;
        Ok(Outgoing::Buffered(Full::new(bytes.clone()), bytes))
    }

    async fn forward(&self, mut request: Request<Outgoing>) -> Result<Response<Relayed>, Problem> {
        let upgrade = upgrade::wanted(&mut request);
        let response = self.link.ask(request, upgrade.is_some()).await?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return upgrade::join(upgrade, response, self.link.upstream.silence_max);
        }
        Ok(response.map(Relayed::Upstream))
    }
}

impl Handler for Proxy {
    type Body = Relayed;

    async fn answer(&self, peer: SocketAddr, request: Request<Incoming>) -> Response<Relayed> {
        let mut id = RequestId::of(request.headers());
        let mut response = match self.relay(peer, request, &mut id).await {
            Ok(response) => response,
            Err(problem) => own(problem.respond(&id)),
        };
        id.mark(response.headers_mut());
        response
    }
}

/// The host that a request's target names: HTTP/2 and the absolute form have it there.
fn authority(uri: &Uri) -> Option<HeaderValue> {
    let authority = uri.authority()?.as_str();
    let (_, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    HeaderValue::from_str(host).ok()
}

fn own(reply: Reply) -> Response<Relayed> {
    reply.map(Relayed::Own)
}

/// An answer without a body.
fn empty() -> Relayed {
    Relayed::Own(Full::new(Bytes::new()))
}
