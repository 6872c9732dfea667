//! The largest records that any input can lead to, built field by field.

use crate::decision::{Challenge, KeyKind, Level, Outcome};
use crate::key::{Digest, DigestPair};
use crate::rule::Rule;
use crate::time::Micros;

use super::account::{Account, FAMILIAR_MAX, SESSIONS_MAX, STRANGERS_MAX};
use super::device::Device;
use super::network::{AGENTS_MAX, Network};
use super::once::{ONCE_MAX, Once};
use super::sets::{Member, Short, SlidingSet, Watch};
use crate::guard::aggregate::{Answer, Candidate, REASONS_MAX};
use crate::guard::ladder::{Block, Class, Issuer, KeyState, RememberedBlock};
use crate::guard::policy::{FINGERPRINTS_MAX, SET_MAX};

/// An instant as far from the record's own as an instant can be.
pub(super) const FAR_OFF: Micros = Micros(u64::MAX);

pub(super) fn full_key() -> KeyState {
    KeyState {
        score: u8::MAX,
        anchor: FAR_OFF,
        slow: true,
        paused_until: FAR_OFF,
        remembered: Some(RememberedBlock {
            level: Level::L6,
            since: FAR_OFF,
        }),
        block: Some(Block {
            class: Class::Hard,
            level: Level::L6,
            rule: Rule::A_HARD,
            until: FAR_OFF,
            issuer: Issuer::Stranger,
        }),
        last_hard: Some(FAR_OFF),
    }
}

pub(super) fn full_set() -> SlidingSet {
    let member = Member {
        who: Short(u64::MAX),
        first: FAR_OFF,
        last: FAR_OFF,
    };
    SlidingSet(vec![member; SET_MAX])
}

pub(super) const fn full_watch() -> Watch {
    Watch(Some(FAR_OFF))
}

fn who(n: u128) -> DigestPair {
    DigestPair {
        current: Digest(n << 64 | n),
        previous: None,
    }
}

/// A week in seconds: the longest step of a ladder that a policy may have.
const WEEK_SECONDS: u64 = 7 * 86_400;

pub(super) fn full_once() -> Once {
    let candidate = Candidate {
        rule: Rule::A_HARD,
        key: KeyKind::Lockout,
        outcome: Outcome::HardBlock,
        level: Some(Level::L6),
        retry_after: WEEK_SECONDS,
    };
    let answer = Answer {
        delay_ms: Some(u32::MAX),
        challenge: Some(Challenge::OutOfBand),
        ..Answer::of(vec![candidate; REASONS_MAX])
    };
    let mut once = Once::default();
    for n in 0..ONCE_MAX as u128 {
        once.note(&who(n), &answer, FAR_OFF);
    }
    once
}

#[test]
fn the_largest_account_record_fits_four_and_a_half_kibibytes() {
    let account = Account::full(FAMILIAR_MAX, STRANGERS_MAX, SESSIONS_MAX);
    let bytes = account.encode();
    assert!(bytes.len() <= 4608, "{} bytes", bytes.len());
    assert!(
        bytes.len() > 4000,
        "the test fills it: {} bytes",
        bytes.len()
    );
    assert!(Account::decode(&bytes).is_ok());
}

#[test]
fn the_largest_network_record_fits_eight_kibibytes() {
    let bytes = Network::full(AGENTS_MAX, FINGERPRINTS_MAX).encode();
    assert!(bytes.len() <= 8192, "{} bytes", bytes.len());
    assert!(
        bytes.len() > 6000,
        "the test fills it: {} bytes",
        bytes.len()
    );
    assert!(Network::decode(&bytes).is_ok());
}

#[test]
fn the_largest_device_record_fits_one_kibibyte() {
    let bytes = Device::full().encode();
    assert!(bytes.len() <= 1024, "{} bytes", bytes.len());
    assert!(Device::decode(&bytes).is_ok());
}
