//! Keyed digests of one send, and the records that they lead to.

use arrayvec::ArrayVec;

use super::range::RANGES_OF_ONE;
use super::records::range::RANGE_SHARDS;
use super::{Destination, SendPolicy};
use crate::guard::{KeyPair, Signals};
use crate::key::{Digest, DigestPair, Domain, Keyring};
use crate::record::RecordKind;

/// A range of the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeSignal {
    /// Digest of the range's name.
    pub digest: DigestPair,
    /// Whether the range is never refused outright.
    pub is_wide: bool,
}

/// Everything that the rules see of one send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendSignals {
    /// Address prefix.
    pub prefix: DigestPair,
    /// Account, if the caller named one.
    pub account: Option<DigestPair>,
    /// Destination.
    pub destination: DigestPair,
    /// Its ranges, the widest first.
    pub ranges: ArrayVec<RangeSignal, RANGES_OF_ONE>,
    /// Digest of the request id (G-ONCE).
    pub request: Option<DigestPair>,
    /// The device is one that the account knows: the host says so, or the account's record does.
    pub known: bool,
    /// A challenge was passed: SOFT answers yield.
    pub challenge_passed: bool,
}

/// The records of one send: account, network, destination, and a shard of each range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendKeys {
    /// Record of the account, if there is one.
    pub account: Option<KeyPair>,
    /// Record of the network.
    pub network: KeyPair,
    /// Record of the destination.
    pub destination: KeyPair,
    /// The destination's shard of each range.
    pub ranges: [Option<KeyPair>; RANGES_OF_ONE],
}

impl SendSignals {
    /// Computes the signals of a send.
    #[must_use]
    pub fn resolve(
        keyring: &Keyring,
        policy: &SendPolicy,
        guard: &Signals,
        destination: &Destination,
    ) -> Self {
        let ranges = policy.ranges.of(destination);
        let signal = |range: &super::range::Range<'_>| RangeSignal {
            digest: keyring.hmac(Domain::Range, &[range.name.as_bytes()]),
            is_wide: range.is_wide,
        };
        Self {
            prefix: guard.prefix,
            account: guard.account,
            destination: destination_digest(keyring, destination),
            ranges: ranges.iter().map(signal).collect(),
            request: guard.request,
            known: guard.known || guard.trusted,
            challenge_passed: guard.challenge_passed,
        }
    }

    /// The records that the send reads and writes.
    #[must_use]
    pub fn keys(&self) -> SendKeys {
        let mut ranges = [None; RANGES_OF_ONE];
        for (place, range) in ranges.iter_mut().zip(&self.ranges) {
            let shard = shard_of(self.destination.current);
            *place = Some(shard_key(range.digest, shard));
        }
        SendKeys {
            account: self
                .account
                .map(|digest| KeyPair::new(RecordKind::SendAccount, digest)),
            network: KeyPair::new(RecordKind::SendNetwork, self.prefix),
            destination: KeyPair::new(RecordKind::SendDestination, self.destination),
            ranges,
        }
    }
}

/// Digest of a destination.
#[must_use]
pub fn destination_digest(keyring: &Keyring, destination: &Destination) -> DigestPair {
    keyring.hmac(Domain::Destination, &[destination.as_str().as_bytes()])
}

/// Every shard of a range.
#[must_use]
pub fn range_shards(range: DigestPair) -> [KeyPair; RANGE_SHARDS] {
    let mut number = 0;
    [(); RANGE_SHARDS].map(|()| {
        let key = shard_key(range, number);
        number += 1;
        key
    })
}

/// The shard of a range that a destination counts in. All sends of a destination are in one shard,
/// so that a success writes one.
#[must_use]
pub const fn shard_of(destination: Digest) -> u128 {
    destination.0 % RANGE_SHARDS as u128
}

/// The key of a shard. The range's digest is as good as random, so that replacing a few of its bits
/// by a number makes no two ranges meet.
#[must_use]
pub fn shard_key(range: DigestPair, shard: u128) -> KeyPair {
    let numbered =
        |digest: Digest| Digest(digest.0 / RANGE_SHARDS as u128 * RANGE_SHARDS as u128 + shard);
    let digest = DigestPair {
        current: numbered(range.current),
        previous: range.previous.map(numbered),
    };
    KeyPair::new(RecordKind::SendRange, digest)
}
