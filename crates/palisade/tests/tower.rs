//! The layers of `tower`, in front of plain services, axum and a real socket.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test fails by panicking and says why"
)]

#[path = "tower/at_once.rs"]
mod at_once;
#[path = "tower/combined.rs"]
mod combined;
#[path = "tower/concurrency.rs"]
mod concurrency;
mod engine_support;
#[path = "tower/examples.rs"]
mod examples;
#[path = "tower/grpc.rs"]
mod grpc;
#[path = "tower/hanging_up.rs"]
mod hanging_up;
#[path = "tower/hyper.rs"]
mod hyper;
#[path = "tower/ids.rs"]
mod ids;
#[path = "tower/layers.rs"]
mod layers;
#[path = "tower/load.rs"]
mod load;
#[path = "tower/login.rs"]
mod login;
mod nodes_support;
#[path = "../../palisade-store/tests/common/postgres_server.rs"]
mod postgres_server;
#[path = "../../palisade-store/tests/common/redis_server.rs"]
mod redis_server;
#[path = "tower/slots.rs"]
mod slots;
#[path = "tower/stores.rs"]
mod stores;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine_support::Model;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use palisade::cases::FaultStore;
use palisade::core::{Clock, PolicySet};
use palisade::store::Store;
use palisade::store::memory::{MemoryConfig, MemoryStore};
use palisade::tower::Gate;
use palisade::{Engine, EngineConfig, VirtualClock};
use tower::{Service, ServiceExt};

type Body = Full<bytes::Bytes>;

/// Number of requests that reached the application.
#[derive(Clone, Default)]
struct Reached(Arc<AtomicUsize>);

impl Reached {
    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// The application behind the layers.
trait Application:
    Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send>
    + Clone
    + Send
    + 'static
{
}

impl<S> Application for S where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static
{
}

/// An application that answers everything with 200.
fn application(reached: &Reached) -> impl Application + use<> {
    let reached = reached.clone();
    tower::service_fn(move |_| {
        reached.0.fetch_add(1, Ordering::SeqCst);
        async { Ok(Response::new(Body::from("hello"))) }
    })
}

/// A request of this peer.
fn request(peer: &str, path: &str) -> Request<Body> {
    let mut request = Request::get(path).body(Body::default()).unwrap();
    let headers = request.headers_mut();
    headers.insert("user-agent", "test".parse().unwrap());
    let address: SocketAddr = format!("{peer}:4711").parse().unwrap();
    request.extensions_mut().insert(address);
    request
}

async fn ask<S, A>(service: &S, request: Request<Body>) -> Response<A>
where
    S: Service<Request<Body>, Response = Response<A>, Error = Infallible> + Clone,
{
    service.clone().oneshot(request).await.unwrap()
}

async fn text<A: http_body::Body<Error: std::fmt::Debug>>(response: Response<A>) -> String {
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

fn header<'a, A>(response: &'a Response<A>, name: &str) -> &'a str {
    let value = response.headers().get(name);
    value.map_or("absent", |value| value.to_str().unwrap())
}

/// An engine with this policy on this store, by this clock.
fn engine(store: Arc<dyn Store>, policy: &str, time: Arc<dyn Clock>) -> Arc<Engine> {
    let keyring = engine_support::keyring();
    Arc::new(Engine::new(EngineConfig {
        policy: engine_support::policy(policy, &palisade_policy::Env::default()),
        ..EngineConfig::new(store, PolicySet::empty(), keyring, time)
    }))
}

/// The same on the embedded store.
fn embedded(policy: &str, clock: &Arc<VirtualClock>) -> Arc<Engine> {
    let time: Arc<dyn Clock> = Arc::<VirtualClock>::clone(clock);
    let store = MemoryStore::new(Arc::clone(&time), &MemoryConfig::default());
    engine(Arc::new(store), policy, time)
}

/// An engine on the reference store, on a clock that only tests move.
struct Rig {
    engine: Arc<Engine>,
    store: Arc<FaultStore>,
    clock: Arc<VirtualClock>,
}

impl Rig {
    fn new(policy: &str) -> Self {
        let clock = Arc::new(VirtualClock::at(engine_support::START));
        let time: Arc<dyn Clock> = Arc::<VirtualClock>::clone(&clock);
        let store = Arc::new(FaultStore::new(Arc::new(Model::new(Arc::clone(&time)))));
        let engine = engine(Arc::<FaultStore>::clone(&store), policy, time);
        Self {
            engine,
            store,
            clock,
        }
    }

    fn gate(&self) -> Gate<Engine> {
        Gate::new(Arc::clone(&self.engine))
    }

    /// Remaining units of a limit, found by a peek.
    async fn left(&self, limit: &str) -> u64 {
        let facts = r#"{"ip":"192.0.2.1","method":"GET","path":"/x","user":"ann"}"#;
        let facts = engine_support::request(facts);
        let answer = engine_support::render(&self.engine.peek(&facts).await);
        engine_support::remaining(&answer, limit)
    }
}
