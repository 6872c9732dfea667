//! Time that a graceful shutdown and the start after it take, and the memory and disk that they
//! need.
//!
//!     cargo bench -p palisade-store --bench restart -- [BUCKETS]
//!
//! A quarter each of token buckets and sliding logs of minutes (kept by a graceful shutdown only),
//! hourly wheels and monthly quotas (in the journal).
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark reads the clock, prints and may panic"
)]

use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use palisade_core::limit::{Algorithm, Window};
use palisade_core::time::{Clock, HOUR, MINUTE, Micros};
use palisade_store::conformance::{TestLimits, spec};
use palisade_store::memory::{MemoryConfig, MemoryStore};
use palisade_store::{Take, Vitals};

struct WallClock;

impl Clock for WallClock {
    fn now(&self) -> Micros {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        Micros(u64::try_from(since.as_micros()).unwrap())
    }
}

/// Resident memory in MiB.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4 / 1024
}

fn size(directory: &Path) -> u64 {
    let files = std::fs::read_dir(directory).unwrap();
    files
        .map(|file| file.unwrap().metadata().unwrap().len())
        .sum()
}

#[tokio::main]
async fn main() {
    let buckets = std::env::args().skip(1).find_map(|arg| arg.parse().ok());
    let buckets: u32 = buckets.unwrap_or(1_000_000);
    let directory = tempfile::tempdir().unwrap();
    let short = Window::Span(9 * MINUTE);
    let limits = TestLimits::new([
        ("bucket", spec(Algorithm::TokenBucket, 100, short)),
        (
            "log",
            spec(Algorithm::SlidingLog, 100, Window::Span(5 * MINUTE)),
        ),
        (
            "wheel",
            spec(Algorithm::SlidingWheel, 1_000, Window::Span(HOUR)),
        ),
    ]);
    let quotas =
        TestLimits::quotas([("quota", spec(Algorithm::FixedWindow, 1_000, Window::Month))]);
    let config = MemoryConfig::default();
    let (store, _) = MemoryStore::open(directory.path(), WallClock, &config).unwrap();
    let before = resident();
    for number in 0..buckets {
        let subject = number.to_string();
        let mut charge = match number % 4 {
            0 => limits.charge("bucket", &subject),
            1 => limits.charge("log", &subject),
            2 => limits.charge("wheel", &subject),
            _ => quotas.charge("quota", &subject),
        };
        // So large that no bucket is empty again before the shutdown.
        charge.cost = 30;
        for _ in 0..3 {
            assert!(
                store
                    .charge_now(std::slice::from_ref(&charge), Take::Consume)
                    .admitted
            );
        }
    }
    let held = store.stats().tracked_keys;
    println!(
        "{held} buckets held, {} MiB more than empty",
        resident() - before
    );
    let ending = Instant::now();
    store.flush().await.unwrap();
    println!(
        "flush   {:>6} ms, {} MiB on disk, {} MiB resident",
        ending.elapsed().as_millis(),
        size(directory.path()) >> 20,
        resident()
    );
    let ending = Instant::now();
    drop(store);
    println!("drop    {:>6} ms", ending.elapsed().as_millis());
    let before = resident();
    let starting = Instant::now();
    let (store, report) = MemoryStore::open(directory.path(), WallClock, &config).unwrap();
    println!(
        "start   {:>6} ms, {} MiB resident ({before} before)",
        starting.elapsed().as_millis(),
        resident()
    );
    println!("{report}");
    drop(store);
}
