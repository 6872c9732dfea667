//! Sessions, the owner lane, operators' lifts, and records that cannot be read.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod support;

use palisade_core::decision::{KeyKind, Outcome};
use palisade_core::facts::{GuardFacts, GuardOp, Id};
use palisade_core::guard::policy::OwnerLane;
use palisade_core::guard::signals::session_digest;
use palisade_core::guard::{Account, DecodeError, Device, GuardPolicy, Lift, Network, Signals};
use palisade_core::key::Keyring;
use palisade_core::lockout::Lockout;
use palisade_core::record::{Flow, RecordKey};
use palisade_core::time::{DAY, MINUTE, Micros, SECOND};
use proptest::prelude::*;

use support::script::check;
use support::{START, World};

fn id(text: &str) -> Option<Id> {
    Some(Id::new("id", text).unwrap())
}

fn facts(account: &str) -> GuardFacts {
    let mut facts = GuardFacts::new("203.0.113.1".parse().unwrap());
    facts.user_agent = Some(support::CHROME.into());
    facts.account = id(account);
    facts
}

fn account_key(world: &World, account: &str) -> RecordKey {
    let signals = Signals::resolve(&world.keyring, GuardOp::LoginCheck, &facts(account));
    signals.keys(Flow::Login).account.unwrap().current
}

fn account(world: &World, name: &str) -> Account {
    world
        .records
        .get(&account_key(world, name))
        .map(|bytes| Account::decode(bytes).unwrap())
        .unwrap_or_default()
}

fn edit(world: &mut World, name: &str, change: impl FnOnce(&mut Account)) {
    let mut record = account(world, name);
    change(&mut record);
    let key = account_key(world, name);
    world.records.insert(key, record.encode());
}

fn issue(world: &mut World, name: &str, session: &str, at: Micros) {
    let digest = session_digest(&world.keyring, name.as_bytes(), session.as_bytes());
    edit(world, name, |record| record.add_session(&digest, at));
}

const SPRAY: &str = "
    0 x4/1s check a=s# d=x     => allow
    4s     check a=s4 d=x      => hard L2 60s G-SPRAY
";

#[test]
fn g_advisory_an_issued_session_is_trusted_until_it_is_revoked() {
    let mut world = World::default();
    issue(&mut world, "o", "s1", START);
    check(&mut world, SPRAY).unwrap();
    check(&mut world, "5s check a=o session=s1 => allow nothing").unwrap();
    check(&mut world, "5s check a=o session=forged => hard L2 59s").unwrap();
    check(&mut world, "5s check a=other session=s1 => hard L2 59s").unwrap();
    let digest = session_digest(&world.keyring, b"o", b"s1");
    edit(&mut world, "o", |record| {
        assert!(record.revoke_session(&digest))
    });
    check(&mut world, "6s check a=o session=s1 => hard L2 58s").unwrap();
}

#[test]
fn g_rot_a_session_is_recognised_under_either_secret() {
    let mut world = World::default();
    issue(&mut world, "o", "s1", START);
    check(&mut world, SPRAY).unwrap();
    check(
        &mut world,
        "5s rotate => *\n 6s check a=o session=s1 => allow",
    )
    .unwrap();
}

#[test]
fn at_most_twenty_sessions_are_kept_and_the_oldest_leaves() {
    let ring = Keyring::new(&[7; 32], None).unwrap();
    let policy = GuardPolicy::default();
    let of = |n: u32| session_digest(&ring, b"o", &n.to_le_bytes());
    let mut record = Account::default();
    for n in 0..21 {
        record.add_session(&of(n), START);
    }
    assert!(!record.has_session(&policy, &of(0), START));
    assert!(record.has_session(&policy, &of(1), START));
    assert!(!record.has_session(&policy, &of(1), START.plus(policy.familiar_for)));
    assert!(!record.revoke_session(&of(0)));
    assert_eq!(record.revoke_all_sessions(), 20);
    assert!(!record.has_session(&policy, &of(20), START));
}

#[test]
fn a_session_device_has_its_own_score_and_high_confidence() {
    let mut world = World::default();
    issue(&mut world, "a1", "s1", START);
    let script = "
        0      fail d=f session=s1   => allow score:K5+2
        1s     fail d=f session=s1   => allow score:K5+2
        2s     fail d=f session=s1   => soft L1 15s
        3s     check d=f             => allow
        3s     fail d=f              => allow score:K4+3
    ";
    check(&mut world, script).unwrap();
}

const STRANGERS_LOCK: &str = "
    0 x2/1s fail d=x           => *
    2s     fail d=x            => hard L2 60s
    3s     check d=own+known   => hard L2 59s
";

#[test]
fn owner_lane_strangers_cannot_lock_the_owner_out() {
    let mut world = World::default();
    world.policy.login.owner_lane = OwnerLane::Trusted;
    check(&mut world, STRANGERS_LOCK).unwrap();
    let own = "
        4s     check d=own+trusted => allow
        5s     check d=x           => hard L2 57s
        6s     fail d=own+trusted  => allow score:K5+2
        7s     fail d=own+trusted  => allow
        8s     fail d=own+trusted  => soft L1 15s
        9s     fail d=own+trusted  => hard L2 60s
        10s    ok d=own+trusted    => hard L2 59s
        70s    ok d=own+trusted    => allow
    ";
    check(&mut world, own).unwrap();
}

#[test]
fn owner_lane_is_closed_by_default() {
    let mut world = World::default();
    check(&mut world, STRANGERS_LOCK).unwrap();
    check(&mut world, "4s check d=own+trusted => hard L2 58s").unwrap();
}

#[test]
fn a_success_under_a_hard_block_changes_nothing() {
    let script = "
        0 x2/1s fail d=x           => *
        2s     fail d=x            => hard L2 60s
        3s     ok d=x              => hard L2 59s nothing
        62s    fail d=x            => hard L3 300s score:K4+3
    ";
    check(&mut World::default(), script).unwrap();
    let mut world = World::default();
    check(&mut world, SPRAY).unwrap();
    check(&mut world, "5s ok a=s0 d=x => allow nothing").unwrap();
}

#[test]
fn a_device_becomes_known_by_a_success_of_at_least_medium_confidence() {
    let script = "
        0      ok d=pc             => allow
        1s     fail d=pc           => allow score:K5+2
        2s     ok d=weak/low       => allow
        3s     fail d=weak/low     => allow score:K4+3
        4s     otp.fail d=pc       => soft score:K4+5
    ";
    check(&mut World::default(), script).unwrap();
}

#[test]
fn known_devices_survive_a_flood_of_new_ones() {
    let mut world = World::default();
    check(&mut world, "0 ok d=pc => allow").unwrap();
    check(&mut world, "1m x200/20s check d=n# ip=# => *").unwrap();
    check(&mut world, "3h fail d=pc ip=250 => * score:K5+2").unwrap();
}

#[test]
fn an_operator_sees_and_lifts_blocks() {
    let mut world = World::default();
    let rotation = "
        0 x2/0 fail d=r0 ip=10     => *
        1s     check d=r1 ip=11    => soft
        2s     check d=r2 ip=12    => soft
        3s     check d=r3 ip=13    => hard
        4s     check d=r4 ip=14    => hard
    ";
    check(&mut world, rotation).unwrap();
    let now = START.plus(5 * SECOND);
    let blocks = account(&world, "a1").active_blocks(now);
    let kinds: Vec<KeyKind> = blocks.iter().map(|block| block.key).collect();
    assert_eq!(
        kinds
            .iter()
            .filter(|kind| **kind == KeyKind::AccountDevice)
            .count(),
        5
    );
    assert!(kinds.contains(&KeyKind::Account));
    let member = blocks
        .iter()
        .find_map(|block| block.member.clone())
        .unwrap();
    edit(&mut world, "a1", |record| {
        assert_eq!(
            record.lift(Lift::One(KeyKind::AccountDevice, Some(&member)), now),
            1
        );
        assert_eq!(record.active_blocks(now).len(), 5);
        assert_eq!(record.lift(Lift::All, now), 5);
        assert_eq!(record.lift(Lift::All, now), 0);
    });
    check(&mut world, "6s check d=r0 ip=10 => allow").unwrap();
}

#[test]
fn disabled_flows_allow_and_keep_nothing() {
    let mut world = World::default();
    world.policy.login.enabled = false;
    world.policy.api.enabled = false;
    world.lockout.enabled = false;
    check(&mut world, "0 x40/0 fail d=x user=bob => allow nothing").unwrap();
    check(&mut world, "0 x700/0 hit d=x => allow nothing").unwrap();
    assert!(world.records.is_empty());
}

#[test]
fn the_lockout_refuses_while_the_guard_allows_and_the_stricter_answer_wins() {
    let script = "
        0 x5/1s fail a=a# d=d#+known user=bob => allow
        10s    check a=z d=z+known user=bob  => deny 890s A-WINDOW
        11s x3/0 fail a=z d=z+known user=bob => deny
        12s    fail a=z d=z+known user=bob   => hard L2 891s +A-WINDOW
        13s    check a=z d=z+known user=bob  => hard L2 891s +A-WINDOW delay=1000
    ";
    check(&mut World::default(), script).unwrap();
}

#[test]
fn newer_and_corrupt_records_are_told_apart() {
    let mut world = World::default();
    check(&mut world, "0 x3/1s fail d=x user=bob => *").unwrap();
    for bytes in world.records.values() {
        let mut newer = bytes.clone();
        newer[0] = 9;
        assert_eq!(Account::decode(&newer), Err(DecodeError::NewerVersion));
        let decoded = [
            Account::decode(&bytes[..bytes.len() - 1]).is_err(),
            Network::decode(&bytes[..bytes.len() - 1]).is_err(),
        ];
        assert_eq!(decoded, [true, true], "cut short");
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(Account::decode(&longer).is_err());
    }
    assert_eq!(Account::decode(&[]), Err(DecodeError::Corrupt));
    assert_eq!(Account::decode(&[0; 40]), Err(DecodeError::Corrupt));
}

#[test]
fn api_blocks_name_their_key_and_never_exceed_level_three() {
    let medium = "
        0 x240/1ms hit d=api       => *
        1s     hit d=api           => hard L2 60s G-API
        2s     hit d=api ip=2      => allow
        2s     hit d=other         => *
    ";
    check(&mut World::default(), medium).unwrap();
    let low = "
        0 x240/1ms hit d=api/low   => *
        1s     hit d=api/low       => hard L2 60s G-API
        2s     hit d=other         => hard L2 59s G-API
        2s     hit d=other ua=99   => allow
    ";
    check(&mut World::default(), low).unwrap();
    let severe = "
        0 x600/1ms hit d=d# ua=#   => allow
        1s     hit d=z ua=9        => hard L3 300s G-API
        2s     hit d=y ua=8        => hard L3 299s
    ";
    check(&mut World::default(), severe).unwrap();
    let once = "
        0 x120/0 hit d=a           => allow
        1s     hit d=a id=r1       => soft L1 15s G-API
        9s     hit d=a id=r1       => soft L1 15s nothing
        9s     hit d=a             => soft L1 7s
        9s     hit d=a pass        => allow
    ";
    check(&mut World::default(), once).unwrap();
}

#[test]
fn expired_records_say_so() {
    let mut world = World::default();
    check(&mut world, "0 fail d=x => allow").unwrap();
    let policy = &world.policy;
    let expires = account(&world, "a1").expires_at(policy, &policy.login);
    assert_eq!(expires, START.plus(DAY), "the budget looks a day back");
    assert!(Account::default().expires_at(policy, &policy.login) < Micros(MINUTE));
}

/// Runs every decoder on the same bytes; it is enough that none panics.
fn decode_all(bytes: &[u8]) -> usize {
    [
        Account::decode(bytes).is_ok(),
        Network::decode(bytes).is_ok(),
        Device::decode(bytes).is_ok(),
        Lockout::decode(bytes).is_ok(),
    ]
    .into_iter()
    .filter(|decoded| *decoded)
    .count()
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        decode_all(&bytes);
        let mut versioned = vec![1];
        versioned.extend(&bytes);
        decode_all(&versioned);
    }

    /// A record with a flipped byte is refused, or it decodes to something that the
    /// rules can work with.
    #[test]
    fn a_damaged_record_is_refused_or_usable(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut world = World::default();
        check(&mut world, "0 x6/1s check d=r# ip=# user=bob => *\n 9s x2/0 fail d=z id=q => *").unwrap();
        let key = account_key(&world, "a1");
        let bytes = world.records.get_mut(&key).unwrap();
        let index = at.index(bytes.len());
        bytes[index] = byte;
        let usable = Account::decode(bytes).is_ok();
        if usable {
            let answer = world.apply(GuardOp::LoginFailure, &facts("a1"), START.plus(MINUTE)).answer;
            prop_assert!(answer.outcome <= Outcome::HardBlock);
            prop_assert!(world.records[&key].len() <= 4096);
        }
    }
}
