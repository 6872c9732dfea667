//! Reservations while the store is unavailable.

use engine_support::Bench;
use palisade::cases::StoreState;

use super::*;

fn bench() -> Bench {
    let text = format!("[policy]\ndefaults = false\n{POLICY}");
    Bench::on(policy(&text, &Env::default()))
}

async fn left(bench: &Bench) -> u64 {
    let found = bench.engine.peek(&asking(&[("tokens", 1)])).await;
    found.decision.limits[0].remaining
}

#[tokio::test]
async fn b_fail_a_settle_that_cannot_be_recorded_is_tried_again_and_never_fails_the_caller() {
    let bench = bench();
    let facts = asking(&[("tokens", 4_000)]);
    let reserved = bench.engine.reserve(&facts, Hold::default());
    let token = reserved.await.unwrap().held.unwrap().token;
    bench.store(StoreState::Timeout);
    let used = costs(&[("tokens", 100)]);
    let settled = bench.engine.settle(&token, &used).await.unwrap();
    assert!(!settled.recorded);
    assert_eq!(settled.units[0].used, 100);
    bench.engine.retry_settles().await;
    assert_eq!(bench.engine.waiting_settles(), 1);
    bench.store(StoreState::Up);
    bench.sleep(60 * SECOND - 1).await;
    bench.engine.retry_settles().await;
    assert_eq!(bench.engine.waiting_settles(), 0);
    assert_eq!(left(&bench).await, 9_900);
    let again = bench
        .engine
        .settle(&token, &costs(&[("tokens", 9)]))
        .await
        .unwrap();
    assert_eq!(again.units[0].used, 100, "B-ONCE");
}

#[tokio::test]
async fn b_fail_a_reservation_in_an_outage_is_decided_as_a_check_and_holds_no_bucket() {
    let bench = bench();
    bench.store(StoreState::Down);
    let facts = asking(&[("tokens", 4_000)]);
    let answer = bench.engine.reserve(&facts, Hold::default());
    let answer = answer.await.unwrap();
    assert_eq!(answer.answer.decision.mode, palisade::core::Mode::Degraded);
    let token = answer.held.unwrap().token;
    bench.store(StoreState::Up);
    bench.sleep(30 * SECOND).await;
    let settled = bench
        .engine
        .settle(&token, &costs(&[("tokens", 0)]))
        .await
        .unwrap();
    assert!(settled.recorded && !settled.late);
    bench.engine.retry_settles().await;
    assert_eq!(left(&bench).await, 10_000);
}

#[tokio::test]
async fn b_id_a_charge_of_unknown_outcome_is_released_in_the_background() {
    let bench = bench();
    let mut facts = asking(&[("tokens", 4_000)]);
    facts.request_id = Some(palisade::core::Id::new("request_id", "r-9").unwrap());
    // The charge was made, and its answer was lost.
    bench.engine.reserve(&facts, Hold::default()).await.unwrap();
    bench.store(StoreState::Timeout);
    let lost = bench.engine.reserve(&facts, Hold::default()).await.unwrap();
    assert_eq!(lost.answer.decision.mode, palisade::core::Mode::Degraded);
    bench.store(StoreState::Up);
    bench.sleep(20 * SECOND).await;
    assert_eq!(left(&bench).await, 6_000);
    bench.engine.retry_settles().await;
    assert_eq!(left(&bench).await, 10_000);
}
