//! The embedded store beside its peers: same run, same keys, same work.
//!
//! `cargo bench -p palisade-store --bench in_process`, optionally with the parts to
//! run: `-- many hot growth memory`.
//!
//! Keys are 16-byte strings in order of arrival, every check is admitted and leaves
//! something used, each side reads its clock on every check, and ours digests the key
//! as the engine does. Times are CPU times, so that other work on the machine counts
//! less. Only ratios within one run mean anything.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::ptr_arg,
    reason = "a benchmark measures and prints"
)]

use std::hash::Hasher;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Barrier;

use governor::clock::QuantaClock;
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::DashMapStateStore;
use governor::{Quota, RateLimiter};
use palisade_core::Digest;
use palisade_core::key::{Keyring, SegmentKind};
use palisade_core::limit::{Algorithm, BucketSpec, Window};
use palisade_core::time::{Clock, MINUTE, Micros};
use palisade_store::memory::{MemoryConfig, MemoryStore};
use siphasher::sip128::{Hasher128, SipHasher13};

/// So large a burst that no check is denied, and so slow a refill that every key is
/// still in use when it comes round again.
const BURST: NonZeroU32 = NonZeroU32::new(100_000_000).unwrap();
const RATE: NonZeroU32 = NonZeroU32::new(20).unwrap();
const MILLION: usize = 1_000_000;
const ROUNDS: usize = 5;

/// One limiter under test.
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

struct Ticking {
    clock: quanta::Clock,
    start: quanta::Instant,
}

impl Clock for Ticking {
    fn now(&self) -> Micros {
        let us = self.clock.now().duration_since(self.start).as_micros();
        Micros(1_771_027_200_000_000 + u64::try_from(us).unwrap_or(0))
    }
}

fn ticking() -> Ticking {
    let clock = quanta::Clock::new();
    let start = clock.now();
    Ticking { clock, start }
}

struct Palisade {
    store: MemoryStore<Ticking>,
    clock: Ticking,
    keyring: Keyring,
    limit: Digest,
    spec: BucketSpec,
}

impl Palisade {
    fn new(algorithm: Algorithm, limit: NonZeroU32, keys_max: u64) -> Self {
        let config = MemoryConfig {
            keys_max,
            ..MemoryConfig::default()
        };
        let keyring = Keyring::new(&[7; 32], None).unwrap();
        Self {
            store: MemoryStore::new(ticking(), &config),
            clock: ticking(),
            limit: keyring.named("bench"),
            keyring,
            spec: BucketSpec::new(algorithm, limit, Window::Span(MINUTE), Some(BURST)).unwrap(),
        }
    }
}

impl Side for Palisade {
    fn check(&self, key: &String) -> bool {
        let segment = self.keyring.segment(SegmentKind::User, &[key.as_bytes()]);
        let id = self.keyring.combine(self.limit, &[segment]);
        self.store
            .try_take(id, &self.spec, 1, self.clock.now())
            .is_ok()
    }
}

/// The same with the key digested by SipHash-1-3 in place of 2-4.
struct QuickDigest(Palisade, SipHasher13);

impl Side for QuickDigest {
    fn check(&self, key: &String) -> bool {
        let mut hasher = self.1;
        hasher.write(key.as_bytes());
        let id = Digest(hasher.finish128().as_u128());
        let Palisade {
            store, spec, clock, ..
        } = &self.0;
        store.try_take(id, spec, 1, clock.now()).is_ok()
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
        "palisade token-bucket" => {
            Box::new(Palisade::new(Algorithm::TokenBucket, RATE, 20_000_000))
        }
        "palisade, SipHash-1-3" => Box::new(QuickDigest(
            Palisade::new(Algorithm::TokenBucket, RATE, 20_000_000),
            SipHasher13::new_with_key(&[7; 16]),
        )),
        "palisade sliding-wheel" => {
            Box::new(Palisade::new(Algorithm::SlidingWheel, BURST, 20_000_000))
        }
        _ => Box::new(Palisade::new(
            Algorithm::SlidingLog,
            NonZeroU32::new(256).unwrap(),
            20_000_000,
        )),
    }
}

const SIDES: [&str; 5] = [
    "governor",
    "governor+ahash",
    "palisade token-bucket",
    "palisade, SipHash-1-3",
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

/// Checks a second of CPU time, all threads together.
fn rate(side: &dyn Side, keys: &[String], threads: usize, checks: usize) -> f64 {
    let barrier = Barrier::new(threads);
    let one = |thread: usize| {
        let offset = thread * keys.len() / threads;
        barrier.wait();
        let start = cpu_ns();
        let mut denied = 0_usize;
        for key in keys.iter().cycle().skip(offset).take(checks) {
            denied += usize::from(!side.check(black_box(key)));
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

/// Every side in turn, several rounds, so that a noisy neighbour hits all alike.
fn compare(title: &str, keys: &[String], threads: usize, checks: usize) {
    let sides: Vec<_> = SIDES.iter().map(|name| (name, side(name))).collect();
    for (_, side) in &sides {
        rate(&**side, keys, 1, keys.len());
    }
    let mut rates = vec![Vec::new(); sides.len()];
    for _ in 0..ROUNDS {
        for ((_, side), rates) in sides.iter().zip(&mut rates) {
            rates.push(rate(&**side, keys, threads, checks));
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
    println!("growth, palisade token-bucket, 1 thread");
    for count in [1_000, 10_000, 100_000, MILLION, 10 * MILLION] {
        let keys = keys(count);
        let side = side("palisade token-bucket");
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

/// Each side in a process of its own: what one has freed must not serve another.
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
    let asked = |part: &str| args.is_empty() || args.iter().any(|arg| arg == part);
    if asked("memory") {
        memory();
    }
    if asked("hot") {
        compare("hot key", &keys(1), 1, 4 * MILLION);
        compare("hot key", &keys(1), 2, 4 * MILLION);
    }
    if asked("many") {
        let keys = keys(MILLION);
        compare("1,000,000 keys", &keys, 1, 3 * MILLION);
        compare("1,000,000 keys", &keys, 2, 3 * MILLION);
    }
    if asked("growth") {
        growth();
    }
}
