//! What reservations hold: a caller's share, and what goes back at the end.

use palisade::core::decision::Decision;
use palisade::engine::ReservationError;

use super::*;

const SHARED: &str = r#"
[[limit]]
name = "tokens-per-org"
by = ["org"]
rate = "10000/min"
unit = "tokens"
max_share = 0.25
"#;

const RELEASED: &str = r#"
[[limit]]
name = "tokens-per-org"
by = ["org"]
rate = "10000/min"
unit = "tokens"
on_expiry = "release"
"#;

const TOKENS: &str = "tokens-per-org";

/// Asks for tokens as this user, for so many seconds.
async fn reserve_as(nodes: &Nodes, node: usize, user: &str, ask: (u64, u64)) -> ReserveAnswer {
    let mut facts = asking(&[("tokens", ask.0)]);
    facts.user = Some(palisade::Id::new("user", user).unwrap());
    let hold = Hold {
        hold: Duration::from_secs(ask.1),
        ..Hold::default()
    };
    nodes.engines[node].reserve(&facts, hold).await.unwrap()
}

async fn held_as(nodes: &Nodes, node: usize, user: &str, ask: (u64, u64)) -> HeldReservation {
    let answer = reserve_as(nodes, node, user, ask).await;
    let decision = answer.answer.decision;
    answer.held.unwrap_or_else(|| panic!("{decision:?}"))
}

async fn denied_as(nodes: &Nodes, node: usize, user: &str, ask: (u64, u64)) -> Box<Decision> {
    let answer = reserve_as(nodes, node, user, ask).await;
    assert!(answer.held.is_none(), "{:?}", answer.answer.decision);
    answer.answer.decision
}

fn reason(decision: &Decision) -> (&str, Option<&str>) {
    let reason = &decision.reasons[0];
    (reason.rule.id(), reason.limit.as_deref())
}

#[tokio::test]
async fn b_share_a_caller_holds_at_most_its_share_over_all_nodes() {
    let nodes = Nodes::new(3, SHARED);
    held_as(&nodes, 0, "ann", (1_500, 60)).await;
    held_as(&nodes, 1, "ann", (1_000, 30)).await;
    nodes.sleep(10 * SECOND);
    let denied = denied_as(&nodes, 2, "ann", (1, 60)).await;
    assert_eq!(reason(&denied), ("B-SHARE", Some(TOKENS)));
    assert_eq!(
        denied.retry_after,
        Some(20),
        "the earliest end of what it holds"
    );
    assert_eq!(
        nodes.left(2, TOKENS, "tokens").await,
        7_500,
        "nothing charged"
    );
    held_as(&nodes, 2, "bob", (2_500, 60)).await;
    let large = denied_as(&nodes, 2, "eve", (2_501, 60)).await;
    assert_eq!(reason(&large), ("B-SHARE", Some(TOKENS)));
    assert!(
        large.retry_after.is_some_and(|wait| wait <= 60),
        "{large:?}"
    );
}

#[tokio::test]
async fn b_share_only_what_is_not_settled_counts() {
    let nodes = Nodes::new(2, SHARED);
    let first = held_as(&nodes, 0, "ann", (2_500, 60)).await;
    nodes.settle(1, &first.token, &[("tokens", 2_400)]).await;
    assert_eq!(nodes.left(0, TOKENS, "tokens").await, 7_600);
    let second = held_as(&nodes, 0, "ann", (2_500, 60)).await;
    nodes.release(0, &second.token).await;
    held_as(&nodes, 1, "ann", (2_500, 1)).await;
    denied_as(&nodes, 0, "ann", (1, 60)).await;
    nodes.sleep(SECOND);
    held_as(&nodes, 0, "ann", (2_500, 60)).await;
}

#[tokio::test]
async fn b_share_an_extension_is_bounded_and_holds_on() {
    let nodes = Nodes::new(2, SHARED);
    let held = held_as(&nodes, 0, "ann", (2_000, 20)).await;
    let more = nodes.extend(1, &held.token, &[("tokens", 501)], None).await;
    let ExtendAnswer::Denied(denied) = more else {
        panic!("{more:?}")
    };
    assert_eq!(reason(&denied), ("B-SHARE", Some(TOKENS)));
    let more = nodes
        .extend(1, &held.token, &[("tokens", 500)], Some(40))
        .await;
    assert!(matches!(more, ExtendAnswer::Held(_)), "{more:?}");
    nodes.sleep(39 * SECOND);
    denied_as(&nodes, 0, "ann", (1, 20)).await;
    nodes.sleep(SECOND);
    held_as(&nodes, 0, "ann", (2_500, 20)).await;
}

#[tokio::test]
async fn b_share_at_most_grants_what_is_left_of_it() {
    let nodes = Nodes::new(1, SHARED);
    held_as(&nodes, 0, "ann", (2_000, 60)).await;
    let mut facts = asking(&[("tokens", 9_000)]);
    facts.user = Some(palisade::Id::new("user", "ann").unwrap());
    let hold = Hold {
        at_most: true,
        ..Hold::default()
    };
    let granted = nodes.engines[0].reserve(&facts, hold).await.unwrap();
    assert_eq!(granted.held.unwrap().reserved[0].1, 500);
}

#[tokio::test]
async fn b_expire_what_is_released_at_the_end_is_free_then_and_not_before() {
    let nodes = Nodes::new(2, RELEASED);
    held_as(&nodes, 0, "ann", (6_000, 20)).await;
    held_as(&nodes, 1, "ann", (3_000, 10)).await;
    nodes.sleep(10 * SECOND - 1);
    assert_eq!(nodes.left(1, TOKENS, "tokens").await, 1_000);
    let denied = denied_as(&nodes, 0, "bob", (3_000, 20)).await;
    assert_eq!(denied.retry_after, Some(1));
    nodes.sleep(1);
    assert_eq!(nodes.left(1, TOKENS, "tokens").await, 4_000);
    nodes.sleep(10 * SECOND);
    held_as(&nodes, 1, "bob", (10_000, 20)).await;
}

#[tokio::test]
async fn b_expire_a_settle_after_the_end_charges_what_was_used_and_gives_back_nothing() {
    let nodes = Nodes::new(2, RELEASED);
    let held = held_as(&nodes, 0, "ann", (6_000, 20)).await;
    nodes.sleep(30 * SECOND);
    assert_eq!(nodes.left(0, TOKENS, "tokens").await, 10_000);
    let other = held_as(&nodes, 0, "bob", (9_000, 20)).await;
    for _ in 0..2 {
        let settled = nodes.settle(1, &held.token, &[("tokens", 800)]).await;
        assert!(settled.recorded && !settled.late);
        assert_eq!(nodes.left(0, TOKENS, "tokens").await, 200, "once");
    }
    // What was used counts from when it was reserved, a slot of the wheel at most longer.
    nodes.sleep(31 * SECOND);
    assert_eq!(
        nodes.left(0, TOKENS, "tokens").await,
        10_000,
        "bob's has ended too"
    );
    let late = nodes.settle(0, &other.token, &[("tokens", 9_500)]).await;
    assert_eq!(late.units[0].over(), 500);
    assert_eq!(nodes.left(0, TOKENS, "tokens").await, 500);
}

#[tokio::test]
async fn b_expire_a_settle_in_time_leaves_what_was_used() {
    let nodes = Nodes::new(2, RELEASED);
    let held = held_as(&nodes, 0, "ann", (6_000, 20)).await;
    nodes.sleep(10 * SECOND);
    let settled = nodes.settle(1, &held.token, &[("tokens", 800)]).await;
    assert_eq!(settled.limits[0].remaining, 9_200);
    assert_eq!(nodes.left(0, TOKENS, "tokens").await, 9_200);
    nodes.sleep(15 * SECOND);
    assert_eq!(
        nodes.left(0, TOKENS, "tokens").await,
        9_200,
        "used, not held"
    );
    nodes.sleep(37 * SECOND);
    assert_eq!(nodes.left(0, TOKENS, "tokens").await, 10_000);
}

#[tokio::test]
async fn b_expire_an_extension_moves_the_end() {
    let nodes = Nodes::new(2, RELEASED);
    let held = held_as(&nodes, 0, "ann", (6_000, 20)).await;
    nodes.sleep(15 * SECOND);
    let later = nodes
        .extend(1, &held.token, &[("tokens", 1_000)], Some(30))
        .await;
    assert!(matches!(later, ExtendAnswer::Held(_)), "{later:?}");
    assert_eq!(nodes.left(0, TOKENS, "tokens").await, 3_000);
    nodes.sleep(30 * SECOND - 1);
    assert_eq!(nodes.left(0, TOKENS, "tokens").await, 3_000);
    nodes.sleep(1);
    assert_eq!(nodes.left(0, TOKENS, "tokens").await, 10_000);
    nodes.settle(0, &held.token, &[("tokens", 6_500)]).await;
    assert_eq!(nodes.left(0, TOKENS, "tokens").await, 3_500);
}

#[tokio::test]
async fn b_expire_a_bucket_gives_back_as_many_reservations_as_it_keeps_and_refuses_more() {
    let nodes = Nodes::new(1, RELEASED);
    for _ in 0..1_024 {
        held_as(&nodes, 0, "ann", (1, 20)).await;
    }
    let denied = denied_as(&nodes, 0, "ann", (1, 20)).await;
    assert_eq!(reason(&denied), ("B-EXPIRE", Some(TOKENS)));
    assert_eq!(nodes.left(0, TOKENS, "tokens").await, 10_000 - 1_024);
    nodes.sleep(20 * SECOND);
    held_as(&nodes, 0, "ann", (10_000, 20)).await;
}

#[tokio::test]
async fn b_bound_a_hold_that_outlives_its_charge_is_refused_by_name() {
    let nodes = Nodes::new(1, POLICY);
    let hold = Hold {
        hold: Duration::from_secs(61),
        shorten: false,
        ..Hold::default()
    };
    let tokens = asking(&[("requests", 1), ("tokens", 5)]);
    let refused = nodes.engines[0].reserve(&tokens, hold).await.unwrap_err();
    assert_eq!(refused.field, "hold");
    assert_eq!(
        nodes.left(0, TOKENS, "tokens").await,
        10_000,
        "nothing charged"
    );
    // A request counts once, however long it takes.
    let requests = asking(&[("requests", 1)]);
    let held = nodes.engines[0].reserve(&requests, hold).await.unwrap();
    assert_eq!(held.held.unwrap().expires_in_us, 61 * SECOND);
    let shorter = Hold {
        shorten: true,
        ..hold
    };
    let held = nodes.engines[0].reserve(&tokens, shorter).await.unwrap();
    let held = held.held.unwrap();
    assert_eq!(held.expires_in_us, MINUTE);
    let longer = nodes.engines[0].extend(&held.token, None, Some(Duration::from_secs(61)));
    let Err(ReservationError::Field(refused)) = longer.await else {
        panic!("extended");
    };
    assert_eq!(refused.field, "hold");
}
