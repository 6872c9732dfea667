//! F-BLOCKS: blocks and lockouts that a node has seen bind in an outage.

use super::*;

const OUTAGE: &str = "2s down; 2s call login; 2s call login; 2s call login;";

fn in_outage(seen: &str, script: &str) {
    let mut world = World::play(seen);
    world.more(OUTAGE);
    world.more(script);
}

#[test]
fn f_blocks_a_seen_hard_block_binds_until_its_own_end() {
    in_outage(
        "1s login.check A 1 stored=K4/L3 -> hard_block normal",
        "2s login.check A 2 -> hard_block degraded G-THRESHOLD L3 299s by=K4 http429; \
         5m0s999999u login.check A 2 -> hard_block 1s; 5m1s login.check A 2 -> allow degraded",
    );
}

#[test]
fn f_blocks_every_kind_of_key_binds_its_own_requests_only() {
    for (kind, bound, free) in [
        ("K1", "B 1", "A 2"),
        ("K2", "B 1 ua1", "A 1 ua2"),
        ("K3", "B 1 fp1", "A 1 fp2"),
        ("K4", "A 9 fp9", "B 1 fp1"),
        ("K5", "A 9 fp1", "A 1 fp2"),
        ("device", "B 9 fp1", "A 1 fp2"),
    ] {
        in_outage(
            &format!("1s login.check A 1 ua1 fp1 stored={kind}/L2"),
            &format!(
                "2s login.check {bound} -> hard_block G-THRESHOLD by={}; 2s login.check {free} -> allow",
                kind,
            ),
        );
    }
}

#[test]
fn f_blocks_a_network_block_binds_neither_a_trusted_session_nor_a_success() {
    in_outage(
        "1s login.check A 1 stored=K1/L2",
        "2s login.check A 1 -> hard_block; 2s login.check A 1 trusted -> allow; \
         2s login.success A 1 -> allow",
    );
}

#[test]
fn f_blocks_an_account_block_binds_a_success_as_it_does_otherwise() {
    in_outage(
        "1s login.check A 1 stored=K4/L2",
        "2s login.success A 1 -> hard_block degraded G-THRESHOLD; \
         2s login.check A 1 trusted -> hard_block",
    );
}

#[test]
fn f_blocks_of_one_flow_do_not_bind_another() {
    in_outage(
        "1s otp.check A 1 stored=K4/L6",
        "2s login.check A 1 -> allow degraded",
    );
}

#[test]
fn f_blocks_bind_heavy_endpoints_before_the_breaker_opens_too() {
    World::play(
        "1s api.hit 1 stored=K1/L3; 2s down; 2s api.hit 1 -> hard_block fail_open G-THRESHOLD; \
         2s api.hit 2 -> allow fail_open",
    );
}

#[test]
fn f_blocks_a_network_block_binds_no_trusted_session_at_heavy_endpoints() {
    for (kind, agent) in [("K1", "ua2"), ("K2", "ua1")] {
        World::play(&format!(
            "1s api.hit 1 ua1 stored={kind}/L3; 2s down; \
             2s api.hit 1 {agent} -> hard_block fail_open G-THRESHOLD; \
             2s api.hit 1 {agent} trusted -> allow fail_open"
        ));
    }
}

#[test]
fn f_blocks_of_accounts_do_not_bind_heavy_endpoints() {
    World::play(
        "1s api.hit A 1 fp1 stored=K4/L3; 1s api.hit A 1 fp1 stored=K5/L3; 2s down; \
         2s api.hit A 1 fp1 -> allow fail_open",
    );
}

#[test]
fn f_blocks_a_blocked_request_uses_up_no_cap() {
    let mut world = World::play("1s login.check A 1 stored=K4/L2");
    world.more(OUTAGE);
    for _ in 0..9 {
        world.more("3s login.check A 1 -> hard_block G-THRESHOLD");
    }
    world.more(
        "61s login.check A 1 -> allow; 61s login.check A 1 -> allow; 61s login.check A 1 -> allow",
    );
}

#[test]
fn f_blocks_the_longer_of_two_on_one_key_stands() {
    in_outage(
        "0s login.check A 1 stored=K4/L3; 1s login.check A 1 stored=K4/L2",
        "4m59s login.check A 1 -> hard_block L3 1s",
    );
}

#[test]
fn f_blocks_a_lifted_block_no_longer_binds() {
    let mut world = World::play("1s login.check A 1 stored=K4/L3");
    let subject = keys(&["A", "1"]);
    world
        .node
        .guard(Flow::Login)
        .blocks()
        .lift(KeyKind::Account, &subject);
    world.more(OUTAGE);
    world.more("3s login.check A 1 -> allow degraded");
}

#[test]
fn f_blocks_only_what_the_store_decided_is_remembered() {
    let mut world = World::play(OUTAGE);
    let subject = keys(&["A", "1"]);
    for _ in 0..4 {
        let decision = world.ask(Flow::Login, Attempt::Check, &subject, None, START);
        world
            .node
            .saw_decision(Flow::Login, &subject, &decision, START);
    }
    world.more("3s login.check A 1 -> hard_block F-DEGRADED by=K4");
    assert!(world.node.guard(Flow::Login).blocks().is_empty());
}

#[test]
fn f_blocks_past_its_capacity_the_cache_drops_what_ends_first() {
    let mut cache = BlockCache::new(3);
    let subject = |n: u128| DegradedKeys {
        account: Some(Digest(n)),
        ..keys(&["1"])
    };
    for (n, seconds) in [(1, 50), (2, 10), (3, 40), (4, 30)] {
        let block = SeenBlock {
            rule: Rule::G_SPRAY,
            level: Level::L2,
            until: START.plus(seconds * SECOND),
        };
        cache.saw(KeyKind::Account, &subject(n), block, START);
    }
    let bound: Vec<u128> = (1..=4)
        .filter(|n| {
            cache
                .binding(Flow::Login, Attempt::Check, &subject(*n), START)
                .is_some()
        })
        .collect();
    assert_eq!(bound, [1, 3, 4]);
    cache.expire(START.plus(MINUTE));
    assert!(cache.is_empty());
}
