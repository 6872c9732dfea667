//! Reservations are made, extended and settled beside the live ones.

use palisade::core::budget::Costs;
use palisade::engine::{ExtendAnswer, HeldReservation, Hold, ReserveAnswer};

use super::*;

/// Tokens per hour and places, by address.
fn budget(tokens: &str, places: u32) -> String {
    format!(
        "[policy]\ndefaults = false\n[[route]]\npath = \"/*\"\nclass = \"all\"\n\
         [[limit]]\nname = \"tokens\"\nby = [\"ip\"]\nrate = \"{tokens}/h\"\nunit = \"tokens\"\n\
         [[limit]]\nname = \"places\"\nby = [\"ip\"]\nconcurrency = {places}\nhold = \"30s\"\n"
    )
}

fn costs(tokens: u64) -> Costs {
    Costs::new([("tokens", tokens)]).unwrap()
}

async fn reserve(bench: &Bench, tokens: u64) -> ReserveAnswer {
    let mut facts = request(&get("192.0.2.1"));
    facts.costs = Some(Box::new(costs(tokens)));
    let reserved = bench.engine.reserve(&facts, Hold::default());
    reserved.await.unwrap()
}

/// A reservation that both policies grant.
async fn held(bench: &Bench, tokens: u64) -> HeldReservation {
    let reserved = reserve(bench, tokens).await;
    assert!(reserved.answer.candidate.is_none(), "{reserved:?}");
    reserved.held.unwrap()
}

/// The limit by which the candidate alone would have refused.
async fn newly_denied(bench: &Bench, tokens: u64) -> String {
    let reserved = reserve(bench, tokens).await;
    assert!(reserved.held.is_some(), "the live policy grants it");
    let candidate = reserved.answer.candidate.unwrap();
    assert_eq!(candidate.verdict, Comparison::NewlyDenied);
    candidate.header().unwrap().1
}

#[tokio::test]
async fn l_candidate_a_settle_corrects_what_the_candidate_counts() {
    let bench = bench(&budget("100_000", 9), &budget("1_000", 9));
    let first = held(&bench, 1_000).await;
    bench
        .engine
        .settle(&first.token, &costs(100))
        .await
        .unwrap();
    let second = held(&bench, 900).await;
    assert!(newly_denied(&bench, 1).await.contains("\"tokens\""));
    // A second settle of the first changes nothing there either.
    bench.engine.settle(&first.token, &costs(0)).await.unwrap();
    assert!(newly_denied(&bench, 1).await.contains("\"tokens\""));
    bench.engine.release(&second.token).await.unwrap();
    held(&bench, 900).await;
    let report = report(&bench);
    assert_eq!(
        (report.verdicts.agrees, report.verdicts.newly_denied),
        (3, 2)
    );
}

#[tokio::test]
async fn l_candidate_sees_places_that_are_taken_extended_and_freed() {
    let bench = bench(&budget("100_000", 9), &budget("100_000", 2));
    let [first, second] = [held(&bench, 1).await, held(&bench, 1).await];
    assert!(newly_denied(&bench, 1).await.contains("\"places\""));
    bench.engine.release(&first.token).await.unwrap();
    let third = held(&bench, 1).await;
    bench.sleep(20 * SECOND).await;
    for one in [&second, &third] {
        let extended = bench.engine.extend(&one.token, None, None).await.unwrap();
        assert!(matches!(extended, ExtendAnswer::Held(_)), "{extended:?}");
    }
    bench.sleep(20 * SECOND).await;
    assert!(newly_denied(&bench, 1).await.contains("\"places\""));
    bench.sleep(11 * SECOND).await;
    held(&bench, 1).await;
}

#[tokio::test]
async fn l_candidate_a_unit_that_it_does_not_count_is_not_compared() {
    let bench = bench(&budget("100_000", 9), &only("5/min"));
    let reserved = reserve(&bench, 1).await;
    let held = reserved.held.unwrap();
    assert!(reserved.answer.candidate.is_none());
    assert_eq!(report(&bench).verdicts.agrees, 0);
    bench.engine.settle(&held.token, &costs(1)).await.unwrap();
}
