//! The load generator: calls of Envoy's service on a few connections, several at once on each.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tonic::transport::{Channel, Endpoint};

const ROUND: Duration = Duration::from_secs(3);
const THREADS: usize = 2;
const CONNECTIONS: usize = 8;
const AT_ONCE: usize = 8;
const CALLERS: u64 = 100_000;
const TENANTS: u64 = 1_000;
const ROUTES: u64 = 100;

/// The descriptors of a call.
pub(crate) type Ask = fn(u64) -> Vec<RateLimitDescriptor>;

/// Two kinds of calls: each caller under a limit of their own, all under one limit.
pub(crate) struct Asks {
    pub(crate) own: Ask,
    pub(crate) shared: Ask,
}

pub(crate) const ONE: Asks = Asks {
    own: |number| vec![caller(number)],
    shared: |_| vec![descriptor("shared", "one".to_owned())],
};

pub(crate) const THREE: Asks = Asks {
    own: |number| vec![caller(number), tenant(number), route(number)],
    shared: |number| {
        let shared = descriptor("shared", "three".to_owned());
        vec![shared, tenant(number), route(number)]
    },
};

fn caller(number: u64) -> RateLimitDescriptor {
    let mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) % CALLERS;
    descriptor("caller", format!("198.51.{}.{}", mixed >> 8, mixed & 255))
}

fn tenant(number: u64) -> RateLimitDescriptor {
    descriptor("tenant", format!("tenant-{}", number % TENANTS))
}

fn route(number: u64) -> RateLimitDescriptor {
    descriptor("route", format!("/v1/route-{}", number % ROUTES))
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
pub(crate) struct Round {
    took_us: Vec<u32>,
    pub(crate) admitted: u64,
    pub(crate) p99_ms: f64,
}

impl Round {
    pub(crate) fn calls(&self) -> f64 {
        f64::from(u32::try_from(self.took_us.len()).expect("calls of a few seconds"))
    }

    pub(crate) fn per_second(&self) -> f64 {
        self.calls() / ROUND.as_secs_f64()
    }
}

/// One round of calls.
pub(crate) fn load(target: SocketAddr, ask: Ask) -> Round {
    let mut round = Round::default();
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || generate(target, ask, thread)))
            .collect();
        for thread in running {
            let (admitted, times) = thread.join().expect("a generator");
            round.admitted += admitted;
            round.took_us.extend(times);
        }
    });
    let took = &mut round.took_us;
    took.sort_unstable();
    let p99 = took.get(took.len() * 99 / 100).copied().unwrap_or_default();
    round.p99_ms = f64::from(p99) / 1_000.0;
    round
}

/// Calls of one thread: how many were admitted, and how long each took in microseconds.
fn generate(target: SocketAddr, ask: Ask, thread: usize) -> (u64, Vec<u32>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let endpoint = Endpoint::from_shared(format!("http://{target}")).unwrap();
        let ends = Instant::now() + ROUND;
        let mut tasks = Vec::new();
        for connection in 0..CONNECTIONS / THREADS {
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
    mut client: RateLimitServiceClient<Channel>,
    ask: Ask,
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
            descriptors: ask(number),
            hits_addend: 1,
        };
        let answer = client.should_rate_limit(request).await.unwrap();
        admitted += u64::from(answer.into_inner().overall_code() == Code::Ok);
        took.push(u32::try_from(asked.elapsed().as_micros()).unwrap_or(u32::MAX));
    }
    (admitted, took)
}
