//! `ShouldRateLimit` beside bare tonic services that answer the same messages, on the same
//! layout (one current-thread runtime per core, one port), each a process of its own, in one
//! run with one load generator. On Redis the services beside it read the counters and then
//! add to them, with one connection per worker: in the fewest commands, and in those of
//! limitador 0.14's Redis storage.
//!
//! `cargo bench -p palisade-cli --bench rls [-- one three]`. Only ratios mean anything:
//! generator, servers and Redis share the machine's cores. Processor time is steadier than
//! calls per second. `over` is what was admitted beyond a limit that everybody shares.
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

mod beside;
#[path = "../common/mod.rs"]
mod common;
mod load;
#[path = "../../../palisade-store/tests/common/redis_server.rs"]
mod redis_server;

use common::{Service, processor_us};
use load::{Ask, Round, load};
use redis_server::RedisServer;

const ROUNDS: usize = 3;
const SHARED_LIMIT: u64 = 1_000;

fn policy(store: &str, accuracy: &str) -> String {
    let limit = |key: &str, rate: &str| {
        format!(
            "[[limit]]\nname = \"per-{key}\"\ndomain = \"bench\"\n\
             descriptor = [{{ key = \"{key}\" }}]\nrate = \"{rate}\"\naccuracy = \"{accuracy}\"\n"
        )
    };
    let limits = ["caller", "tenant", "route"].map(|key| limit(key, "1000000/h"));
    format!(
        "[policy]\ndefaults = false\n\
         [store]\nurl = \"{store}\"\ntimeout = \"2s\"\nkey_prefix = \"{accuracy}:\"\n\
         [secrets]\nkey = \"env:KEY\"\n{}{}",
        limits.concat(),
        limit("shared", &format!("{SHARED_LIMIT}/h"))
    )
}

/// A service, and how it is called in the table.
struct Rival {
    name: &'static str,
    service: Service,
    counts: bool,
    _folder: Option<tempfile::TempDir>,
}

impl Rival {
    fn palisade(name: &'static str, store: &str, accuracy: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = policy(store, accuracy);
        let grpc = ["--grpc", "127.0.0.1:0"];
        Self {
            name,
            service: Service::palisade(folder.path(), &config, &grpc, "gRPC"),
            counts: true,
            _folder: Some(folder),
        }
    }

    fn beside(name: &'static str, args: &[&str]) -> Self {
        Self {
            name,
            service: Service::beside(args),
            counts: args[0] != beside::ECHO,
            _folder: None,
        }
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Some(shape) = args.first().filter(|arg| arg.starts_with("beside-")) {
        beside::serve(shape, args.get(1).map(String::as_str));
    }
    let has = |part: &str| {
        !args.iter().any(|arg| arg == "one" || arg == "three") || args.iter().any(|arg| arg == part)
    };
    println!(
        "{:<34} {:>9} {:>8} {:>8} {:>9} {:>8} {:>6}",
        "", "calls/s", "of first", "p99 ms", "server µs", "Redis µs", "over"
    );
    if has("echo") {
        compare(
            "one descriptor, no store beside it",
            &[
                Rival::beside("tonic echo", &[beside::ECHO]),
                Rival::palisade("Palisade, embedded", "memory:", "exact"),
            ],
            None,
            &load::ONE,
        );
    }
    let redis = RedisServer::start();
    let url = redis.url();
    let rivals = [
        Rival::beside("two round trips", &[beside::TWO_TRIPS, &url]),
        Rival::beside("limitador's commands", &[beside::LIMITADOR, &url]),
        Rival::beside("its commands and layout", &[beside::LIMITADOR_LAYOUT, &url]),
        Rival::palisade("Palisade", &url, "exact"),
        Rival::palisade("Palisade, leased", &url, "leased"),
    ];
    if has("one") {
        compare("one descriptor on Redis", &rivals, Some(&redis), &load::ONE);
    }
    if has("three") {
        compare(
            "three descriptors on Redis",
            &rivals,
            Some(&redis),
            &load::THREE,
        );
    }
}

/// What one rival cost in one round.
struct Cost {
    round: Round,
    server_us: f64,
    redis_us: f64,
}

fn cost(rival: &Rival, redis: Option<&RedisServer>, ask: Ask) -> Cost {
    let redis_us = || redis.and_then(RedisServer::pid).map_or(0.0, processor_us);
    let before = (rival.service.processor_us(), redis_us());
    let round = load(rival.service.address, ask);
    let calls = round.calls();
    Cost {
        server_us: (rival.service.processor_us() - before.0) / calls,
        redis_us: (redis_us() - before.1) / calls,
        round,
    }
}

/// Measures all in turn and prints their medians.
fn compare(title: &str, rivals: &[Rival], redis: Option<&RedisServer>, asks: &load::Asks) {
    let mut rows: Vec<Vec<Cost>> = rivals.iter().map(|_| Vec::new()).collect();
    for _ in 0..ROUNDS {
        for (rival, row) in rivals.iter().zip(&mut rows) {
            row.push(cost(rival, redis, asks.own));
        }
    }
    println!("{title}");
    let mut first = None;
    for (rival, mut row) in rivals.iter().zip(rows) {
        row.sort_by(|a, b| a.round.calls().total_cmp(&b.round.calls()));
        let median = row.swap_remove(ROUNDS / 2);
        let per_second = median.round.per_second();
        let first = *first.get_or_insert(per_second);
        let over = if rival.counts {
            let admitted = load(rival.service.address, asks.shared).admitted;
            admitted.saturating_sub(SHARED_LIMIT).to_string()
        } else {
            "-".to_owned()
        };
        println!(
            "  {:<32} {per_second:>9.0} {:>8.2} {:>8.2} {:>9.1} {:>8.1} {over:>6}",
            rival.name,
            per_second / first,
            median.round.p99_ms,
            median.server_us,
            median.redis_us,
        );
    }
}
