//! Many callers that hold slots of one limit through every node, some of which die, and a check
//! of the slots and of what was charged.
#![allow(
    clippy::disallowed_methods,
    reason = "how long something takes is part of what is tested"
)]

use std::sync::Arc;
use std::time::Duration;

use palisade::SystemClock;
use palisade::core::budget::Costs;
use palisade::core::facts::RequestFacts;
use palisade::core::time::Clock;
use palisade::engine::Hold;
use palisade::{Engine, core::Mode};
use tokio::time::Instant;

use super::Nodes;
use crate::engine_support::request;

const CALLERS: usize = 64;
const SLOTS: usize = 16;
/// Time for which a caller works.
const WORK: Duration = Duration::from_millis(100);
/// Time after which the slot of a caller that died is free.
const HOLD: Duration = Duration::from_secs(1);
/// Tokens that a caller reserves, and those that it uses.
const TOKENS: [u64; 2] = [100, 30];
const BOUND: u64 = 10_000_000;

/// Duration of a load: two seconds, or `PALISADE_LOAD_SECONDS`.
pub fn seconds() -> u64 {
    std::env::var("PALISADE_LOAD_SECONDS").map_or(2, |text| text.parse().unwrap())
}

pub fn policy() -> String {
    format!(
        "[policy]\ndefaults = false\n\
         [[limit]]\nname = 'slots'\nby = ['org']\nconcurrency = {SLOTS}\nhold = '1s'\n\
         [[limit]]\nname = 'tokens'\nby = ['org']\nrate = '{BOUND}/day'\nunit = 'tokens'\n"
    )
}

#[derive(Default)]
struct Seen {
    /// Beginning and end of each hold, by the store's clock.
    holds: Vec<(u64, u64)>,
    denied: u64,
    impaired: u64,
    /// Callers that died while they held a slot, and those that died while they asked for one.
    died: u64,
    cut_off: u64,
}

/// Lets [`CALLERS`] hold slots for `seconds`; one of eight dies in the middle of its work, and one
/// of sixteen while it asks. Fails if one caller too many has held a slot at any instant, if a
/// slot is not free once the last hold has passed, or if the tokens that count are not those that
/// were used and those of the callers that died.
pub async fn run(what: &str, nodes: &Nodes, seconds: u64) {
    let until = Instant::now() + Duration::from_secs(seconds);
    let engines = nodes.engines.iter().cycle().take(CALLERS);
    let callers = engines.enumerate().map(|(number, engine)| {
        let engine = Arc::clone(engine);
        tokio::spawn(async move { call(&engine, number as u64, until).await })
    });
    let mut all = Seen::default();
    for caller in callers.collect::<Vec<_>>() {
        let seen = caller.await.unwrap();
        all.holds.extend(seen.holds);
        all.denied += seen.denied;
        all.impaired += seen.impaired;
        all.died += seen.died;
        all.cut_off += seen.cut_off;
    }
    // Charges of callers that were cut off are given back after a second, and slots end by
    // themselves.
    tokio::time::sleep(HOLD + WORK).await;
    let most = most_at_once(&all.holds);
    let leaked = SLOTS.abs_diff(free_slots(&nodes.engines[0]).await);
    let settled = all.holds.len() as u64 - all.died;
    let least = settled * TOKENS[1] + all.died * TOKENS[0];
    let used = used_tokens(&nodes.engines[0]).await;
    println!(
        "{what}: {CALLERS} callers through {} nodes for {seconds} s held {} slots of {SLOTS} for {} ms, \
         {} died with one and {} while asking; {} were refused; at most {most} held at once, \
         {leaked} left over; {used} tokens charged, {least} granted; {} not answered by the store",
        nodes.engines.len(),
        all.holds.len(),
        WORK.as_millis(),
        all.died,
        all.cut_off,
        all.denied,
        all.impaired,
    );
    assert!(most <= SLOTS, "{what}: {most} held one of {SLOTS} slots");
    let is_exercised = most > SLOTS / 2 && all.died > 0 && all.denied > 0;
    assert!(is_exercised, "{what}: not exercised");
    assert_eq!(leaked, 0, "{what}: slots were left over");
    assert_eq!(all.impaired, 0, "{what}: the store failed");
    let unknown = all.cut_off * TOKENS[0];
    assert!(
        (least..=least + unknown).contains(&used),
        "{what}: {used} tokens charged, {least} to {} expected",
        least + unknown
    );
}

async fn call(engine: &Engine, number: u64, until: Instant) -> Seen {
    let clock = SystemClock::new();
    let hold = Hold {
        hold: HOLD,
        ..Hold::default()
    };
    let (mut seen, mut turn) = (Seen::default(), number);
    while Instant::now() < until {
        turn = turn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let chance = turn >> 33;
        let facts = asking(&[("requests", 1), ("tokens", TOKENS[0])]);
        let reserving = engine.reserve(&facts, hold);
        if chance.is_multiple_of(16) {
            let patience = Duration::from_micros(chance / 16 % 400);
            // If it was granted in time, nobody uses it.
            let _ = tokio::time::timeout(patience, reserving).await;
            seen.cut_off += 1;
            continue;
        }
        let answer = reserving.await.unwrap();
        seen.impaired += u64::from(answer.answer.decision.mode != Mode::Normal);
        let Some(held) = answer.held else {
            seen.denied += 1;
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        };
        let from = answer.answer.decision.at.0;
        if chance % 16 < 3 {
            seen.died += 1;
            seen.holds.push((from, held.expires_at.0));
            continue;
        }
        tokio::time::sleep(WORK).await;
        seen.holds.push((from, clock.now().0));
        let used = Costs::new([("requests", 1), ("tokens", TOKENS[1])]).unwrap();
        let settled = engine.settle(&held.token, &used).await.unwrap();
        assert!(settled.recorded && !settled.late);
    }
    seen
}

fn asking(amounts: &[(&str, u64)]) -> RequestFacts {
    let mut facts = request(r#"{"ip":"192.0.2.1","method":"POST","path":"/x","org":"acme"}"#);
    facts.costs = Some(Box::new(Costs::new(amounts.iter().copied()).unwrap()));
    facts
}

/// Most holds that overlap at one instant; one that ends then has ended.
fn most_at_once(holds: &[(u64, u64)]) -> usize {
    let mut changes: Vec<(u64, isize)> = holds
        .iter()
        .flat_map(|(from, to)| [(*from, 1), (*to, -1)])
        .collect();
    changes.sort_unstable();
    let mut held = 0;
    let most = changes.iter().map(|(_, change)| {
        held += change;
        held
    });
    usize::try_from(most.max().unwrap_or(0)).unwrap()
}

async fn free_slots(engine: &Engine) -> usize {
    let mut free = 0;
    let facts = asking(&[("requests", 1)]);
    while free <= SLOTS {
        let answer = engine.reserve(&facts, Hold::default()).await.unwrap();
        if answer.held.is_none() {
            break;
        }
        free += 1;
    }
    free
}

async fn used_tokens(engine: &Engine) -> u64 {
    let found = engine.peek(&asking(&[("tokens", 1)])).await;
    let mut limits = found.decision.limits.iter();
    BOUND - limits.find(|one| &*one.name == "tokens").unwrap().remaining
}
