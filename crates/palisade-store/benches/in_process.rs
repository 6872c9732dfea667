//! The embedded store compared with its peers: same run, same keys, same work.
//!
//! `cargo bench -p palisade-store --bench in_process`, optionally with the parts to
//! run, `-- many hot growth memory`, and for the first two the threads, `1t` or `2t`.
//!
//! Keys are 16-byte strings in order of arrival, every check is admitted and leaves
//! something used, each side reads its clock on every check, and ours digests the key
//! as the engine does. `Limiter` is the library's shortest way to a decision on one
//! limit, as `check_key` is governor's; `Store::charge` is what the engine calls for
//! a whole plan, here of one bucket. Times are CPU times, so that other work on the
//! machine counts less. Only ratios within one run mean anything.
//!
//! `-- check N` makes N checks of one key and nothing else, for instruction counts:
//! `valgrind --tool=callgrind`.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::ptr_arg,
    reason = "a benchmark measures and prints"
)]

use std::collections::HashMap;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Barrier;

use governor::clock::QuantaClock;
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::DashMapStateStore;
use governor::{Quota, RateLimiter};
use palisade_core::key::{Keyring, SegmentKind};
use palisade_core::limit::{Algorithm, BucketSpec, CountsFrom, Window};
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::policy::{Dimension, LimitDef, PolicyParts, PolicySet, Settings};
use palisade_core::time::{Clock, MINUTE, Micros};
use palisade_store::Take;
use palisade_store::memory::{Limiter, MemoryConfig, MemoryStore};

/// So large a burst that no check is denied, and so slow a refill that every key is
/// still in use when it comes round again.
const BURST: NonZeroU32 = NonZeroU32::new(100_000_000).unwrap();
const RATE: NonZeroU32 = NonZeroU32::new(20).unwrap();
const MILLION: usize = 1_000_000;
const ROUNDS: usize = 3;

/// One limiter that is compared.
trait Side: Sync {
    fn check(&self, key: &String) -> bool;
}

struct Governor<S>(
    RateLimiter<
        String,
        DashMapStateStore<String, S>,
        QuantaClock,
        NoOpMiddleware<<QuantaClock as governor::clock::Clock>::Instant>,
    >,
)
where
    S: std::hash::BuildHasher + Clone;

impl<S: std::hash::BuildHasher + Clone + Default + Send + Sync> Side for Governor<S> {
    fn check(&self, key: &String) -> bool {
        self.0.check_key(key).is_ok()
    }
}

/// One limit by a variable of the request, checked and counted in one call.
struct Limitador {
    limiter: limitador::RateLimiter,
    namespace: limitador::limit::Namespace,
}

impl Limitador {
    fn new() -> Self {
        let by = vec!["user".try_into().unwrap()];
        let minute = 60;
        let limit =
            limitador::limit::Limit::new("bench", u64::from(BURST.get()), minute, vec![], by);
        let limiter = limitador::RateLimiter::new(2 * MILLION as u64);
        limiter.add_limit(limit);
        Self {
            limiter,
            namespace: "bench".into(),
        }
    }
}

impl Side for Limitador {
    fn check(&self, key: &String) -> bool {
        let context = HashMap::from([("user".to_owned(), key.clone())]).into();
        let checked = self
            .limiter
            .check_rate_limited_and_update(&self.namespace, &context, 1);
        !checked.unwrap().limited
    }
}

/// Governor's clock, in our units.
struct Ticking {
    clock: quanta::Clock,
    start: u64,
}

impl Clock for Ticking {
    #[inline]
    fn now(&self) -> Micros {
        let ns = self.clock.delta_as_nanos(self.start, self.clock.raw());
        Micros(1_771_027_200_000_000 + ns / 1_000)
    }
}

fn ticking() -> Ticking {
    let clock = quanta::Clock::new();
    let start = clock.raw();
    Ticking { clock, start }
}

/// The store with a policy of one limit by user.
struct Palisade {
    store: MemoryStore<Ticking>,
    keyring: Keyring,
    policy: PolicySet,
}

impl Palisade {
    fn new(algorithm: Algorithm, limit: NonZeroU32) -> Self {
        let config = MemoryConfig {
            keys_max: 20_000_000,
            ..MemoryConfig::default()
        };
        let spec = BucketSpec::new(algorithm, limit, Window::Span(MINUTE), Some(BURST)).unwrap();
        let parts = PolicyParts {
            enabled: true,
            settings: Settings::default(),
            routes: Vec::new(),
            classes: Vec::new(),
            limits: vec![LimitDef::new("bench", vec![Dimension::User], spec)],
            clients: HashMap::new(),
            api_keys: HashMap::new(),
            tiers: Vec::new(),
            bot_patterns: Vec::new(),
        };
        Self {
            store: MemoryStore::new(ticking(), &config),
            keyring: Keyring::new(&[7; 32], None).unwrap(),
            policy: PolicySet::new(1, parts).unwrap(),
        }
    }

    fn limiter(&self) -> Limiter<Ticking> {
        let spec = self.policy.limit("bench").unwrap().def.spec;
        self.store.limiter(&self.keyring, "bench", spec)
    }
}

/// `Store::charge`, which for this store is `charge_now`.
impl Side for Palisade {
    fn check(&self, key: &String) -> bool {
        let limit = self.policy.limit("bench").unwrap();
        let segment = self.keyring.segment(SegmentKind::User, &[key.as_bytes()]);
        let charge = Charge {
            limit,
            spec: &limit.def.spec,
            id: self.keyring.combine(limit.digest, &[segment]),
            segments: [segment].into_iter().collect(),
            cost: 1,
            on_exceed: OnExceed::Deny,
            from: CountsFrom::Now,
            previous: None,
        };
        self.store.charge_now(&[charge], Take::Consume).admitted
    }
}

/// Holds the store too, for its sweeper.
struct Short(
    Limiter<Ticking>,
    #[expect(dead_code, reason = "lives as long")] Palisade,
);

impl Short {
    fn new(algorithm: Algorithm, limit: NonZeroU32) -> Self {
        let palisade = Palisade::new(algorithm, limit);
        Self(palisade.limiter(), palisade)
    }
}

impl Side for Short {
    fn check(&self, key: &String) -> bool {
        self.0.check(key.as_bytes()).is_admitted()
    }
}

fn side(name: &str) -> Box<dyn Side> {
    let quota = Quota::per_minute(RATE).allow_burst(BURST);
    match name {
        "governor" => Box::new(Governor::<std::hash::RandomState>(RateLimiter::dashmap(
            quota,
        ))),
        "governor+ahash" => Box::new(Governor(RateLimiter::dashmap_with_hasher(
            quota,
            ahash::RandomState::new(),
        ))),
        "limitador" => Box::new(Limitador::new()),
        "palisade Limiter" => Box::new(Short::new(Algorithm::TokenBucket, RATE)),
        "palisade Store::charge" => Box::new(Palisade::new(Algorithm::TokenBucket, RATE)),
        "palisade sliding-wheel" => Box::new(Short::new(Algorithm::SlidingWheel, BURST)),
        _ => Box::new(Short::new(
            Algorithm::SlidingLog,
            NonZeroU32::new(256).unwrap(),
        )),
    }
}

const SIDES: [&str; 6] = [
    "governor",
    "governor+ahash",
    "limitador",
    "palisade Limiter",
    "palisade Store::charge",
    "palisade sliding-wheel",
];

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{number:016}")).collect()
}

/// CPU time of this thread in nanoseconds.
fn cpu_ns() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    stat.split(' ').next().unwrap().parse().unwrap()
}

/// Checks per second of CPU time, all threads together.
fn rate(side: &dyn Side, keys: &[String], threads: usize, checks: usize) -> f64 {
    let barrier = Barrier::new(threads);
    let one = |thread: usize| {
        let offset = thread * keys.len() / threads;
        barrier.wait();
        let start = cpu_ns();
        let mut denied = 0_usize;
        let mut at = offset;
        for _ in 0..checks {
            denied += usize::from(!side.check(black_box(&keys[at])));
            at += 1;
            if at == keys.len() {
                at = 0;
            }
        }
        assert_eq!(denied, 0, "every check is admitted");
        checks as f64 * 1e9 / (cpu_ns() - start) as f64
    };
    std::thread::scope(|scope| {
        let one = &one;
        let threads: Vec<_> = (0..threads).map(|t| scope.spawn(move || one(t))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).sum()
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Divisor of the number of checks for a side: a slow one need not take minutes.
fn share(name: &str) -> usize {
    if name == "limitador" { 10 } else { 1 }
}

/// Runs every side in turn, for several rounds, so that a noisy neighbour affects all alike.
fn compare(title: &str, keys: &[String], threads: usize, checks: usize) {
    let sides: Vec<_> = SIDES.iter().map(|name| (name, side(name))).collect();
    for (_, side) in &sides {
        rate(&**side, keys, 1, keys.len());
    }
    let mut rates = vec![Vec::new(); sides.len()];
    for _ in 0..ROUNDS {
        for ((name, side), rates) in sides.iter().zip(&mut rates) {
            rates.push(rate(&**side, keys, threads, checks / share(name)));
        }
    }
    println!("{title}, {threads} thread(s)");
    let rates: Vec<f64> = rates.into_iter().map(median).collect();
    for ((name, _), rate) in sides.iter().zip(&rates) {
        println!(
            "  {name:24} {:7.2} M/s {:7.1} ns/check  x{:.2} governor  x{:.2} governor+ahash",
            rate / 1e6,
            threads as f64 * 1e9 / rate,
            rate / rates[0],
            rate / rates[1],
        );
    }
}

fn growth() {
    println!("growth, palisade Limiter, token bucket, 1 thread");
    for count in [1_000, 10_000, 100_000, MILLION, 10 * MILLION] {
        let keys = keys(count);
        let side = side("palisade Limiter");
        rate(&*side, &keys, 1, keys.len());
        let rates = (0..3)
            .map(|_| rate(&*side, &keys, 1, 5 * MILLION))
            .collect();
        println!("  {count:9} keys {:7.1} ns/check", 1e9 / median(rates));
    }
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Measures each side in a process of its own: memory that one has freed must not serve another.
fn memory() {
    println!("memory, {MILLION} keys");
    for name in SIDES.into_iter().chain(["palisade sliding-log"]) {
        let this = std::env::current_exe().unwrap();
        let out = std::process::Command::new(this)
            .args(["--memory-of", name])
            .output()
            .unwrap();
        print!("{}", String::from_utf8_lossy(&out.stdout));
    }
}

fn memory_of(name: &str) {
    let keys = keys(MILLION);
    let before = resident_bytes();
    let side = side(name);
    rate(&*side, &keys, 1, keys.len());
    let bytes = (resident_bytes() - before) as f64 / MILLION as f64;
    println!("  {name:24} {bytes:7.1} bytes/key");
}

fn main() {
    let args: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| a != "--bench")
        .collect();
    if let [flag, name] = args.as_slice()
        && flag == "--memory-of"
    {
        return memory_of(name);
    }
    if let [flag, count] = args.as_slice()
        && flag == "check"
    {
        let side = Short::new(Algorithm::TokenBucket, RATE);
        let key = keys(1).remove(0);
        for _ in 0..count.parse().unwrap() {
            assert!(side.check(black_box(&key)));
        }
        return;
    }
    let is_threads = |arg: &&String| ["1t", "2t"].contains(&arg.as_str());
    let has = |name: &str| args.iter().any(|arg| arg == name);
    let asked = |part: &str| args.iter().all(|arg| is_threads(&arg)) || has(part);
    let threads: Vec<usize> = [(1, "1t"), (2, "2t")]
        .into_iter()
        .filter(|(_, name)| !args.iter().any(|arg| is_threads(&arg)) || has(name))
        .map(|(threads, _)| threads)
        .collect();
    if asked("memory") {
        memory();
    }
    for threads in threads {
        if asked("hot") {
            compare("hot key", &keys(1), threads, 4 * MILLION);
        }
        if asked("many") {
            compare("1,000,000 keys", &keys(MILLION), threads, 2 * MILLION);
        }
    }
    if asked("growth") {
        growth();
    }
}
