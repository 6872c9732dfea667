//! The load generator. It calls as Envoy does: few connections, one for each of its threads,
//! and many calls at once on each. It is cheap, since it runs on the servers' cores; what it
//! takes for a call is a column.

use std::net::SocketAddr;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use prost::Message;

use crate::connection::{Calls, Seen};
use crate::wire;

/// Threads of the generator: connections are spread over them.
const THREADS: usize = 2;
const CALLERS: u64 = 100_000;
/// Callers of whom a few come most of the time.
const SKEWED: usize = 1_000;
const TENANTS: u64 = 1_000;
const ROUTES: u64 = 100;
const DOMAIN: &str = "bench";

/// Connections, and calls at once on each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) connections: usize,
    pub(crate) streams: usize,
}

impl Shape {
    /// From `4x16`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (connections, streams) = text.split_once('x')?;
        Some(Self {
            connections: connections.parse().ok().filter(|c| *c > 0)?,
            streams: streams.parse().ok().filter(|s| *s > 0)?,
        })
    }
}

/// Writes the message of the call of this number.
pub(crate) type Ask<'f> = dyn Fn(u64, &mut Vec<u8>) + Sync + 'f;

fn ask(bytes: &mut Vec<u8>, descriptors: &[(&str, &str)]) {
    wire::request(bytes, DOMAIN, descriptors);
}

/// Each of many callers under a limit of its own.
pub(crate) fn many(number: u64, bytes: &mut Vec<u8>) {
    ask(bytes, &[("caller", &caller(mixed(number) % CALLERS))]);
}

/// The same callers, tenants and routes, each under a limit of its own.
pub(crate) fn three(number: u64, bytes: &mut Vec<u8>) {
    let caller = caller(mixed(number) % CALLERS);
    let tenant = format!("tenant-{}", number % TENANTS);
    let route = format!("/v1/route-{}", number % ROUTES);
    let descriptors = [
        ("caller", caller.as_str()),
        ("tenant", &tenant),
        ("route", &route),
    ];
    ask(bytes, &descriptors);
}

/// Everybody under one limit, which admits them all.
pub(crate) fn everybody(_: u64, bytes: &mut Vec<u8>) {
    ask(bytes, &[("generic_key", "everybody")]);
}

/// The n-th of a thousand callers comes a n-th as often as the first.
pub(crate) fn skewed(number: u64, bytes: &mut Vec<u8>) {
    static WHO: LazyLock<Vec<u16>> = LazyLock::new(|| {
        let weight = |n: usize| 1.0 / f64::from(u32::try_from(n).expect("a few") + 1);
        let all: f64 = (0..SKEWED).map(weight).sum();
        let mut who = Vec::new();
        for n in 0..SKEWED {
            let share = (weight(n) / all * 65_536.0).round();
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a share"
            )]
            who.extend(std::iter::repeat_n(n as u16, share as usize));
        }
        who
    });
    let place = mixed(number) % WHO.len() as u64;
    let who = WHO[usize::try_from(place).expect("below its length")];
    ask(bytes, &[("caller", &caller(u64::from(who)))]);
}

fn mixed(number: u64) -> u64 {
    let number = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    number ^ (number >> 31)
}

fn caller(number: u64) -> String {
    format!("198.51.{}.{}", number >> 8, number & 255)
}

/// Everybody under a limit that is soon used up; `of` tells one run's from another's.
pub(crate) fn shared(of: &str, bytes: &mut Vec<u8>) {
    ask(bytes, &[("shared", of)]);
}

/// What one round saw.
#[derive(Default)]
pub(crate) struct Round {
    seconds: f64,
    took_us: Vec<u32>,
    pub(crate) admitted: u64,
}

impl Round {
    pub(crate) fn calls(&self) -> f64 {
        f64::from(u32::try_from(self.took_us.len()).expect("calls of a few seconds"))
    }

    pub(crate) fn per_second(&self) -> f64 {
        self.calls() / self.seconds
    }

    /// The times within which half of the calls and nearly all of them were answered, in ms.
    pub(crate) fn quantiles(&self) -> (f64, f64) {
        let of = |share: usize| self.took_us.get(self.took_us.len() * share / 100);
        let ms = |us: Option<&u32>| f64::from(us.copied().unwrap_or_default()) / 1_000.0;
        (ms(of(50)), ms(of(99)))
    }
}

/// One round of calls.
pub(crate) fn load(target: SocketAddr, shape: Shape, time: Duration, ask: &Ask<'_>) -> Round {
    let checked = check(target, ask);
    let begun = Instant::now();
    let ends = begun + time;
    let threads = THREADS.min(shape.connections);
    let mut round = Round::default();
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|thread| {
                let own = (thread..shape.connections).step_by(threads);
                scope.spawn(move || generate(target, ask, own, shape.streams, ends))
            })
            .collect();
        for seen in running
            .into_iter()
            .flat_map(|thread| thread.join().expect("a generator"))
        {
            round.admitted += seen.admitted;
            round.took_us.extend(seen.took_us);
        }
    });
    round.seconds = begun.elapsed().as_secs_f64();
    round.took_us.sort_unstable();
    round.admitted += checked + check(target, ask);
    round
}

fn generate(
    target: SocketAddr,
    ask: &Ask<'_>,
    connections: impl Iterator<Item = usize>,
    streams: usize,
    ends: Instant,
) -> Vec<Seen> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let calls = connections.map(|connection| {
        let first = (connection as u64) << 32;
        Calls::new(ask, first, streams).run(target, ends)
    });
    let calls: FuturesUnordered<_> = calls.collect();
    runtime.block_on(calls.collect())
}

/// A call by somebody else's client, which reads all of the answer: its head, its message and
/// its status. The message of the generator is read by somebody else's decoder, too. Returns
/// how many were admitted.
fn check(target: SocketAddr, ask: &Ask<'_>) -> u64 {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut bytes = Vec::new();
    ask(7, &mut bytes);
    let request = RateLimitRequest::decode(bytes.as_slice()).unwrap();
    let is_whole = |one: &RateLimitDescriptor| {
        let says = |entry: &Entry| !entry.key.is_empty() && !entry.value.is_empty();
        one.entries.len() == 1 && one.entries.iter().all(says)
    };
    assert!(!request.descriptors.is_empty() && request.descriptors.iter().all(is_whole));
    assert_eq!((request.domain.as_str(), request.hits_addend), (DOMAIN, 1));
    let count = request.descriptors.len();
    runtime.block_on(async {
        let client = RateLimitServiceClient::connect(format!("http://{target}")).await;
        let answer = client.unwrap().should_rate_limit(request).await.unwrap();
        let answer = answer.into_inner();
        assert_eq!(answer.statuses.len(), count);
        u64::from(answer.overall_code() == Code::Ok)
    })
}
