//! A flood through every node against limits of one second, and a check of the admissions.
#![allow(
    clippy::disallowed_methods,
    reason = "how long something takes is part of what is tested"
)]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use palisade::core::Mode;
use palisade::core::time::SECOND;
use tokio::time::Instant;

use super::Nodes;
use crate::engine_support::request;

/// Fewest decisions a second that exercise the limits.
const OFFERED_MIN: f64 = 10_000.0;
pub const PER_SECOND: usize = 100;
const TASKS: usize = 192;

/// Lets one flood at a time have both processors.
pub static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Duration of a flood: five seconds, or `PALISADE_LOAD_SECONDS`.
pub fn seconds() -> u64 {
    std::env::var("PALISADE_LOAD_SECONDS").map_or(5, |text| text.parse().unwrap())
}

pub fn policy() -> String {
    format!(
        "[policy]\ndefaults = false\n[[limit]]\nname = \"each\"\nby = [\"ip\"]\nrate = \"{PER_SECOND}/s\"\n"
    )
}

#[derive(Default)]
struct Seen {
    offered: u64,
    impaired: u64,
    /// Caller and instant of each admission, by the store's clock.
    admitted: Vec<(u64, u64)>,
}

/// Offers as much load as possible for `seconds`, with every caller far beyond its limit. Fails if
/// any slice of a second has one admission too many, or if the load was too small to tell.
pub async fn run(what: &str, nodes: &Nodes, callers: u64, seconds: u64) {
    let started = Instant::now();
    let until = started + Duration::from_secs(seconds);
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let engine = Arc::clone(&nodes.engines[task % nodes.engines.len()]);
            tokio::spawn(async move {
                let facts: Vec<_> = (0..callers)
                    .map(|caller| {
                        request(&format!(
                            r#"{{"ip":"192.0.2.{caller}","method":"GET","path":"/x"}}"#
                        ))
                    })
                    .collect();
                let (mut seen, mut turn) = (Seen::default(), task as u64);
                while Instant::now() < until {
                    turn = turn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let caller = (turn >> 33) % callers;
                    let asked = &facts[usize::try_from(caller).unwrap()];
                    let answer = engine.check(asked).await.decision;
                    seen.offered += 1;
                    seen.impaired += u64::from(answer.mode != Mode::Normal);
                    if answer.is_allowed() {
                        seen.admitted.push((caller, answer.at.0));
                    }
                    // A remembered denial never yields to the runtime: let the others run.
                    tokio::task::yield_now().await;
                }
                seen
            })
        })
        .collect();
    let mut all = Seen::default();
    for task in tasks {
        let seen = task.await.unwrap();
        all.offered += seen.offered;
        all.impaired += seen.impaired;
        all.admitted.extend(seen.admitted);
    }
    let rate = all.offered as f64 / started.elapsed().as_secs_f64();
    let calls: usize = nodes.store_calls().iter().sum();
    let fullest = fullest_slice(&all.admitted);
    println!(
        "{what}: {rate:.0} decisions/s offered for {seconds} s by {callers} callers through {} nodes, \
         {} admitted, {calls} store calls, fullest second of a caller {fullest} of {PER_SECOND}, \
         {} not answered by the store",
        nodes.engines.len(),
        all.admitted.len(),
        all.impaired,
    );
    assert!(fullest <= PER_SECOND, "{what}: one too many was admitted");
    assert_eq!(all.impaired, 0, "{what}: the store failed");
    assert!(
        rate >= OFFERED_MIN,
        "{what}: not exercised: {rate:.0} decisions/s were offered, at least {OFFERED_MIN} are needed"
    );
}

/// Most admissions of one caller in any slice of a second.
fn fullest_slice(admitted: &[(u64, u64)]) -> usize {
    let mut by_caller: HashMap<u64, Vec<u64>> = HashMap::new();
    for (caller, at) in admitted {
        by_caller.entry(*caller).or_default().push(*at);
    }
    let mut fullest = 0;
    for instants in by_caller.values_mut() {
        instants.sort_unstable();
        let mut first = 0;
        for (last, at) in instants.iter().enumerate() {
            while instants[first] + SECOND <= *at {
                first += 1;
            }
            fullest = fullest.max(last + 1 - first);
        }
    }
    fullest
}
