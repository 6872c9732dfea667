//! `ShouldRateLimit` beside a bare tonic service that answers the same messages, on the same
//! layout (one current-thread runtime per core, one port), in one run with one load generator;
//! and on Redis beside the shape of two round trips: read the counters, then add to them.
//!
//! `cargo bench -p palisade-server --bench rls`. Only ratios mean anything: generator and
//! servers share the machine's cores. `over` is what was admitted beyond a limit that
//! everybody shares.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a benchmark prints what it measured and stops at the first error"
)]
#![expect(
    clippy::disallowed_methods,
    reason = "how long an answer takes is what is measured"
)]

#[path = "../../palisade-store/tests/common/redis_server.rs"]
mod redis_server;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use redis::aio::MultiplexedConnection;
use redis_server::RedisServer;
use socket2::{Domain, Protocol, Socket, Type};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status};

const ROUNDS: usize = 3;
const ROUND: Duration = Duration::from_secs(3);
const WORKERS: usize = 2;
const CONNECTIONS: usize = 8;
const AT_ONCE: usize = 8;
const CALLERS: u64 = 100_000;
const SHARED_LIMIT: u64 = 1_000;
const KEY: &str = "0123456789abcdef0123456789abcdef0123456789abcdef";

fn policy(store: &str) -> String {
    format!(
        r#"
[policy]
defaults = false
[store]
url = "{store}"
timeout = "2s"
[secrets]
key = "env:KEY"
[[limit]]
name = "per-caller"
domain = "bench"
descriptor = [{{ key = "caller" }}]
rate = "1000000/h"
[[limit]]
name = "shared"
domain = "bench"
descriptor = [{{ key = "shared", value = "all" }}]
rate = "{SHARED_LIMIT}/h"
"#
    )
}

fn main() {
    let echo = start_peer(None);
    let embedded = Palisade::start("memory:");
    println!("                       calls/s   p99 ms     over");
    let ratio = compare(("tonic echo", echo), ("embedded", embedded.address));
    println!("embedded / echo      {ratio:>8.1} %");
    let redis = RedisServer::start();
    let two_trips = start_peer(Some(&redis.url()));
    let on_redis = Palisade::start(&redis.url());
    let ratio = compare(
        ("two round trips", two_trips),
        ("on Redis", on_redis.address),
    );
    println!("Redis / two trips    {ratio:>8.1} %");
}

/// Measures both in turn; the second in percent of the first.
fn compare(peer: (&str, SocketAddr), ours: (&str, SocketAddr)) -> f64 {
    let mut rows = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        rows[0].push(load(peer.1, &caller));
        rows[1].push(load(ours.1, &caller));
    }
    let shared = |_: u64| descriptor("shared", "all".to_owned());
    let over = [peer, ours].map(|(_, address)| {
        let admitted = load(address, &shared).admitted;
        admitted.saturating_sub(SHARED_LIMIT)
    });
    let medians = rows.map(|mut rounds| {
        rounds.sort_by_key(|round| round.calls);
        rounds.swap_remove(ROUNDS / 2)
    });
    for ((name, median), over) in [peer.0, ours.0].iter().zip(&medians).zip(over) {
        let over = if *name == "tonic echo" {
            "-".to_owned()
        } else {
            over.to_string()
        };
        println!(
            "{name:<20} {:>9.0} {:>8.2} {over:>8}",
            median.per_second(),
            median.p99_ms
        );
    }
    100.0 * medians[1].per_second() / medians[0].per_second()
}

fn caller(number: u64) -> RateLimitDescriptor {
    let mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) % CALLERS;
    descriptor("caller", format!("198.51.{}.{}", mixed >> 8, mixed & 255))
}

fn descriptor(key: &str, value: String) -> RateLimitDescriptor {
    RateLimitDescriptor {
        entries: vec![Entry {
            key: key.to_owned(),
            value,
        }],
        ..RateLimitDescriptor::default()
    }
}

/// What one round saw.
#[derive(Default)]
struct Round {
    calls: u64,
    admitted: u64,
    p99_ms: f64,
}

impl Round {
    fn per_second(&self) -> f64 {
        f64::from(u32::try_from(self.calls).expect("calls of a few seconds")) / ROUND.as_secs_f64()
    }
}

fn load(target: SocketAddr, ask: &(impl Fn(u64) -> RateLimitDescriptor + Sync)) -> Round {
    let threads = WORKERS;
    let mut took: Vec<u32> = Vec::new();
    let mut round = Round::default();
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || generate(target, ask, thread)))
            .collect();
        for thread in running {
            let (admitted, times) = thread.join().expect("a generator");
            round.admitted += admitted;
            took.extend(times);
        }
    });
    took.sort_unstable();
    round.calls = took.len() as u64;
    let p99 = took.get(took.len() * 99 / 100).copied().unwrap_or_default();
    round.p99_ms = f64::from(p99) / 1_000.0;
    round
}

/// Calls of one thread: how many were admitted, and how long each took in microseconds.
fn generate(
    target: SocketAddr,
    ask: &impl Fn(u64) -> RateLimitDescriptor,
    thread: usize,
) -> (u64, Vec<u32>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let endpoint = Endpoint::from_shared(format!("http://{target}")).unwrap();
        let ends = Instant::now() + ROUND;
        let mut tasks = Vec::new();
        for connection in 0..CONNECTIONS / WORKERS {
            let channel = endpoint.connect().await.unwrap();
            for lane in 0..AT_ONCE {
                let client = RateLimitServiceClient::new(channel.clone());
                let seed = ((thread * 16 + connection) * 16 + lane) as u64;
                tasks.push(lane_of(client, ask, seed << 32, ends));
            }
        }
        let done = futures_util::future::join_all(tasks).await;
        done.into_iter()
            .fold((0, Vec::new()), |mut all, (admitted, took)| {
                all.0 += admitted;
                all.1.extend(took);
                all
            })
    })
}

async fn lane_of(
    mut client: RateLimitServiceClient<tonic::transport::Channel>,
    ask: &impl Fn(u64) -> RateLimitDescriptor,
    seed: u64,
    ends: Instant,
) -> (u64, Vec<u32>) {
    let (mut admitted, mut took) = (0, Vec::with_capacity(16 * 1024));
    for number in seed.. {
        let asked = Instant::now();
        if asked >= ends {
            break;
        }
        let request = RateLimitRequest {
            domain: "bench".to_owned(),
            descriptors: vec![ask(number)],
            hits_addend: 1,
        };
        let answer = client.should_rate_limit(request).await.unwrap();
        admitted += u64::from(answer.into_inner().overall_code() == Code::Ok);
        took.push(u32::try_from(asked.elapsed().as_micros()).unwrap_or(u32::MAX));
    }
    (admitted, took)
}

/// A started service, ended when dropped.
struct Palisade {
    child: Child,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Palisade {
    fn start(store: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("policy.toml"), policy(store)).unwrap();
        let any = "127.0.0.1:0";
        let mut child = Command::new(env!("CARGO_BIN_EXE_palisade"))
            .args(["serve", "--config", "policy.toml"])
            .args(["--listen", any, "--admin", any, "--grpc", any])
            .env("KEY", KEY)
            .current_dir(folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let row = lines
            .by_ref()
            .map_while(Result::ok)
            .find(|line| line.trim_start().starts_with("gRPC"))
            .expect("the address of the service");
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        let url = row.split_whitespace().last().unwrap();
        let address = url.trim_start_matches("http://").parse().unwrap();
        Self {
            child,
            address,
            _folder: folder,
        }
    }
}

impl Drop for Palisade {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The other side: the same messages, and nothing or two round trips behind them.
#[derive(Clone)]
struct Peer {
    redis: Option<MultiplexedConnection>,
}

const ADD: &str = "local c = redis.call('incrby', KEYS[1], ARGV[1]) \
                   if c == tonumber(ARGV[1]) then redis.call('expire', KEYS[1], ARGV[2]) end \
                   return c";

impl Peer {
    /// Reads the counter and, if it has room, adds to it: what was read may be old by then.
    async fn admits(&self, request: &RateLimitRequest) -> bool {
        let Some(redis) = &self.redis else {
            return true;
        };
        let mut redis = redis.clone();
        let entry = &request.descriptors[0].entries[0];
        let limit = if entry.key == "shared" {
            SHARED_LIMIT
        } else {
            1_000_000
        };
        let key = format!("peer:{}:{}", entry.key, entry.value);
        let read = redis::cmd("MGET").arg(&key).query_async(&mut redis).await;
        let read: Vec<Option<u64>> = read.unwrap();
        if read[0].unwrap_or(0) >= limit {
            return false;
        }
        let script = redis::Script::new(ADD);
        let mut added = script.key(&key);
        let added: u64 = added
            .arg(1)
            .arg(3_600)
            .invoke_async(&mut redis)
            .await
            .unwrap();
        added > 0
    }
}

#[tonic::async_trait]
impl RateLimitService for Peer {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let request = request.into_inner();
        let code = match self.admits(&request).await {
            true => Code::Ok,
            false => Code::OverLimit,
        };
        let header = |key: &str, value: &str| HeaderValue {
            key: key.to_owned(),
            value: value.to_owned(),
            ..HeaderValue::default()
        };
        let status = DescriptorStatus {
            code: code as i32,
            current_limit: Some(RateLimit {
                name: "per-caller".to_owned(),
                requests_per_unit: 1_000_000,
                unit: 3,
            }),
            limit_remaining: 999_999,
            ..DescriptorStatus::default()
        };
        Ok(Response::new(RateLimitResponse {
            overall_code: code as i32,
            statuses: vec![status; request.descriptors.len()],
            response_headers_to_add: vec![
                header("X-RateLimit-Limit", "1000000"),
                header("X-RateLimit-Remaining", "999999"),
                header("X-RateLimit-Reset", "1800000000"),
                header("RateLimit-Policy", "\"per-caller\";q=1000000;w=3600"),
                header("RateLimit", "\"per-caller\";r=999999;t=3600"),
            ],
            ..RateLimitResponse::default()
        }))
    }
}

/// One current-thread runtime and one socket of the same port per worker.
fn start_peer(redis: Option<&str>) -> SocketAddr {
    let first = listener("127.0.0.1:0".parse().unwrap());
    let address = first.local_addr().unwrap();
    let rest = (1..WORKERS).map(|_| listener(address));
    for listener in std::iter::once(first).chain(rest) {
        let redis = redis.map(str::to_owned);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let mut peer = Peer { redis: None };
                if let Some(url) = redis {
                    let client = redis::Client::open(url).unwrap();
                    peer.redis = client.get_multiplexed_async_connection().await.ok();
                }
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
                Server::builder()
                    .add_service(RateLimitServiceServer::new(peer))
                    .serve_with_incoming(incoming)
                    .await
                    .unwrap();
            });
        });
    }
    address
}

fn listener(address: SocketAddr) -> std::net::TcpListener {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
    socket.set_reuse_port(true).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket.bind(&address.into()).unwrap();
    socket.listen(1024).unwrap();
    socket.into()
}
