//! Behaviour scripts: `"0ms A; 59000ms D1000"` means "at 0 ms admitted; at 59 s denied with 1000
//! ms to wait".
//!
//! A step is `<time> [x<cost>] <what>`, with the time in `ms` or `us` from the start of the
//! script. `<what>` is `A` for admitted, `D<wait>` for denied, `P` for a peek that would be
//! admitted, `R` for a refund, `Z` for a reset, or `U<used>` for the amount used now.

use palisade_core::limit::BucketSpec;
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::time::{Clock, Micros};

use super::{TestClock, TestLimits};
use crate::{Store, Take};

/// Plays a script on one bucket, starting at the clock's instant. Each `case` has a bucket of its
/// own.
///
/// # Panics
/// If the store answers otherwise than the script says.
pub async fn play<S: Store>(
    store: &S,
    clock: &TestClock,
    case: &str,
    spec: BucketSpec,
    text: &str,
) {
    let limits = TestLimits::new([("scripted", spec)]);
    let start = clock.now();
    for step in text.split(';').map(str::trim) {
        let (at, cost, what) = parse(step);
        clock.set(start.plus(at));
        let charge = limits.charge_of("scripted", case, cost, OnExceed::Deny);
        let got = act(store, &charge, what).await;
        assert_eq!(got, what, "{case}: at `{step}` of `{text}`");
    }
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
fn parse(step: &str) -> (u64, u64, &str) {
    let (at, rest) = step.split_once(' ').unwrap();
    let at = at.strip_suffix("us").map_or_else(
        || at.strip_suffix("ms").unwrap().parse::<u64>().unwrap() * 1_000,
        |us| us.parse().unwrap(),
    );
    match rest.strip_prefix('x') {
        Some(rest) => {
            let (cost, what) = rest.split_once(' ').unwrap();
            (at, cost.parse().unwrap(), what)
        }
        None => (at, 1, rest),
    }
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn act<S: Store>(store: &S, charge: &Charge<'_>, what: &str) -> String {
    let charges = std::slice::from_ref(charge);
    let charged = match what.as_bytes().first() {
        Some(b'R') => {
            store.refund(charges).await.unwrap();
            return "R".to_owned();
        }
        Some(b'Z') => {
            assert_eq!(store.reset(charges).await.unwrap().done, [true]);
            return "Z".to_owned();
        }
        Some(b'U' | b'P') => store.charge(charges, Take::Peek).await.unwrap(),
        _ => store.charge(charges, Take::Consume).await.unwrap(),
    };
    let reading = charged.readings[0];
    assert_eq!(charged.admitted, reading.retry_at.is_none());
    match (what.as_bytes().first(), reading.retry_at) {
        (Some(b'U'), _) => format!("U{}", reading.used),
        (Some(b'P'), None) => "P".to_owned(),
        (_, None) => "A".to_owned(),
        (_, Some(at)) => format!("D{}", wait(charged.now, at)),
    }
}

fn wait(now: Micros, at: Micros) -> String {
    if at == Micros(u64::MAX) {
        return "never".to_owned();
    }
    match at.since(now) {
        us if us.is_multiple_of(1_000) => format!("{}", us / 1_000),
        us => format!("{us}us"),
    }
}
