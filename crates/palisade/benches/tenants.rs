//! A million tenants with policies of their own: memory and lookup time.
//!
//! `cargo bench -p palisade --bench tenants` prints resident bytes per tenant,
//! nanoseconds per lookup (one thread and all of them), and that a cache of a tenth
//! of the size stays within it.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a benchmark prints what it measured and stops at the first error"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use palisade::SystemClock;
use palisade::core::Clock;
use palisade::tenants::{CacheSettings, SourceError, TenantCache, TenantSource, follow};
use palisade_policy::tenants::Document;
use palisade_policy::{Env, Overrides};
use serde_json::json;

const TENANTS: u32 = 1_000_000;
const LOOKUPS: u32 = 5_000_000;

/// A source with a policy for any tenant.
struct Endless;

fn name(number: u32) -> String {
    format!("organisation-{number:08}")
}

impl TenantSource for Endless {
    async fn fetch(&self, tenants: &[Box<str>]) -> Result<Vec<Document>, SourceError> {
        let body =
            json!({"version": 1, "limits": {"org-burst": "12000/min", "org-day": "2000000/day"}});
        let document = |tenant: &str| Document {
            tenant: tenant.into(),
            body: body.as_object().cloned().unwrap_or_default(),
        };
        Ok(tenants.iter().map(|tenant| document(tenant)).collect())
    }

    async fn first(&self, _count_max: u32) -> Result<Vec<Document>, SourceError> {
        Ok(Vec::new())
    }
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.unwrap().split_whitespace().nth(1).unwrap();
    kib.parse::<u64>().unwrap() * 1024
}

fn cache(clock: &Arc<dyn Clock>, tenants_max: u32) -> Arc<TenantCache> {
    let config = palisade_policy::load(None, &Env::default(), &Overrides::default()).unwrap();
    let settings = CacheSettings {
        ttl: Duration::from_secs(3600),
        negative_ttl: Duration::from_secs(3600),
        tenants_max,
        timeout: Duration::from_secs(60),
    };
    let base = Arc::clone(&config.policy);
    let cache = TenantCache::new("bench", settings, base, Arc::clone(clock), ());
    Arc::new(cache)
}

/// Looks every tenant up until the cache is full.
async fn fill(cache: &Arc<TenantCache>) {
    let following = tokio::spawn(follow(Arc::downgrade(cache), Endless));
    for number in 0..TENANTS {
        cache.find(&name(number));
        if number % 1_024 == 0 {
            tokio::task::yield_now().await;
        }
    }
    let mut known = 0;
    loop {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let now = cache.report().policies;
        if now == known {
            break;
        }
        known = now;
    }
    following.abort();
}

/// Nanoseconds per lookup in a scattered order, on `threads` threads at once.
fn lookups(cache: &TenantCache, clock: &Arc<dyn Clock>, threads: u32) -> f64 {
    let names: Vec<String> = (0..TENANTS).map(name).collect();
    let go = AtomicBool::new(false);
    let mut longest = 0;
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|thread| {
                let (names, go) = (&names, &go);
                scope.spawn(move || {
                    while !go.load(Ordering::Acquire) {
                        std::hint::spin_loop();
                    }
                    let (begun, mut at, mut found) = (clock.now(), thread, 0_u32);
                    for _ in 0..LOOKUPS {
                        at = at.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        let tenant = &names[(at >> 4) as usize % names.len()];
                        found += u32::from(cache.find(tenant).is_some());
                    }
                    assert!(found > 0);
                    clock.now().since(begun)
                })
            })
            .collect();
        go.store(true, Ordering::Release);
        for thread in running {
            longest = longest.max(thread.join().unwrap());
        }
    });
    longest as f64 * 1_000.0 / f64::from(LOOKUPS)
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .unwrap();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    // Room for the shards' imbalance: all of them fit.
    let large = cache(&clock, TENANTS / 10 * 11);
    let before = resident_bytes();
    runtime.block_on(fill(&large));
    let used = resident_bytes().saturating_sub(before);
    let known = large.report().policies;
    println!(
        "{known} tenants with two overrides: {} bytes each resident",
        used / known
    );
    for threads in [1, 2] {
        let ns = lookups(&large, &clock, threads);
        println!("lookup, {threads} thread(s): {ns:.0} ns");
    }
    let small = cache(&clock, TENANTS / 10);
    runtime.block_on(fill(&small));
    let report = small.report();
    println!(
        "bounded at {}: {} tenants kept after {TENANTS} came",
        TENANTS / 10,
        report.tenants
    );
    assert!(report.tenants <= u64::from(TENANTS / 10));
}
