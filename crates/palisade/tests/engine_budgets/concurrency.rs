//! Limits on concurrent work.

use super::*;

const SLOTS: &str = r#"
[[limit]]
name = "per-org"
by = ["org"]
concurrency = 2
hold = "30s"

[[limit]]
name = "requests-per-org"
by = ["org"]
rate = "100/min"
"#;

#[tokio::test]
async fn b_slot_a_place_is_held_until_it_is_settled() {
    let nodes = Nodes::new(2, SLOTS);
    let first = nodes.held(0, &[]).await;
    assert_eq!(
        first.expires_in_us,
        30 * SECOND,
        "the smaller of both holds"
    );
    nodes.held(1, &[]).await;
    let third = nodes.reserve(0, &[]).await;
    assert!(third.held.is_none());
    assert_eq!(third.answer.decision.status, 429);
    assert_eq!(
        third.answer.decision.retry_after,
        Some(30),
        "the earliest end"
    );
    nodes.settle(1, &first.token, &[("requests", 1)]).await;
    nodes.sleep(SECOND / 10);
    nodes.held(0, &[]).await;
}

#[tokio::test]
async fn b_slot_surfaces_that_hold_nothing_say_so() {
    let nodes = Nodes::new(1, SLOTS);
    let answer = nodes.check(0, &[]).await;
    assert_eq!(answer["decision"], "allow");
    assert_eq!(answer["not_asked"][0], "per-org");
    for _ in 0..5 {
        assert_eq!(nodes.check(0, &[]).await["decision"], "allow");
    }
}

#[tokio::test]
async fn b_crash_a_holder_that_dies_frees_its_place_after_the_hold() {
    let nodes = Nodes::new(1, SLOTS);
    nodes.held(0, &[]).await;
    nodes.held(0, &[]).await;
    nodes.sleep(30 * SECOND - 1);
    assert!(nodes.reserve(0, &[]).await.held.is_none());
    nodes.sleep(1);
    nodes.held(0, &[]).await;
}

#[tokio::test]
async fn b_exact_an_extended_place_is_held_and_never_counted_away() {
    let nodes = Nodes::new(2, SLOTS);
    let held = nodes.held(0, &[]).await;
    for round in 0..10 {
        nodes.sleep(10 * SECOND);
        let extended = nodes.extend(round % 2, &held.token, &[], Some(30)).await;
        assert!(
            matches!(extended, ExtendAnswer::Held(_)),
            "{round} {extended:?}"
        );
        let other = nodes.held(0, &[]).await;
        assert!(nodes.reserve(1, &[]).await.held.is_none(), "{round}");
        nodes.release(0, &other.token).await;
        nodes.sleep(SECOND / 10);
    }
    nodes.settle(0, &held.token, &[("requests", 1)]).await;
    nodes.sleep(SECOND / 10);
    nodes.held(0, &[]).await;
    nodes.held(0, &[]).await;
}

#[tokio::test]
async fn b_exact_two_holders_of_one_instant_are_two() {
    let nodes = Nodes::new(1, SLOTS);
    let [first, second] = [nodes.held(0, &[]).await, nodes.held(0, &[]).await];
    nodes.release(0, &first.token).await;
    nodes.release(0, &first.token).await;
    nodes.sleep(SECOND / 10);
    nodes.held(0, &[]).await;
    assert!(
        nodes.reserve(0, &[]).await.held.is_none(),
        "the second still holds its own"
    );
    nodes.release(0, &second.token).await;
}

#[tokio::test]
async fn b_crash_a_holder_that_comes_back_too_late_learns_it() {
    let nodes = Nodes::new(1, SLOTS);
    let held = nodes.held(0, &[]).await;
    nodes.sleep(31 * SECOND);
    let extended = nodes.extend(0, &held.token, &[], Some(30)).await;
    assert!(matches!(extended, ExtendAnswer::Expired), "{extended:?}");
    let settled = nodes.settle(0, &held.token, &[("requests", 1)]).await;
    assert!(settled.recorded);
}

#[tokio::test]
async fn b_exact_a_place_that_the_store_lost_is_retaken_only_if_it_is_free() {
    let before = Nodes::new(1, SLOTS);
    let [first, second] = [before.held(0, &[]).await, before.held(0, &[]).await];
    // Stands for a store that was restarted without its data.
    let nodes = Nodes::new(1, SLOTS);
    nodes.sleep(SECOND);
    let again = nodes.extend(0, &first.token, &[], Some(30)).await;
    assert!(matches!(again, ExtendAnswer::Held(_)), "{again:?}");
    let other = nodes.held(0, &[]).await;
    let lost = nodes.extend(0, &second.token, &[], Some(30)).await;
    assert!(matches!(lost, ExtendAnswer::Expired), "{lost:?}");
    nodes.release(0, &other.token).await;
    nodes.sleep(SECOND / 10);
    nodes.held(0, &[]).await;
    assert!(nodes.reserve(0, &[]).await.held.is_none());
}

#[tokio::test]
async fn b_slot_a_token_budget_and_a_place_are_taken_together_or_not_at_all() {
    let text = format!(
        "{SLOTS}{}",
        &POLICY[POLICY.find("[[limit]]\nname = \"tokens").unwrap()..]
    );
    let nodes = Nodes::new(1, &text);
    let all = [("requests", 1), ("tokens", 6_000)];
    nodes.held(0, &all).await;
    assert!(
        nodes.reserve(0, &all).await.held.is_none(),
        "no tokens are left"
    );
    nodes.held(0, &[("requests", 1), ("tokens", 1)]).await;
    nodes.sleep(SECOND / 10);
    assert!(
        nodes.reserve(0, &[("tokens", 1)]).await.held.is_none(),
        "no place is left"
    );
    assert_eq!(nodes.left(0, "tokens-per-org", "tokens").await, 3_999);
}
