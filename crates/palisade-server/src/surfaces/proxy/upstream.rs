//! The application behind the proxy: its instances, and requests to them.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arrayvec::ArrayVec;
use bytes::Bytes;
use http::uri::{PathAndQuery, Scheme};
use http::{Request, Response, Uri};
use hyper::body::Body;
use palisade::deadline::{TimeIsUp, until, within};
use palisade::engine::InstanceFailure;
use rustls::ClientConfig;

use super::body::Outgoing;
use super::connections::{Connections, Unanswered};
use super::kept::Arriving;
use super::pool::{Address, Fault, Pool};
use crate::config::Config;
use crate::connect::{self, NamedFile};
use crate::failure::Failure;
use crate::serve::is_only_chunked;
use crate::surfaces::exchange::ids::RequestId;
use crate::surfaces::exchange::problem::Problem;
use crate::surfaces::size;

/// Most instances that one request is tried on.
const TRIES_MAX: usize = 3;
const RESPONSE_LATE: &str = "no answer within `proxy.response_timeout`";

/// The addresses of the application, and its timeouts.
#[derive(Clone)]
pub(crate) struct Upstream {
    pub(super) addresses: Vec<Address>,
    /// The path of health checks.
    pub(super) health_path: Option<String>,
    pub(super) health_interval: Duration,
    pub(super) tls: ClientConfig,
    pub(super) connect_timeout: Duration,
    response_timeout: Duration,
    /// Time for a body that is read before the application is asked.
    pub(super) read_timeout: Duration,
    /// Longest silence of a websocket.
    pub(super) silence_max: Duration,
    pub(super) pool_max: usize,
}

impl Upstream {
    /// The configured application; `None` if there is none.
    pub(crate) fn of(config: &Config) -> Result<Option<Self>, Failure> {
        let proxy = &config.proxy;
        let Some(urls) = &proxy.upstream else {
            return Ok(None);
        };
        let addresses = urls.all().map(address).collect::<Result<_, _>>()?;
        let authority_file = proxy.upstream_ca.as_deref().map(|path| NamedFile {
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
    let uri: Uri = url.parse().map_err(|_| refused("is not a valid URL"))?;
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

/// One worker's access to the application.
pub(super) struct Link {
    pub(super) upstream: Upstream,
    pool: Arc<Pool>,
    connections: Connections,
}

impl Link {
    pub(super) fn new(upstream: Upstream, pool: Arc<Pool>) -> Self {
        Self {
            connections: Connections::new(&upstream),
            pool,
            upstream,
        }
    }

    /// Sends a request to the application, and waits for the head of its answer.
    ///
    /// If an instance does not answer another one is tried, provided that the request may be sent
    /// twice: it must be idempotent and have no body, so that nothing of it is used up.
    ///
    /// The time for the answer starts when the body has arrived. Until then the body must make
    /// progress.
    pub(super) async fn ask(
        &self,
        request: Request<Outgoing>,
        upgrades: bool,
        id: &RequestId,
    ) -> Result<Response<Arriving>, Problem> {
        let time = self.upstream.response_timeout;
        let upload = request.body().upload();
        let last = AtomicUsize::new(usize::MAX);
        let mut asked = pin!(self.ask_in_turn(request, upgrades, &last, id));
        let mut waited = within(time, asked.as_mut()).await;
        while waited.is_err()
            && let Some(ends) = upload.as_ref().and_then(|upload| upload.ends(time))
        {
            waited = until(ends, asked.as_mut()).await;
        }
        waited.unwrap_or_else(|TimeIsUp| {
            if upload.is_some_and(|upload| upload.waits_for_client()) {
                return Err(Problem::body_timeout());
            }
            let late = Fault::new(InstanceFailure::Late, RESPONSE_LATE);
            self.failed(last.load(Ordering::Relaxed), &late, id);
            Err(Problem::gateway_timeout())
        })
    }

    /// Tries one instance after another. `last` is set to the one being tried.
    async fn ask_in_turn(
        &self,
        mut request: Request<Outgoing>,
        upgrades: bool,
        last: &AtomicUsize,
        id: &RequestId,
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
            last.store(index, Ordering::Relaxed);
            let asked = self
                .connections
                .ask(index, request, &mut spare, upgrades)
                .await;
            let fault = match asked {
                Ok(response) => {
                    self.pool.answered(index);
                    return understood(response, id);
                }
                Err(Unanswered::Client) => return Err(Problem::body_broken()),
                Err(Unanswered::Instance(fault)) => fault,
            };
            self.failed(index, &fault, id);
            let again = spare.take().filter(|_| !tried.is_full());
            request = again.ok_or_else(Problem::bad_gateway)?;
            spare = repeatable(&request);
        }
    }

    /// Notes a failure. The pool logs an outage once; a line for each request is only written at
    /// level `debug`, because in an outage nobody reads them.
    fn failed(&self, index: usize, fault: &Fault, id: &RequestId) {
        self.pool.failed(index, fault);
        tracing::debug!(
            request_id = id.as_str(),
            instance = self.pool.address(index),
            reason = fault.why.name(),
            error = &*fault.error,
            "the application did not answer a request"
        );
    }
}

/// Refuses an answer whose body we cannot decode. A transfer coding that nobody asked for does not
/// count against its instance: a client that finds a page with one could otherwise have the
/// instance left out for everybody.
fn understood(response: Response<Arriving>, id: &RequestId) -> Result<Response<Arriving>, Problem> {
    if is_only_chunked(response.headers()) {
        return Ok(response);
    }
    tracing::debug!(
        request_id = id.as_str(),
        "the application answered in a transfer coding that it was not asked for"
    );
    Err(Problem::answer_coded())
}

/// The path and query for the application: those that were judged.
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

/// Returns a copy of the request, if it may be sent twice.
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
