//! Reservations that a value holds.

use palisade::engine::ReservationGuard;

use super::*;

const SLOT: &str = r#"
[[limit]]
name = "per-org"
by = ["org"]
concurrency = 1
hold = "30s"

[[limit]]
name = "tokens-per-org"
by = ["org"]
rate = "10_000/min"
unit = "tokens"
"#;

/// Holds a reservation of these costs; `None` if it is refused.
async fn hold(nodes: &Nodes, costs: &[(&str, u64)]) -> Option<ReservationGuard> {
    let engine = &nodes.engines[0];
    let (answer, guard) = engine.hold(engine.policy(), &asking(costs)).await.unwrap();
    assert_eq!(answer.decision.is_allowed(), guard.is_some());
    guard
}

#[test]
fn b_slot_a_guard_that_is_dropped_outside_of_a_runtime_is_settled_from_the_queue() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let nodes = Nodes::new(1, SLOT);
    let guard = runtime.block_on(hold(&nodes, &[("tokens", 1)]));
    assert!(runtime.block_on(hold(&nodes, &[("tokens", 1)])).is_none());
    drop(guard);
    assert_eq!(nodes.engines[0].waiting_settles(), 1);
    runtime.block_on(async {
        nodes.engines[0].retry_settles().await;
        nodes.sleep(SECOND / 10);
        assert!(hold(&nodes, &[("tokens", 1)]).await.is_some());
    });
}

#[tokio::test]
async fn b_slot_the_guards_that_are_settled_at_once_have_a_bound() {
    let limits = &SLOT[SLOT.find("[[limit]]\nname = \"tokens").unwrap()..];
    let nodes = Nodes::new(1, limits);
    let mut guards = Vec::new();
    for _ in 0..1_100 {
        guards.push(hold(&nodes, &[("tokens", 2)]).await.unwrap());
    }
    // One that has not begun, one that has, and those that used less.
    for guard in &mut guards[2..] {
        guard.set_used(costs(&[("tokens", 1)])).unwrap();
    }
    assert!(guards[0].set_used(costs(&[("words", 1)])).is_err());
    guards[1].begin();
    drop(guards);
    assert_eq!(nodes.engines[0].waiting_settles(), 1_100 - 1_024);
    nodes.engines[0].guards_settled().await;
    nodes.engines[0].retry_settles().await;
    assert_eq!(nodes.engines[0].waiting_settles(), 0);
    assert_eq!(
        nodes.left(0, "tokens-per-org", "tokens").await,
        10_000 - (2 + 1_098)
    );
}

#[tokio::test]
async fn b_slot_only_requests_that_such_a_limit_counts_are_held() {
    let nodes = Nodes::new(1, SLOT);
    let engine = &nodes.engines[0];
    let policy = engine.policy();
    let facts = asking(&[]);
    assert!(engine.takes_slots(&policy, &facts));
    let nobody = request(r#"{"ip":"203.0.113.5","method":"GET","path":"/x"}"#);
    assert!(
        !engine.takes_slots(&policy, &nobody),
        "it counts organisations"
    );
}
