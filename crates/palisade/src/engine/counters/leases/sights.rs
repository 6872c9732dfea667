//! Which buckets were asked for a moment ago. One that is seen once in a while is charged in
//! the store like any other: tokens beyond its own would come back unused.

use std::sync::atomic::{AtomicU64, Ordering};

use palisade_core::Digest;
use palisade_core::time::Micros;

use super::LEASE_US;

/// Buckets that are told apart; where two meet, the later one is remembered.
const PLACES: usize = 1 << 14;

/// The lower bits of an entry are an instant, the others a part of the bucket's name.
const INSTANT_BITS: u32 = 48;
const INSTANT: u64 = (1 << INSTANT_BITS) - 1;

/// When buckets were last asked for. Whoever is taken for another, or forgotten, gets a lease
/// too early or too late: what is counted does not depend on it.
pub(super) struct Sights(Box<[AtomicU64]>);

impl Default for Sights {
    fn default() -> Self {
        Self((0..PLACES).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Sights {
    /// Notes that a bucket is asked for; when it was before, if no longer ago than a token
    /// lasts.
    pub(super) fn see(&self, id: Digest, now: Micros) -> Option<Micros> {
        let bytes = id.0.to_le_bytes();
        let place = usize::from(u16::from_le_bytes([bytes[2], bytes[3]])) % PLACES;
        let name = u64::from(u16::from_le_bytes([bytes[4], bytes[5]])) << INSTANT_BITS;
        let before = self.0[place].swap(name | (now.0 & INSTANT), Ordering::Relaxed);
        let ago = (now.0 & INSTANT).wrapping_sub(before & INSTANT) & INSTANT;
        (before & !INSTANT == name && ago <= LEASE_US).then(|| now.minus(ago))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_known_again_while_a_token_would_last() {
        let sights = Sights::default();
        let (one, other) = (Digest(0x5_0001_0000), Digest(0x6_0001_0000));
        let at = |us: u64| Micros(1_771_027_200_000_000 + us);
        assert_eq!(sights.see(one, at(0)), None);
        assert_eq!(sights.see(one, at(LEASE_US)), Some(at(0)));
        assert_eq!(sights.see(one, at(2 * LEASE_US + 1)), None);
        assert_eq!(
            sights.see(one, at(2 * LEASE_US + 1)),
            Some(at(2 * LEASE_US + 1))
        );
        assert_eq!(
            sights.see(other, at(2 * LEASE_US + 2)),
            None,
            "it has the same place"
        );
        assert_eq!(
            sights.see(one, at(2 * LEASE_US + 3)),
            None,
            "it had to make room"
        );
    }
}
