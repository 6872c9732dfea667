//! The reverse proxy: every request is decided first, then handed to the application
//! with the path that was judged (I-PATH).

mod body;
mod headers;
mod upgrade;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use palisade::extract::client_id::FORM_BYTES_MAX;
use palisade::extract::{EdgeConfig, arrive};

use crate::config::Config;
use crate::failure::Failure;
use crate::serve::{Handler, On, Place, Surface};
use crate::surfaces::enforcer::{Admitted, Decided, Visit};
use crate::surfaces::exchange::ids::RequestId;
use crate::surfaces::exchange::problem::Problem;
use crate::surfaces::exchange::reply::enforced;
use crate::surfaces::exchange::{Reply, body as whole};
use crate::surfaces::{Enforcer, Given, size};
use body::{Outgoing, Relayed};

/// Idle connections to the application are kept for so long.
const POOL_IDLE: Duration = Duration::from_secs(60);

/// Where the application is, and how long it may take.
#[derive(Clone)]
pub(crate) struct Upstream {
    authority: Authority,
    connect_timeout: Duration,
    response_timeout: Duration,
    read_timeout: Duration,
    /// Longest silence in a tunnel.
    silence_max: Duration,
    pool_max: usize,
}

impl Upstream {
    /// The configured application; `None` if there is none.
    pub(crate) fn of(config: &Config) -> Result<Option<Self>, Failure> {
        let Some(url) = &config.proxy.upstream else {
            return Ok(None);
        };
        let refused = |what: &str| {
            Failure::usage(
                format!("`proxy.upstream` {what}"),
                "write `http://HOST:PORT`, the address of the application",
            )
        };
        let uri: Uri = url
            .as_str()
            .parse()
            .map_err(|_| refused("is no URL that can be read"))?;
        if uri.scheme() != Some(&Scheme::HTTP) {
            return Err(refused("must be plain HTTP: end TLS before it"));
        }
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(refused("must not have a path: requests keep their own"));
        }
        let authority = uri.authority().ok_or_else(|| refused("names no host"))?;
        Ok(Some(Self {
            authority: authority.clone(),
            connect_timeout: config.proxy.connect_timeout,
            response_timeout: config.proxy.response_timeout,
            read_timeout: config.server.header_timeout,
            silence_max: config.proxy.tunnel_idle_timeout,
            pool_max: size(config.proxy.pool_max),
        }))
    }
}

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
    let make = move || Arc::new(Proxy::new(Arc::clone(&enforcer), upstream.clone()));
    Ok(Some(Box::new(On::new(place, given.bounds(), make))))
}

/// The proxy of one worker, with connections of its own to the application.
struct Proxy {
    enforcer: Arc<Enforcer>,
    upstream: Upstream,
    client: Client<HttpConnector, Outgoing>,
}

impl Proxy {
    fn new(enforcer: Arc<Enforcer>, upstream: Upstream) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(upstream.connect_timeout));
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(POOL_IDLE)
            .pool_max_idle_per_host(upstream.pool_max)
            .pool_timer(TokioTimer::new())
            .build(connector);
        Self {
            enforcer,
            upstream,
            client,
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
        headers::towards_upstream(&method, request.headers_mut(), peer.ip(), &edge, id);
        *request.uri_mut() = self.target(request.uri(), decided.forward_path.as_deref())?;
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
        let bytes = whole::read(body, FORM_BYTES_MAX, self.upstream.read_timeout).await?;
        Ok(Outgoing::Buffered(Full::new(bytes.clone()), bytes))
    }

    /// Where the request goes: to the application, with the path that was judged.
    fn target(&self, uri: &Uri, forward_path: Option<&str>) -> Result<Uri, Problem> {
        let unfit = || Problem::field("path", "cannot be passed on");
        let path = match (forward_path, uri.query()) {
            (None, _) => uri.path_and_query().cloned(),
            (Some(path), None) => Some(path.parse().map_err(|_| unfit())?),
            (Some(path), Some(query)) => {
                let target = format!("{path}?{query}");
                Some(target.parse().map_err(|_| unfit())?)
            }
        };
        Uri::builder()
            .scheme(Scheme::HTTP)
            .authority(self.upstream.authority.clone())
            .path_and_query(path.unwrap_or_else(|| PathAndQuery::from_static("/")))
            .build()
            .map_err(|_| unfit())
    }

    async fn forward(&self, mut request: Request<Outgoing>) -> Result<Response<Relayed>, Problem> {
        let upgrade = upgrade::wanted(&mut request);
        let sent = self.client.request(request);
        let response = tokio::time::timeout(self.upstream.response_timeout, sent)
            .await
            .map_err(|_| Problem::gateway_timeout())?
            .map_err(|error| {
                tracing::warn!(
                    connecting = error.is_connect(),
                    "the application did not answer"
                );
                Problem::bad_gateway()
            })?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return upgrade::join(upgrade, response, self.upstream.silence_max);
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

fn own(reply: Reply) -> Response<Relayed> {
    reply.map(Relayed::Own)
}

/// An answer without a body.
fn empty() -> Relayed {
    Relayed::Own(Full::new(Bytes::new()))
}
