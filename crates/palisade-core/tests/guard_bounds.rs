//! Bounds on the records that a flood leaves behind, whatever the flood is made of.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod support;

use palisade_core::record::RecordKind;
use support::World;
use support::script::check;

fn count(world: &World, of: impl Fn(RecordKind) -> bool) -> usize {
    world.records.keys().filter(|key| of(key.kind)).count()
}

fn devices(world: &World) -> usize {
    count(world, |kind| matches!(kind, RecordKind::Device(_)))
}

/// 3,000 new fingerprints on one account within 15 minutes, with each command of both flows.
#[test]
fn g_ephemeral_new_fingerprints_on_one_account_leave_ten_device_records() {
    for op in ["check", "fail", "otp.check", "otp.fail"] {
        let mut world = World::default();
        let script = format!("0 x3000/250ms {op} d=f# ip=# => *");
        check(&mut world, &script.replace("ip=#", "ip=7")).unwrap();
        assert!(devices(&world) <= 10, "{op}: {}", devices(&world));
    }
}

#[test]
fn g_ephemeral_new_fingerprints_from_one_prefix_leave_fifty_device_records() {
    for op in ["check", "fail", "otp.check", "otp.fail"] {
        let mut world = World::default();
        let script = format!("0 x3000/250ms {op} a=a# d=f# => *");
        check(&mut world, &script).unwrap();
        assert!(devices(&world) <= 50, "{op}: {}", devices(&world));
    }
}

/// A device that has a record is still observed when there is no room for new ones; otherwise a
/// flood would hide a dilution.
#[test]
fn g_dilution_a_flood_hides_no_device_that_has_a_record() {
    let mut world = World::default();
    check(&mut world, "0 x5/1s check a=d# d=p/low ip=4# => allow").unwrap();
    check(&mut world, "10s x60/0 check a=e# d=n# ip=45 => *").unwrap();
    check(
        &mut world,
        "75s check a=z d=p/low ip=45 => hard +G-DILUTION",
    )
    .unwrap();
}

/// Refused checks write nothing at all.
#[test]
fn g_pending_a_flood_of_parallel_checks_leaves_one_account_record() {
    let mut world = World::default();
    check(&mut world, "0 x2/0 check d=x id=p# => allow").unwrap();
    let before = world.records.clone();
    check(
        &mut world,
        "1s x3000/1ms check d=f# ip=# id=q# => soft G-PENDING nothing"
            .replace("ip=#", "ip=7")
            .as_str(),
    )
    .unwrap();
    assert_eq!(before, world.records);
}
