//! An account under attack from a million devices and addresses: its record stays
//! within its bound, its blocks and its known device stay, and few keys are added.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

use palisade_core::facts::{Confidence, GuardFacts, GuardOp, Id};
use palisade_core::guard::{Attempt, GuardPolicy, Policies, Records, Signals, evaluate};
use palisade_core::lockout::LockoutPolicy;
use palisade_core::record::Flow;
use palisade_core::time::{Micros, SECOND};
use palisade_core::{Keyring, time::MINUTE};

const DEVICES: u32 = 1_000_000;
const ACCOUNT_BYTES_MAX: usize = 4608;

fn facts(ip: u32, device: &str) -> GuardFacts {
    let mut facts = GuardFacts::new(std::net::IpAddr::from(ip.to_be_bytes()));
    facts.account = Some(Id::new("account", "victim").unwrap());
    facts.device.fingerprint = Some(Id::new("fingerprint", device).unwrap());
    facts.device.confidence = Some(Confidence::Medium);
    facts
}

#[test]
fn g_ephemeral_a_million_devices_and_addresses_evict_no_block_and_no_known_device() {
    let (guard, lockout) = (GuardPolicy::default(), LockoutPolicy::default());
    let policies = Policies {
        guard: &guard,
        lockout: &lockout,
    };
    let keyring = Keyring::new(&[7; 32], None).unwrap();
    let signals = |op, facts: &GuardFacts| Signals::resolve(&keyring, op, facts);
    let mut now = Micros(1_800_000_000 * SECOND);
    let owner = signals(GuardOp::LoginSuccess, &facts(1, "home"));
    let home = owner.fingerprint.unwrap().digest;
    let welcome = evaluate(
        policies,
        Flow::Login,
        Attempt::Success,
        &owner,
        Records::default(),
        now,
    );
    let mut account = welcome.records.account;
    let (mut keys, mut largest) = (0_u32, 0);
    for n in 0..DEVICES {
        now = now.plus(MINUTE / 60_000);
        let attacker = facts(0x0A00_0000 + n, &format!("device-{n}"));
        let attacker = signals(GuardOp::LoginFailure, &attacker);
        let standing = account.key().hard(now).map(|block| block.until);
        // Every address and device is new: only the account's record is used again.
        let records = Records {
            account,
            ..Records::default()
        };
        let found = evaluate(
            policies,
            Flow::Login,
            Attempt::Failure,
            &attacker,
            records,
            now,
        );
        keys += u32::from(found.changed.network) + u32::from(found.changed.device);
        account = found.records.account;
        let after = account.key().hard(now).map(|block| block.until);
        assert!(
            standing.is_none() || after >= standing,
            "a block left at {n}"
        );
        if n % 1000 == 0 {
            largest = largest.max(account.encode().len());
            assert!(
                account.knows(&guard, &home, now),
                "the owner's device left at {n}"
            );
        }
    }
    assert!(largest <= ACCOUNT_BYTES_MAX, "{largest} bytes");
    assert!(keys < 1_000, "{keys} keys were added");
    assert!(account.knows(&guard, &home, now));
}
