//! A client that must not outrun a service, and a handler with one rule per customer.
//!
//!     cargo run -p palisade --no-default-features --example limiter
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use palisade::{Limiter, Quota, Verdict};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Twenty a second, never two at once.
    let pace = Quota::per(20, Duration::from_secs(1))?.with_burst(1)?;
    let outgoing = Limiter::new(pace);
    for call in 1..=3 {
        outgoing.until_ready("api.example.org").await?;
        println!("call {call}");
    }

    // Three a minute, or thirty for paying customers, chosen at each call.
    let minute = Duration::from_secs(60);
    let limiter = Limiter::new(Quota::sliding(3, minute)?);
    let paid = Quota::sliding(30, minute)?;
    for (customer, has_paid) in [("ann", false), ("bob", true)] {
        let is_admitted = || match has_paid {
            true => limiter.check_by(customer, &paid, 1).is_admitted(),
            false => limiter.check(customer).is_admitted(),
        };
        let admitted = (0..10).filter(|_| is_admitted()).count();
        println!("{customer}: {admitted} of 10");
    }
    if let Verdict::Denied { retry_at } = limiter.check("ann") {
        println!("ann may come back at {}", retry_at.to_rfc3339());
    }
    Ok(())
}
