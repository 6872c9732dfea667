//! `ShouldRateLimit` beside bare tonic services that answer the same messages, on the same
//! layout (one current-thread runtime per core, on Redis Palisade's two more, and one port), each
//! a process of its own, in one run with one load generator. On Redis the services beside it read the counters and then
//! add to them: in the fewest commands, and in those of limitador 0.14's Redis storage.
//!
//! `cargo bench -p palisade-cli --bench rls [-- PART… CONNECTIONSxSTREAMS… rounds=N]`. Parts
//! are `echo`, `many`, `three`, `everybody` and `skewed`. Only ratios mean anything: generator,
//! servers and Redis share the machine's cores. Processor time is steadier than calls per
//! second. `over` is what was admitted beyond a limit that everybody shares.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
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
mod connection;
mod library;
mod load;
#[path = "../../../palisade-store/tests/common/redis_server.rs"]
mod redis_server;
mod wire;

use std::time::Duration;

use common::{Service, processor_us};
use load::{Ask, Round, Shape, load};
use redis_server::RedisServer;

const ROUND: Duration = Duration::from_secs(2);
/// Long enough to use the shared limit up many times over.
const SHARED_ROUND: Duration = Duration::from_millis(500);
const SHARED_LIMIT: u64 = 1_000;
/// What nobody uses up.
const AMPLE: u64 = 1_000_000_000;

/// As Envoy with four threads calls.
const LIKE_ENVOY: Shape = Shape {
    connections: 4,
    streams: 16,
};
/// The other end: a connection for each call that is under way.
const ALONE: Shape = Shape {
    connections: 64,
    streams: 1,
};

fn policy(store: &str, accuracy: &str) -> String {
    let limit = |(key, rate): (&str, u64)| {
        format!(
            "[[limit]]\nname = \"per-{key}\"\ndomain = \"bench\"\n\
             descriptor = [{{ key = \"{key}\" }}]\nrate = \"{rate}/h\"\naccuracy = \"{accuracy}\"\n"
        )
    };
    format!(
        "[policy]\ndefaults = false\n\
         [store]\nurl = \"{store}\"\ntimeout = \"2s\"\nkey_prefix = \"{accuracy}:\"\n\
         [secrets]\nkey = \"env:KEY\"\n{}",
        LIMITS.map(limit).concat()
    )
}

/// The keys of descriptors, and how many of each value are admitted in an hour.
const LIMITS: [(&str, u64); 5] = [
    ("caller", 1_000_000),
    ("tenant", 1_000_000),
    ("route", 1_000_000),
    ("generic_key", AMPLE),
    ("shared", SHARED_LIMIT),
];

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

    /// What it admits beyond the shared limit, by counting the answers that admit.
    fn over(&self, shape: Shape, of: &str) -> String {
        if !self.counts {
            return "-".to_owned();
        }
        let ask = |_, bytes: &mut Vec<u8>| load::shared(of, bytes);
        let round = load(self.service.address, shape, SHARED_ROUND, &ask);
        assert!(
            round.admitted >= SHARED_LIMIT,
            "it admits what the limit allows"
        );
        (round.admitted - SHARED_LIMIT).to_string()
    }
}

/// What a run consists of.
struct Run {
    parts: Vec<String>,
    shapes: Vec<Shape>,
    rounds: usize,
}

impl Run {
    fn of(args: &[String]) -> Self {
        let shapes: Vec<Shape> = args.iter().filter_map(|arg| Shape::parse(arg)).collect();
        let rounds = args.iter().find_map(|arg| arg.strip_prefix("rounds="));
        let is_part = |arg: &&String| PARTS.iter().any(|(name, _)| *name == arg.as_str());
        Self {
            parts: args.iter().filter(is_part).cloned().collect(),
            shapes,
            rounds: rounds.map_or(3, |rounds| rounds.parse().unwrap()),
        }
    }

    fn has(&self, part: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|wanted| wanted == part)
    }

    /// The shapes of a part: without a choice, a connection for each call only where each
    /// caller has a limit of its own.
    fn shapes_of(&self, part: &str) -> Vec<Shape> {
        match part {
            _ if !self.shapes.is_empty() => self.shapes.clone(),
            "echo" | "many" => vec![LIKE_ENVOY, ALONE],
            _ => vec![LIKE_ENVOY],
        }
    }
}

/// What is asked in each part.
const PARTS: [(&str, &Ask<'static>); 5] = [
    ("echo", &load::many),
    ("many", &load::many),
    ("three", &load::three),
    ("everybody", &load::everybody),
    ("skewed", &load::skewed),
];

fn title(part: &str) -> &str {
    match part {
        "echo" => "no store beside it, 100,000 callers",
        "many" => "Redis, 100,000 callers",
        "three" => "Redis, three descriptors",
        "everybody" => "Redis, one limit for everybody",
        _ => "Redis, 1,000 callers, a few of them most of the time",
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Some(shape) = args.first().filter(|arg| arg.starts_with("beside-")) {
        beside::serve(shape, args.get(1).map(String::as_str));
    }
    let run = Run::of(&args);
    println!(
        "{:<34} {:>9} {:>8} {:>7} {:>7} {:>9} {:>8} {:>7} {:>5}",
        "", "calls/s", "of first", "p50 ms", "p99 ms", "server µs", "Redis µs", "load µs", "over"
    );
    if run.has("echo") {
        let rivals = [
            Rival::beside("tonic echo", &[beside::ECHO]),
            Rival::palisade("Palisade, embedded", "memory:", "exact"),
        ];
        compare(&run, &PARTS[0], &rivals, None);
    }
    let redis = RedisServer::start();
    let url = redis.url();
    let rivals = [
        Rival::beside(
            "limitador's commands and layout",
            &[beside::LIMITADOR_LAYOUT, &url],
        ),
        Rival::beside(
            "the same with its library",
            &[beside::LIMITADOR_LIBRARY, &url],
        ),
        Rival::beside("its commands on our layout", &[beside::LIMITADOR, &url]),
        Rival::beside("two round trips on our layout", &[beside::TWO_TRIPS, &url]),
        Rival::palisade("Palisade", &url, "exact"),
        Rival::palisade("Palisade, leased", &url, "leased"),
    ];
    for part in PARTS[1..].iter().filter(|(name, _)| run.has(name)) {
        compare(&run, part, &rivals, Some(&redis));
    }
}

/// What one rival cost in one round.
struct Cost {
    round: Round,
    server_us: f64,
    redis_us: f64,
    load_us: f64,
}

fn cost(rival: &Rival, redis: Option<&RedisServer>, shape: Shape, ask: &Ask<'_>) -> Cost {
    let used = || {
        let redis = redis.and_then(RedisServer::pid).map_or(0.0, processor_us);
        [
            rival.service.processor_us(),
            redis,
            processor_us(std::process::id()),
        ]
    };
    let before = used();
    let round = load(rival.service.address, shape, ROUND, ask);
    let calls = round.calls();
    let after = used();
    let [server_us, redis_us, load_us] = [0, 1, 2].map(|i| (after[i] - before[i]) / calls);
    Cost {
        round,
        server_us,
        redis_us,
        load_us,
    }
}

/// Measures all in turn, in each shape, and prints their medians.
fn compare(
    run: &Run,
    (part, ask): &(&str, &Ask<'_>),
    rivals: &[Rival],
    redis: Option<&RedisServer>,
) {
    for shape in run.shapes_of(part) {
        let mut rows: Vec<Vec<Cost>> = rivals.iter().map(|_| Vec::new()).collect();
        for _ in 0..run.rounds {
            for (rival, row) in rivals.iter().zip(&mut rows) {
                row.push(cost(rival, redis, shape, *ask));
            }
        }
        let Shape {
            connections,
            streams,
        } = shape;
        println!(
            "{}; {connections} connections, {streams} calls at once on each",
            title(part)
        );
        let mut first = None;
        for (rival, mut row) in rivals.iter().zip(rows) {
            row.sort_by(|a, b| a.round.per_second().total_cmp(&b.round.per_second()));
            let median = row.swap_remove(run.rounds / 2);
            let per_second = median.round.per_second();
            let first = *first.get_or_insert(per_second);
            let (p50_ms, p99_ms) = median.round.quantiles();
            let over = rival.over(shape, &format!("{part}-{connections}"));
            println!(
                "  {:<32} {per_second:>9.0} {:>8.2} {p50_ms:>7.2} {p99_ms:>7.2} {:>9.1} {:>8.1} \
                 {:>7.1} {over:>5}",
                rival.name,
                per_second / first,
                median.server_us,
                median.redis_us,
                median.load_us,
            );
        }
    }
}
