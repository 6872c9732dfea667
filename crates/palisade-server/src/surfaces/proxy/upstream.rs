//! The application behind the proxy: where its instances are, and the connections to them.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;
use bytes::Bytes;
use http::uri::{PathAndQuery, Scheme};
use http::{HeaderValue, Request, Response, Uri};
use hyper::body::Body;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use palisade::deadline::{TimeIsUp, within};
use rustls::ClientConfig;

use super::body::Outgoing;
use super::kept::{Arriving, Kept, NoAnswer};
use super::pool::{Address, Pool};
use crate::config::Config;
use crate::connect::{self, Named};
use crate::failure::Failure;
use crate::surfaces::exchange::problem::Problem;
use crate::surfaces::size;

/// Idle connections to the application are kept for so long.
const POOL_IDLE: Duration = Duration::from_secs(60);

/// Most instances that one request is tried on.
const TRIES_MAX: usize = 3;

/// Where the application is, and how long it may take.
#[derive(Clone)]
pub(crate) struct Upstream {
    pub(super) addresses: Vec<Address>,
    /// What instances are asked for to see how they do.
    pub(super) health_path: Option<String>,
    pub(super) health_interval: Duration,
    tls: ClientConfig,
    connect_timeout: Duration,
    response_timeout: Duration,
    /// Time for a body that is read before the application is asked.
    pub(super) read_timeout: Duration,
    /// Longest silence in a tunnel.
    pub(super) silence_max: Duration,
    pool_max: usize,
}

impl Upstream {
    /// The configured application; `None` if there is none.
    pub(crate) fn of(config: &Config) -> Result<Option<Self>, Failure> {
        let proxy = &config.proxy;
        let Some(urls) = &proxy.upstream else {
            return Ok(None);
        };
        let addresses = urls.all().map(address).collect::<Result<_, _>>()?;
        let authority_file = proxy.upstream_ca.as_deref().map(|path| Named {
            name: "proxy.upstream_ca",
            path,
        });
        Ok(Some(Self {
            addresses,
            health_path: proxy
                .health_path
                .as_ref()
                .map(|path| path.as_str().to_owned()),
            health_interval: proxy.health_interval,
            tls: connect::client(authority_file, None)?,
            connect_timeout: proxy.connect_timeout,
            response_timeout: proxy.response_timeout,
            read_timeout: config.server.header_timeout,
            silence_max: proxy.tunnel_idle_timeout,
            pool_max: size(proxy.pool_max),
        }))
    }
}

fn address(url: &str) -> Result<Address, Failure> {
    let refused = |what: &str| {
        Failure::usage(
            format!("`proxy.upstream` {what}"),
            "write `http://HOST:PORT` or `https://HOST:PORT`, the address of the application",
        )
    };
    let uri: Uri = url
        .parse()
        .map_err(|_| refused("is no URL that can be read"))?;
    let scheme = uri.scheme().cloned();
    let scheme = scheme
        .filter(|scheme| [Scheme::HTTP, Scheme::HTTPS].contains(scheme))
        .ok_or_else(|| refused("must begin with `http://` or `https://`"))?;
    if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
        return Err(refused("must not have a path: requests keep their own"));
    }
    let authority = uri.authority().ok_or_else(|| refused("names no host"))?;
    if authority.as_str().contains('@') {
        return Err(refused(
            "must not have a user name: requests keep their own",
        ));
    }
    Ok(Address {
        scheme,
        authority: authority.clone(),
    })
}

pub(super) type Connections = Client<HttpsConnector<HttpConnector>, Outgoing>;

fn connector(upstream: &Upstream) -> HttpConnector {
    let mut plain = HttpConnector::new();
    plain.set_nodelay(true);
    plain.enforce_http(false);
    plain.set_connect_timeout(Some(upstream.connect_timeout));
    plain
}

/// Connections to the instances: HTTP/1, or `either` that or HTTP/2 where they agree to it
/// within TLS.
pub(super) fn connections(upstream: &Upstream, either: bool) -> Connections {
    let plain = connector(upstream);
    let secure = HttpsConnectorBuilder::new()
        .with_tls_config(upstream.tls.clone())
        .https_or_http()
        .enable_http1();
    let connector = match either {
        true => secure.enable_http2().wrap_connector(plain),
        false => secure.wrap_connector(plain),
    };
    Client::builder(TokioExecutor::new())
        .pool_idle_timeout(POOL_IDLE)
        .pool_max_idle_per_host(upstream.pool_max)
        .pool_timer(TokioTimer::new())
        .build(connector)
}

/// The connections of one worker to the application.
pub(super) struct Link {
    pub(super) upstream: Upstream,
    pool: Arc<Pool>,
    /// Of each instance, unless it is spoken to within TLS.
    kept: Vec<Option<Arc<Kept>>>,
    /// HTTP/2 where the application agrees to it, within TLS.
    connections: Connections,
    /// A websocket starts from HTTP/1.
    for_upgrades: Connections,
}

impl Link {
    pub(super) fn new(upstream: Upstream, pool: Arc<Pool>) -> Self {
        Self {
            kept: upstream
                .addresses
                .iter()
                .map(|at| kept(&upstream, at))
                .collect(),
            connections: connections(&upstream, true),
            for_upgrades: connections(&upstream, false),
            pool,
            upstream,
        }
    }

    /// Asks the application, and waits for the head of its answer.
    ///
    /// Where one instance does not answer another is asked, if the request may be sent twice:
    /// it must be idempotent and without a body, so that nothing of it is used up.
    pub(super) async fn ask(
        &self,
        request: Request<Outgoing>,
        upgrades: bool,
    ) -> Result<Response<Arriving>, Problem> {
        let asked = pin!(self.ask_in_turn(request, upgrades));
        within(self.upstream.response_timeout, asked)
            .await
            .map_err(|TimeIsUp| Problem::gateway_timeout())?
    }

    async fn ask_in_turn(
        &self,
        mut request: Request<Outgoing>,
        upgrades: bool,
    ) -> Result<Response<Arriving>, Problem> {
        let mut spare = (self.pool.len() > 1 && !upgrades)
            .then(|| repeatable(&request))
            .flatten();
        let mut tried = ArrayVec::<usize, TRIES_MAX>::new();
        loop {
            let Some(index) = self.pool.pick(&tried) else {
                return Err(Problem::bad_gateway());
            };
            tried.push(index);
            let error = match self.ask_one(index, request, upgrades).await? {
                Ok(response) => {
                    self.pool.answered(index);
                    return Ok(response);
                }
                Err(error) => error,
            };
            self.pool.failed(index);
            tracing::warn!(
                connecting = matches!(error, NoAnswer::Connecting),
                "the application did not answer"
            );
            let again = spare.take().filter(|_| !tried.is_full());
            request = again.ok_or_else(Problem::bad_gateway)?;
            spare = repeatable(&request);
        }
    }

    async fn ask_one(
        &self,
        index: usize,
        mut request: Request<Outgoing>,
        upgrades: bool,
    ) -> Result<Result<Response<Arriving>, NoAnswer>, Problem> {
        let kept = self.kept.get(index).and_then(Option::as_ref);
        if let Some(kept) = kept.filter(|_| !upgrades) {
            return Ok(kept.ask(request).await);
        }
        let connections = match upgrades {
            true => &self.for_upgrades,
            false => &self.connections,
        };
        *request.uri_mut() = self.placed(request.uri(), index)?;
        let answer = connections.request(request).await;
        Ok(match answer {
            Ok(response) => Ok(response.map(Arriving::from)),
            Err(error) if error.is_connect() => Err(NoAnswer::Connecting),
            Err(_) => Err(NoAnswer::Asking),
        })
    }

    /// The same target at this instance.
    fn placed(&self, uri: &Uri, index: usize) -> Result<Uri, Problem> {
        let address = self.pool.address(index).ok_or_else(Problem::bad_gateway)?;
        let path = uri.path_and_query().cloned();
        Uri::builder()
            .scheme(address.scheme.clone())
            .authority(address.authority.clone())
            .path_and_query(path.unwrap_or_else(|| PathAndQuery::from_static("/")))
            .build()
            .map_err(|_| Problem::field("path", "cannot be passed on"))
    }
}

/// The connections that a worker keeps itself, to an instance that speaks plain HTTP.
fn kept(upstream: &Upstream, at: &Address) -> Option<Arc<Kept>> {
    if at.scheme != Scheme::HTTP {
        return None;
    }
    let host = HeaderValue::from_str(at.authority.as_str()).ok()?;
    let place = Uri::builder()
        .scheme(at.scheme.clone())
        .authority(at.authority.clone())
        .path_and_query("/")
        .build()
        .ok()?;
    let kept = Kept::new(
        connector(upstream),
        place,
        host,
        upstream.pool_max,
        POOL_IDLE,
    );
    Some(Arc::new(kept))
}

/// The path and query that the application is given: those that were judged.
pub(super) fn target(uri: &Uri, forward_path: Option<&str>) -> Result<Uri, Problem> {
    let unfit = || Problem::field("path", "cannot be passed on");
    let path = match (forward_path, uri.query()) {
        (None, _) => uri.path_and_query().cloned(),
        (Some(path), None) => Some(path.parse().map_err(|_| unfit())?),
        (Some(path), Some(query)) => {
            let target = format!("{path}?{query}");
            Some(target.parse().map_err(|_| unfit())?)
        }
    };
    Ok(path
        .unwrap_or_else(|| PathAndQuery::from_static("/"))
        .into())
}

/// The same request once more, if it may be sent twice.
pub(super) fn repeatable(request: &Request<Outgoing>) -> Option<Request<Outgoing>> {
    if !request.method().is_idempotent() || !request.body().is_end_stream() {
        return None;
    }
    let mut again = Request::new(Outgoing::of(Bytes::new()));
    again.method_mut().clone_from(request.method());
    again.uri_mut().clone_from(request.uri());
    again.headers_mut().clone_from(request.headers());
    *again.version_mut() = request.version();
    Some(again)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_an_application_is_a_scheme_and_a_host() {
        for good in ["http://127.0.0.1:3000", "https://app.internal/"] {
            assert!(address(good).is_ok(), "{good}");
        }
        for bad in [
            "ftp://app",
            "http://app/path",
            "http://app/?q",
            "https://user:secret@app",
        ] {
            let said = address(bad).map(|_| ()).unwrap_err().to_string();
            assert!(!said.contains("secret"), "{said}");
        }
    }
}
