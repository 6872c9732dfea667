//! Connections to the instances of the application. Those of plain HTTP are kept by the worker.
//! Within TLS there is one HTTP/2 connection to each instance that agrees to it, and a pool of
//! HTTP/1 for the rest.

use std::sync::Arc;
use std::time::Duration;

use http::header::{HOST, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Response, Uri};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connection, HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use palisade::engine::InstanceFailure;
use tokio::sync::Mutex;
use tower::{Service, ServiceExt};

use super::body::Outgoing;
use super::kept::{Arriving, Kept};
use super::pool::{Address, Fault};
use super::upstream::Upstream;
use crate::serve::task;

/// Time for which idle connections of HTTP/1 are kept.
const POOL_IDLE: Duration = Duration::from_secs(60);
/// Interval and timeout of pings to an HTTP/2 peer that owes an answer. Without pings, requests
/// would be sent into a dead connection until each of them times out.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_PATIENCE: Duration = Duration::from_secs(10);

const CONNECT_LATE: &str = "no connection within `proxy.connect_timeout`";

type Connector = HttpsConnector<HttpConnector>;

/// The connections of one worker to all instances.
pub(super) struct Connections {
    /// Client for HTTP/1 within TLS, and for requests that start a websocket.
    one: Client<Connector, Outgoing>,
    /// Connector that offers both versions of HTTP.
    either: Connector,
    instances: Vec<Instance>,
    connect_timeout: Duration,
}

/// One instance, and the kind of its connections.
struct Instance {
    address: Address,
    way: Way,
}

enum Way {
    /// Plain HTTP/1: without TLS there is no negotiation of versions.
    Plain(Arc<Kept>),
    Secure(Mutex<Spoken>),
}

/// The version of HTTP that an instance speaks within TLS.
enum Spoken {
    /// Not known yet. The next request finds out.
    Unknown,
    One,
    Two(SendRequest<Outgoing>),
}

/// The reason why there is no answer.
#[derive(Clone, Debug)]
pub(super) enum Unanswered {
    Instance(Fault),
    /// The client did not send the whole body that it had announced, which is no fault of the
    /// instance.
    Client,
}

impl Unanswered {
    /// No connection could be made.
    pub(super) fn unreachable(error: &dyn std::error::Error) -> Self {
        Self::Instance(Fault::of(InstanceFailure::Unreachable, error))
    }

    /// The connection was made and broke.
    pub(super) fn of(error: &hyper::Error) -> Self {
        match error.is_user() {
            true => Self::Client,
            false => Self::Instance(Fault::of(InstanceFailure::Broken, error)),
        }
    }
}

impl Connections {
    pub(super) fn new(upstream: &Upstream) -> Self {
        let instance = |address: &Address| Instance {
            address: address.clone(),
            way: match kept(upstream, address) {
                Some(kept) => Way::Plain(Arc::new(kept)),
                None => Way::Secure(Mutex::new(Spoken::Unknown)),
            },
        };
        Self {
            one: Client::builder(TokioExecutor::new())
                .pool_idle_timeout(POOL_IDLE)
                .pool_max_idle_per_host(upstream.pool_max)
                .pool_timer(TokioTimer::new())
                .build(connector(upstream, false)),
            either: connector(upstream, true),
            instances: upstream.addresses.iter().map(instance).collect(),
            connect_timeout: upstream.connect_timeout,
        }
    }

    /// Sends a request to an instance in the version that it speaks, and waits for the head of its
    /// answer. A websocket starts from HTTP/1. `spare` is a copy of the request, if there is one
    /// and the request may be sent twice.
    pub(super) async fn ask(
        &self,
        index: usize,
        mut request: Request<Outgoing>,
        spare: &mut Option<Request<Outgoing>>,
        upgrades: bool,
    ) -> Result<Response<Arriving>, Unanswered> {
        let instance = self.instances.get(index).ok_or(Unanswered::Client)?;
        if let (Way::Plain(kept), false) = (&instance.way, upgrades) {
            return kept.ask(request, spare).await;
        }
        let place = placed(&instance.address, request.uri()).ok_or(Unanswered::Client)?;
        let host = request.headers().get(HOST).cloned();
        request.uri_mut().clone_from(&place);
        let spoken = match &instance.way {
            Way::Secure(spoken) if !upgrades => spoken,
            Way::Secure(_) | Way::Plain(_) => return self.ask_in_one(instance, request).await,
        };
        // A request that an ended connection returns unsent may be sent on a new one, once.
        let mut is_last = false;
        loop {
            let Some(mut sender) = self.two(spoken, &place).await? else {
                return self.ask_in_one(instance, request).await;
            };
            name_host(&mut request);
            let mut unsent = match sender.try_send_request(request).await {
                Ok(response) => return Ok(response.map(Arriving::from)),
                Err(unsent) => unsent,
            };
            let Some(again) = unsent.take_message().filter(|_| !is_last) else {
                return Err(Unanswered::of(unsent.error()));
            };
            is_last = true;
            instance.forget().await;
            request = again;
            request.uri_mut().clone_from(&place);
            if let Some(host) = &host {
                request.headers_mut().insert(HOST, host.clone());
            }
        }
    }

    async fn ask_in_one(
        &self,
        instance: &Instance,
        request: Request<Outgoing>,
    ) -> Result<Response<Arriving>, Unanswered> {
        let error = match self.one.request(request).await {
            Ok(response) => return Ok(response.map(Arriving::from)),
            Err(error) => error,
        };
        // The process that listens there next may prefer the other version.
        instance.forget().await;
        let cause = std::error::Error::source(&error);
        let cause = cause.and_then(|cause| cause.downcast_ref::<hyper::Error>());
        Err(match cause {
            _ if error.is_connect() => Unanswered::unreachable(&error),
            Some(cause) => Unanswered::of(cause),
            None => Unanswered::Instance(Fault::of(InstanceFailure::Broken, &error)),
        })
    }

    /// Returns the HTTP/2 connection to an instance, and opens it if there is none; `None` if the
    /// instance speaks HTTP/1. Requests that come meanwhile wait for the same connection.
    async fn two(
        &self,
        spoken: &Mutex<Spoken>,
        place: &Uri,
    ) -> Result<Option<SendRequest<Outgoing>>, Unanswered> {
        let mut spoken = spoken.lock().await;
        match &*spoken {
            Spoken::One => return Ok(None),
            Spoken::Two(sender) if !sender.is_closed() => return Ok(Some(sender.clone())),
            Spoken::Two(_) | Spoken::Unknown => {}
        }
        let opened = tokio::time::timeout(self.connect_timeout, self.open(place)).await;
        let late = || Fault::new(InstanceFailure::Unreachable, CONNECT_LATE);
        *spoken = opened.unwrap_or_else(|_| Err(Unanswered::Instance(late())))?;
        Ok(match &*spoken {
            Spoken::Two(sender) => Some(sender.clone()),
            Spoken::Unknown | Spoken::One => None,
        })
    }

    /// Connects, and returns the version that was negotiated.
    async fn open(&self, place: &Uri) -> Result<Spoken, Unanswered> {
        let failed = |error: tower::BoxError| Unanswered::unreachable(&*error);
        let mut connector = self.either.clone();
        let ready = connector.ready().await.map_err(failed)?;
        let stream = ready.call(place.clone()).await.map_err(failed)?;
        if !stream.connected().is_negotiated_h2() {
            return Ok(Spoken::One);
        }
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(Some(PING_EVERY))
            .keep_alive_timeout(PING_PATIENCE)
            .handshake(stream)
            .await
            .map_err(|error| Unanswered::unreachable(&error))?;
        task::spawn(async { drop(connection.await) });
        Ok(Spoken::Two(sender))
    }
}

impl Instance {
    async fn forget(&self) {
        if let Way::Secure(spoken) = &self.way {
            *spoken.lock().await = Spoken::Unknown;
        }
    }
}

/// Returns the target with the scheme and authority of this address.
fn placed(address: &Address, target: &Uri) -> Option<Uri> {
    let path = target.path_and_query().cloned();
    let placed = Uri::builder()
        .scheme(address.scheme.clone())
        .authority(address.authority.clone())
        .path_and_query(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
    placed.build().ok()
}

/// The connections that a worker keeps itself, to an instance that speaks plain HTTP.
fn kept(upstream: &Upstream, at: &Address) -> Option<Kept> {
    if at.scheme != Scheme::HTTP {
        return None;
    }
    let host = HeaderValue::from_str(at.authority.as_str()).ok()?;
    let place = placed(at, &Uri::from_static("/"))?;
    let connector = plain(upstream);
    let idle_max = upstream.pool_max;
    Some(Kept::new(connector, place, host, idle_max, POOL_IDLE))
}

/// Moves the host into the target. In HTTP/2 the target itself names the host, and a `Host` header
/// with another value makes a request malformed (RFC 9113 §8.3.1).
fn name_host(request: &mut Request<Outgoing>) {
    let host = request.headers_mut().remove(HOST);
    let named = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
    // User information (before an `@`) is no part of a host.
    let Some(named) = named.filter(|named| !named.as_str().contains('@')) else {
        return;
    };
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.authority = Some(named);
    *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
}

fn plain(upstream: &Upstream) -> HttpConnector {
    let mut plain = HttpConnector::new();
    plain.set_nodelay(true);
    plain.enforce_http(false);
    plain.set_connect_timeout(Some(upstream.connect_timeout));
    plain
}

/// Builds a connector: for HTTP/1, or with `either` also for HTTP/2 where an instance agrees to it
/// within TLS.
fn connector(upstream: &Upstream, either: bool) -> Connector {
    let secure = HttpsConnectorBuilder::new()
        .with_tls_config(upstream.tls.clone())
        .https_or_http()
        .enable_http1();
    match either {
        true => secure.enable_http2().wrap_connector(plain(upstream)),
        false => secure.wrap_connector(plain(upstream)),
    }
}
