//! Names for buckets that exist in memory and nowhere else.
//!
//! Such a name need not hide its identifier, as nobody sees it. It only has to keep any two
//! identifiers apart, even if an attacker chose them. Two sums of products with secret factors
//! modulo 2¹²⁸, of each the upper half, do that in a quarter of the instructions of SipHash: two
//! identifiers of at most 32 bytes get the same name with odds of at most 2⁻¹²⁸ over the secret
//! (Dietzfelbinger 1996, multiply and add without primes). Longer ones are hashed by SipHash first.

use std::fmt;

use super::Digest;
use super::sip::{Sip, tail_word};

/// Longest identifier that is named without SipHash, in bytes.
const SHORT_MAX: usize = 4 * 8;

/// Names the buckets of one limit by one identifier; see
/// [`Keyring::namer`](super::Keyring::namer).
///
/// Not for anything that is written, sent or shown: from enough names of known
/// identifiers the secret factors can be computed.
#[derive(Clone)]
pub struct Namer {
    halves: [Half; 2],
    long: Sip,
}

/// Secret start and factors of one of the two sums.
#[derive(Clone, Copy)]
struct Half {
    start: u128,
    words: [u128; 4],
}

/// Number of secrets in one half.
const SECRETS: u8 = 5;

impl Namer {
    /// A namer made of secrets: `secret` must return an independent one for each number.
    pub(super) fn new(secret: impl Fn(u8) -> [u8; 16]) -> Self {
        let number = |index: u8| u128::from_le_bytes(secret(index));
        let half = |first: u8| Half {
            start: number(first),
            words: [1, 2, 3, 4].map(|offset| number(first + offset)),
        };
        Self {
            halves: [half(0), half(SECRETS)],
            long: Sip::new(secret(2 * SECRETS)),
        }
    }

    /// Returns a namer for the buckets of `limit`: names of two limits differ as the digests of the
    /// limits do.
    pub(super) fn of(&self, limit: Digest) -> Self {
        let [low, high] = self.halves;
        let from = |half: Half, limit: u64| Half {
            start: half.start.wrapping_add(u128::from(limit) << 64),
            ..half
        };
        #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
        let (limit_low, limit_high) = (limit.0 as u64, (limit.0 >> 64) as u64);
        Self {
            halves: [from(low, limit_low), from(high, limit_high)],
            long: self.long,
        }
    }

    /// The id of the identifier's bucket.
    #[inline]
    #[must_use]
    pub fn id(&self, identifier: &[u8]) -> Digest {
        let len = identifier.len() as u64;
        let (Some(first), Some(last)) = (identifier.first_chunk(), identifier.last_chunk()) else {
            return self.name(len, [tail_word(identifier)]);
        };
        if identifier.len() <= 16 {
            // Two loads of a fixed size are cheaper than a copy of variable length. The first and
            // the last eight bytes overlap if there are fewer than sixteen; together with the
            // length they determine every byte.
            return self.name(len, [first, last].map(|word| u64::from_le_bytes(*word)));
        }
        self.id_of_longer(identifier)
    }

    fn id_of_longer(&self, identifier: &[u8]) -> Digest {
        let len = identifier.len() as u64;
        match (identifier.first_chunk(), identifier.last_chunk()) {
            (Some(first), Some(last)) if identifier.len() <= SHORT_MAX => {
                let [a, b] = halves(u128::from_le_bytes(*first));
                let [c, d] = halves(u128::from_le_bytes(*last));
                self.name(len, [a, b, c, d])
            }
            _ => self.name(len, halves(self.long.finish(identifier))),
        }
    }

    #[inline]
    fn name<const N: usize>(&self, len: u64, words: [u64; N]) -> Digest {
        let [low, high] = self
            .halves
            .each_ref()
            .map(|half| half.sum(len, words) >> 64);
        Digest(high << 64 | low)
    }
}

impl Half {
    /// Sums the products. The length needs no secret factor: two names that differ in nothing else
    /// differ by it.
    #[inline]
    fn sum<const N: usize>(&self, len: u64, words: [u64; N]) -> u128 {
        let begun = self.start.wrapping_add(u128::from(len) << 64);
        let products = words.iter().zip(&self.words);
        products.fold(begun, |sum, (word, secret)| {
            sum.wrapping_add(secret.wrapping_mul(u128::from(*word)))
        })
    }
}

#[expect(clippy::cast_possible_truncation, reason = "each is a half")]
const fn halves(whole: u128) -> [u64; 2] {
    [whole as u64, (whole >> 64) as u64]
}

impl fmt::Debug for Namer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Namer").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Keyring;
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn namer(limit: &str) -> Namer {
        let ring = Keyring::new(&[7; 32], None).unwrap();
        ring.namer(ring.named(limit))
    }

    /// Secrets so simple that a name can be computed by hand: every factor of the
    /// lower half is 2⁶⁴ times its place, so that the half is the sum of place × word.
    fn countable() -> Namer {
        Namer::new(|index| (u128::from(index) << 64).to_le_bytes())
    }

    #[test]
    fn a_name_is_the_sum_of_its_words_each_times_its_secret() {
        let low = |name: &[u8]| halves(countable().id(name).0)[0];
        assert_eq!(low(b""), 0);
        assert_eq!(low(&[5]), 1 + 5);
        assert_eq!(
            low(&[1, 0, 0, 0, 0, 0, 0, 2, 0]),
            9 + (1 + (2 << 56)) + 2 * (2 << 48)
        );
        let mut long = [0; 32];
        [long[0], long[8], long[16], long[24]] = [1, 10, 100, 200];
        assert_eq!(low(&long), 32 + 1 + 2 * 10 + 3 * 100 + 4 * 200);
    }

    #[test]
    fn identifiers_of_every_length_have_names_of_their_own() {
        let namer = namer("a");
        let mut seen = HashSet::new();
        for len in 0..200 {
            for fill in [0_u8, 1, 0x80, 0xff] {
                let mut name = vec![fill; len];
                assert!(seen.insert(namer.id(&name)) || len == 0, "{len} of {fill}");
                for at in 0..len {
                    name[at] ^= 0x10;
                    assert!(
                        seen.insert(namer.id(&name)),
                        "{len} of {fill}, {at} changed"
                    );
                    name[at] ^= 0x10;
                }
            }
        }
    }

    #[test]
    fn another_secret_changes_every_bit_half_of_the_time() {
        let count = 4_000;
        let other = Keyring::new(&[8; 32], None).unwrap();
        let other = other.namer(other.named("a"));
        let mut ones = [0; 128];
        for number in 0..count {
            let name = format!("{number:016}");
            let changed = namer("a").id(name.as_bytes()).0 ^ other.id(name.as_bytes()).0;
            for (bit, ones) in ones.iter_mut().enumerate() {
                *ones += changed >> bit & 1;
            }
        }
        for (bit, ones) in ones.iter().enumerate() {
            assert!(
                (1_700..2_300).contains(ones),
                "bit {bit}: {ones} of {count}"
            );
        }
    }

    #[test]
    fn limits_name_differently() {
        assert_ne!(namer("a").id(b"x"), namer("b").id(b"x"));
    }

    #[test]
    fn nothing_of_the_secret_is_printed() {
        assert!(!format!("{:?}", namer("a")).contains(|c: char| c.is_ascii_digit()));
    }

    proptest! {
        #[test]
        fn names_are_injective(
            a in proptest::collection::vec(0_u8..2, 0..40),
            b in proptest::collection::vec(0_u8..2, 0..40),
        ) {
            let namer = namer("a");
            prop_assert_eq!(a == b, namer.id(&a) == namer.id(&b));
        }
    }
}
