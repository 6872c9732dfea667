//! Reserve, extend, settle, release.

use palisade::engine::ReservationError;

use super::*;

#[tokio::test]
async fn b_bound_what_was_not_used_goes_back_and_no_more() {
    let nodes = Nodes::new(2, POLICY);
    let held = nodes.held(0, &[("requests", 1), ("tokens", 4_000)]).await;
    assert_eq!(held.expires_in_us, MINUTE);
    assert_eq!(nodes.left(1, "tokens-per-org", "tokens").await, 6_000);
    nodes.sleep(SECOND);
    let settled = nodes.settle(1, &held.token, &[("tokens", 812)]).await;
    assert!(settled.recorded && !settled.late);
    assert_eq!(settled.units[1].used, 812);
    assert_eq!(nodes.left(0, "tokens-per-org", "tokens").await, 9_188);
    assert_eq!(
        nodes.left(0, "requests-per-org", "requests").await,
        9,
        "as reserved"
    );
}

#[tokio::test]
async fn b_bound_a_surplus_is_charged_although_it_does_not_fit() {
    let nodes = Nodes::new(1, POLICY);
    let held = nodes.held(0, &[("requests", 1), ("tokens", 9_000)]).await;
    let settled = nodes.settle(0, &held.token, &[("tokens", 15_000)]).await;
    assert_eq!(settled.units[1].over(), 6_000);
    assert_eq!(nodes.left(0, "tokens-per-org", "tokens").await, 0);
    let next = nodes.reserve(0, &[("requests", 1), ("tokens", 1)]).await;
    assert!(next.held.is_none(), "the debt is worked off first");
    nodes.sleep(62 * SECOND);
    nodes.held(0, &[("requests", 1), ("tokens", 10_000)]).await;
}

#[tokio::test]
async fn b_bound_release_gives_everything_back() {
    let nodes = Nodes::new(1, POLICY);
    let held = nodes.held(0, &[("requests", 2), ("tokens", 9_000)]).await;
    let released = nodes.release(0, &held.token).await;
    assert!(released.units.iter().all(|unit| unit.used == 0));
    assert_eq!(nodes.left(0, "tokens-per-org", "tokens").await, 10_000);
    assert_eq!(nodes.left(0, "requests-per-org", "requests").await, 10);
}

#[tokio::test]
async fn b_once_a_second_settle_changes_nothing_and_gets_the_first_answer() {
    let nodes = Nodes::new(2, POLICY);
    let held = nodes.held(0, &[("tokens", 4_000)]).await;
    let first = nodes.settle(0, &held.token, &[("tokens", 1_000)]).await;
    for node in [0, 1] {
        let second = nodes.settle(node, &held.token, &[("tokens", 5)]).await;
        assert_eq!(second.units, first.units);
        let third = nodes.release(node, &held.token).await;
        assert_eq!(third.units, first.units);
        match nodes
            .extend(node, &held.token, &[("tokens", 1)], None)
            .await
        {
            ExtendAnswer::Settled(settled) => assert_eq!(settled.units, first.units),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(nodes.left(0, "tokens-per-org", "tokens").await, 9_000);
}

#[tokio::test]
async fn b_expire_an_unsettled_reservation_stays_used_and_may_be_settled_ten_minutes_more() {
    let hourly = POLICY.replace("10000/min", "10000/h");
    let nodes = Nodes::new(1, &hourly);
    let [early, late] = [
        nodes.held(0, &[("tokens", 4_000)]).await,
        nodes.held(0, &[("tokens", 4_000)]).await,
    ];
    nodes.sleep(5 * MINUTE);
    assert_eq!(nodes.left(0, "tokens-per-org", "tokens").await, 2_000);
    let settled = nodes.settle(0, &early.token, &[("tokens", 0)]).await;
    assert!(!settled.late);
    assert_eq!(nodes.left(0, "tokens-per-org", "tokens").await, 6_000);
    nodes.sleep(6 * MINUTE + 1);
    let settled = nodes.settle(0, &late.token, &[("tokens", 0)]).await;
    assert!(settled.late, "ten minutes after its end");
    assert_eq!(nodes.left(0, "tokens-per-org", "tokens").await, 6_000);
}

#[tokio::test]
async fn b_bound_an_extension_counts_from_when_it_arrives_and_the_first_token_settles_it() {
    let nodes = Nodes::new(2, POLICY);
    let held = nodes.held(0, &[("requests", 1), ("tokens", 4_000)]).await;
    nodes.sleep(10 * SECOND);
    let extended = nodes
        .extend(1, &held.token, &[("tokens", 1_000)], Some(30))
        .await;
    let ExtendAnswer::Held(extended) = extended else {
        panic!("{extended:?}")
    };
    assert_eq!(extended.expires_at, held.expires_at, "a later end only");
    assert_eq!(&*extended.reserved[1].0, "tokens");
    assert_eq!(extended.reserved[1].1, 5_000);
    assert_eq!(nodes.left(0, "tokens-per-org", "tokens").await, 5_000);
    let refused = nodes
        .extend(0, &held.token, &[("tokens", 5_001)], None)
        .await;
    assert!(matches!(refused, ExtendAnswer::Denied(_)), "{refused:?}");
    assert_eq!(nodes.left(0, "tokens-per-org", "tokens").await, 5_000);
    let settled = nodes.settle(0, &held.token, &[("tokens", 4_200)]).await;
    assert_eq!(settled.units[1].reserved, 5_000);
    assert_eq!(nodes.left(0, "tokens-per-org", "tokens").await, 5_800);
}

#[tokio::test]
async fn b_once_extensions_end_with_the_longest_life_of_a_reservation() {
    let nodes = Nodes::new(1, POLICY);
    let held = nodes.held(0, &[("tokens", 1)]).await;
    let mut ends = held.expires_at;
    for _ in 0..20 {
        nodes.sleep(50 * SECOND);
        match nodes.extend(0, &held.token, &[], Some(60)).await {
            ExtendAnswer::Held(extended) => ends = extended.expires_at,
            ExtendAnswer::Expired => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(ends, START.plus(10 * MINUTE), "`reservations.max_hold`");
}

#[tokio::test]
async fn b_sealed_what_is_not_ours_changes_nothing() {
    let nodes = Nodes::new(1, POLICY);
    let held = nodes.held(0, &[("tokens", 4_000)]).await;
    let truncated = &held.token[..held.token.len() - 1];
    let engine = &nodes.engines[0];
    for token in [truncated, "", "é", "AAAA", &"A".repeat(10_000)] {
        let used = costs(&[("tokens", 0)]);
        let refused = engine.settle(token, &used).await;
        assert_eq!(refused, Err(ReservationError::Foreign));
        assert!(engine.extend(token, None, None).await.is_err());
        assert!(engine.release(token).await.is_err());
    }
    let unknown = engine.settle(&held.token, &costs(&[("requests", 0)])).await;
    assert!(
        matches!(unknown, Err(ReservationError::Field(_))),
        "never reserved"
    );
    assert_eq!(nodes.left(0, "tokens-per-org", "tokens").await, 6_000);
    assert!(!held.token.contains("acme"));
}

#[tokio::test]
async fn b_sealed_a_reservation_survives_a_reload() {
    let nodes = Nodes::new(1, POLICY);
    let held = nodes.held(0, &[("tokens", 4_000)]).await;
    let changed = POLICY.replace("10000/min", "20000/min");
    let text = format!("[policy]\ndefaults = false\n{changed}");
    nodes.engines[0].set_policy(policy(&text, &Env::default()));
    nodes.settle(0, &held.token, &[("tokens", 0)]).await;
    assert_eq!(nodes.left(0, "tokens-per-org", "tokens").await, 20_000);
}

#[tokio::test]
async fn b_id_a_repeated_request_id_gets_the_same_reservation() {
    let nodes = Nodes::new(2, POLICY);
    let mut facts = asking(&[("requests", 1), ("tokens", 4_000)]);
    facts.request_id = Some(palisade::core::Id::new("request_id", "r-1").unwrap());
    let reserve = async |node: usize| {
        let answer = nodes.engines[node].reserve(&facts, Hold::default()).await;
        answer.unwrap().held.unwrap()
    };
    let first = reserve(0).await;
    nodes.sleep(SECOND);
    let again = reserve(1).await;
    assert_eq!(again.expires_at, first.expires_at);
    assert_eq!(
        nodes.left(0, "tokens-per-org", "tokens").await,
        6_000,
        "charged once"
    );
    nodes.settle(1, &again.token, &[("tokens", 100)]).await;
    let other = nodes.settle(0, &first.token, &[("tokens", 4_000)]).await;
    assert_eq!(other.units[1].used, 100, "one reservation, one fate");
    assert_eq!(nodes.left(0, "tokens-per-org", "tokens").await, 9_900);
    assert_eq!(nodes.left(0, "requests-per-org", "requests").await, 9);
}

#[tokio::test]
async fn b_bound_at_most_grants_what_is_left() {
    let nodes = Nodes::new(1, POLICY);
    nodes.held(0, &[("tokens", 9_500)]).await;
    let hold = Hold {
        at_most: true,
        ..Hold::default()
    };
    let engine = &nodes.engines[0];
    let reserve = async |amount| {
        let facts = asking(&[("requests", 1), ("tokens", amount)]);
        engine.reserve(&facts, hold).await.unwrap().held
    };
    let granted = reserve(4_000).await.unwrap();
    assert_eq!(granted.reserved[1].1, 500);
    assert_eq!(nodes.left(0, "tokens-per-org", "tokens").await, 0);
    assert!(reserve(4_000).await.is_none(), "nothing is left");
    nodes.sleep(2 * MINUTE);
    let granted = reserve(1 << 40).await.unwrap();
    assert_eq!(
        granted.reserved[1].1, 10_000,
        "more than the bucket ever holds"
    );
}

#[tokio::test]
async fn b_token_bucket_only_what_cannot_have_refilled_goes_back_and_a_debt_is_bounded() {
    let text = "[[limit]]\nname = \"smooth\"\nby = [\"org\"]\nrate = \"60/min\"\nburst = 60\n\
                unit = \"tokens\"\n";
    let nodes = Nodes::new(1, text);
    let held = nodes.held(0, &[("tokens", 60)]).await;
    nodes.sleep(30 * SECOND);
    nodes.settle(0, &held.token, &[("tokens", 0)]).await;
    assert_eq!(nodes.left(0, "smooth", "tokens").await, 60);
    let held = nodes.held(0, &[("tokens", 60)]).await;
    nodes.settle(0, &held.token, &[("tokens", 100_000)]).await;
    nodes.sleep(61 * SECOND);
    assert!(
        nodes.left(0, "smooth", "tokens").await >= 1,
        "at most a window's rate is owed"
    );
}

#[tokio::test]
async fn b_remember_what_one_node_gives_back_another_can_use_within_100_ms() {
    let nodes = Nodes::new(2, POLICY);
    let held = nodes.held(0, &[("tokens", 10_000)]).await;
    assert_eq!(nodes.check(1, &[("tokens", 1)]).await["decision"], "deny");
    nodes.settle(0, &held.token, &[("tokens", 0)]).await;
    nodes.sleep(SECOND / 10);
    assert_eq!(nodes.check(1, &[("tokens", 1)]).await["decision"], "allow");
}
