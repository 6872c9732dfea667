//! Overhead of a layer over a bare service, on the embedded store, on a single thread.
//!
//! `cargo bench -p palisade --bench tower` prints nanoseconds a request: of the bare
//! service, behind one limiter, behind an engine with one limit by address, and behind two
//! layers of an engine, one that counts addresses and within it one that counts users. Rounds
//! alternate, the median counts. `valgrind --tool=callgrind` on the built binary with
//! `bare`, `limiter`, `engine` or `layers` and a count as arguments gives instructions.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a benchmark prints what it measured and stops at the first error"
)]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use palisade::core::{Clock, Keyring};
use palisade::store::memory::{MemoryConfig, MemoryStore};
use palisade::tower::{EdgeLayer, Gate, IdentityLayer, Who};
use palisade::{Engine, EngineConfig, Limiter, Quota, SystemClock};
use tower::{Layer, Service, ServiceExt};

type Body = Full<Bytes>;

const ROUNDS: usize = 9;
const REQUESTS: u32 = 200_000;
const ADDRESSES: u32 = 10_000;

const POLICY: &str = r#"
[policy]
defaults = false
default_class = "all"
[[class]]
name = "all"
[[limit]]
name = "per-address"
by = ["ip"]
rate = "1000000/h"
"#;

const BY_USER: &str = r#"
[[limit]]
name = "per-user"
by = ["user"]
rate = "1000000/h"
"#;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [name, count] = arguments.as_slice() {
        let count = count.parse().unwrap();
        runtime.block_on(run(name, count));
        return;
    }
    let names = ["bare", "limiter", "engine", "layers"];
    let mut took = [const { Vec::new() }; 4];
    for _ in 0..ROUNDS {
        for (name, took) in names.iter().zip(&mut took) {
            took.push(runtime.block_on(run(name, REQUESTS)));
        }
    }
    let medians = took.map(|mut all| {
        all.sort_by(f64::total_cmp);
        all[ROUNDS / 2]
    });
    for (name, ns) in names.iter().zip(medians) {
        println!(
            "{name:<8} {ns:>8.0} ns a request, {:>6.0} over the bare service",
            ns - medians[0]
        );
    }
}

fn request(number: u32) -> Request<Body> {
    let [a, b, c, d] = (number % ADDRESSES).to_be_bytes();
    let peer = SocketAddr::from(([10 + a, b, c, d], 4711));
    let mut request = Request::get("/things/42").body(Body::default()).unwrap();
    let headers = request.headers_mut();
    headers.insert("host", http::HeaderValue::from_static("example.org"));
    headers.insert("user-agent", http::HeaderValue::from_static("curl/8.5.0"));
    request.extensions_mut().insert(peer);
    request
}

async fn run(name: &str, count: u32) -> f64 {
    let bare = tower::service_fn(async |_: Request<Body>| {
        Ok::<_, Infallible>(Response::new(Body::from("hello")))
    });
    match name {
        "bare" => measure(bare, count).await,
        "limiter" => {
            let quota = Quota::per(1_000_000, Duration::from_secs(3_600)).unwrap();
            let gate = Gate::limited("per-address", Limiter::new(quota));
            measure(EdgeLayer::new(&gate).layer(bare), count).await
        }
        "engine" => {
            let gate = Gate::new(engine(POLICY));
            measure(EdgeLayer::new(&gate).layer(bare), count).await
        }
        _ => {
            let gate = Gate::new(engine(&[POLICY, BY_USER].concat()));
            let within = IdentityLayer::new(&gate).layer(bare);
            let authenticated = Authenticated(within, Arc::new(users()));
            measure(EdgeLayer::new(&gate).layer(authenticated), count).await
        }
    }
}

/// Stands in for an application's authentication: every address has a user.
#[derive(Clone)]
struct Authenticated<S>(S, Arc<Vec<Who>>);

impl<S: Service<Request<Body>>> Service<Request<Body>> for Authenticated<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> S::Future {
        let peer = request.extensions().get::<SocketAddr>().unwrap();
        let SocketAddr::V4(peer) = peer else {
            unreachable!("requests come from IPv4")
        };
        let number = u32::from(*peer.ip()) & 0xff_ffff;
        let who = self.1[usize::try_from(number).unwrap()].clone();
        request.extensions_mut().insert(who);
        self.0.call(request)
    }
}

fn users() -> Vec<Who> {
    let user = |number| Who::default().user(&format!("user-{number}")).unwrap();
    (0..ADDRESSES).map(user).collect()
}

fn engine(policy: &str) -> Arc<Engine> {
    let (env, flags) = Default::default();
    let loaded = palisade_policy::load_text(Path::new("bench.toml"), policy, &env, &flags);
    let policy = (*loaded.unwrap().policy).clone();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let store = MemoryStore::new(Arc::clone(&clock), &MemoryConfig::default());
    let keyring = Keyring::new(&[7; 32], None).unwrap();
    Arc::new(Engine::new(EngineConfig::new(
        Arc::new(store),
        policy,
        keyring,
        clock,
    )))
}

/// Nanoseconds per request, including the time to build the request.
async fn measure<S, A>(mut service: S, count: u32) -> f64
where
    S: Service<Request<Body>, Response = Response<A>, Error = Infallible>,
{
    let clock = SystemClock::new();
    for number in 0..ADDRESSES {
        service
            .ready()
            .await
            .unwrap()
            .call(request(number))
            .await
            .unwrap();
    }
    let began = clock.now();
    for number in 0..count {
        let answer = service.ready().await.unwrap().call(request(number)).await;
        assert_eq!(answer.unwrap().status(), 200);
    }
    clock.now().since(began) as f64 * 1_000.0 / f64::from(count)
}
