//! The calls of governor's users, and ours: the table in docs/migrate.md, row by row.
//!
//!     cargo run -p palisade --no-default-features --example governor
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use palisade::{Limiter, LimiterConfig, NeverFits, Quota, Verdict, VirtualClock};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let n = NonZeroU64::MIN.get();
    let key = "203.0.113.5";

    let quota = Quota::per(50, Duration::from_secs(1))?;
    let quota = quota.with_burst(100)?;
    let slow = Quota::per(1, Duration::from_secs(5))?;
    let limiter = Limiter::new(quota);

    let direct = limiter.check("all").is_admitted();
    let keyed = limiter.check(key).is_admitted();
    let several = limiter.check_n(key, n).is_admitted();
    println!("{direct} {keyed} {several}");

    let refused = Limiter::new(slow);
    let _ = refused.check(key);
    if let Verdict::Denied { retry_at } = refused.check(key) {
        println!("again at {}", retry_at.to_rfc3339());
    }
    if let Err(NeverFits) = refused.until_ready_n(key, 2).await {
        println!("a cost above the burst never fits");
    }

    limiter.until_ready(key).await?;
    limiter.until_ready_n(key, n).await?;

    let left = limiter.peek(key).remaining;
    let (keys, is_empty) = (limiter.len(), limiter.is_empty());
    println!("{left} left, {keys} keys, {is_empty}");

    let clock = Arc::new(VirtualClock::default());
    let tested = Limiter::with_clock(quota, &LimiterConfig::default(), Arc::clone(&clock));
    clock.advance(1_000_000);
    println!("{}", tested.check(key).is_admitted());
    Ok(())
}
