//! Seals of what callers carry for the service: receipts, reservations, device cookies, passed
//! challenges.

use hmac::Mac;
use subtle::ConstantTimeEq;

use super::{DigestPair, Domain, Keyring};
use crate::hex;

/// Bytes of a seal.
pub const SEAL_BYTES: usize = 16;

/// A seal that only the holder of the secret can make. It is compared in constant time, so it has
/// no `==`:
///
/// ```compile_fail
/// # use palisade_core::key::{Domain, Keyring};
/// let keyring = Keyring::new(&[7; 32], None)?;
/// let seal = keyring.seal(Domain::Receipt, &[b"said"]);
/// let _ = seal == seal;
/// # Ok::<(), palisade_core::key::SecretTooShort>(())
/// ```
pub struct Seal(DigestPair);

impl Seal {
    /// The seal under the current secret, as it goes with what is sealed.
    #[must_use]
    pub const fn to_bytes(&self) -> [u8; SEAL_BYTES] {
        self.0.current.to_bytes()
    }

    /// Whether this is the seal that a caller shows, under the current secret or the one before.
    #[must_use]
    pub fn is(&self, shown: &[u8; SEAL_BYTES]) -> bool {
        let same = |seal: super::Digest| bool::from(seal.to_bytes().ct_eq(shown));
        same(self.0.current) || self.0.previous.is_some_and(same)
    }
}

impl Keyring {
    /// The seal of `parts` in `domain`.
    #[must_use]
    pub fn seal(&self, domain: Domain, parts: &[&[u8]]) -> Seal {
        Seal(self.hmac(domain, parts))
    }
}

/// The signature of a proof of work: a whole HMAC-SHA-256 over the challenge and nothing else, as
/// ALTCHA's libraries make it. It is compared in constant time.
pub struct ChallengeSignature {
    current: [u8; 32],
    previous: Option<[u8; 32]>,
}

impl ChallengeSignature {
    /// The signature under the current secret, in hexadecimal.
    #[must_use]
    pub fn to_hex(&self) -> String {
        hex::of_bytes(&self.current)
    }

    /// Whether this is the signature that a caller shows, under the current secret or the one
    /// before.
    #[must_use]
    pub fn is_hex(&self, shown: &str) -> bool {
        let same =
            |one: &[u8; 32]| bool::from(hex::of_bytes(one).as_bytes().ct_eq(shown.as_bytes()));
        same(&self.current) || self.previous.as_ref().is_some_and(same)
    }
}

impl Keyring {
    /// The signature of a proof of work's `challenge`.
    #[must_use]
    pub fn challenge_signature(&self, challenge: &str) -> ChallengeSignature {
        let sign = |keyring: &Self| {
            let mut mac = keyring.current.challenge.clone();
            mac.update(challenge.as_bytes());
            mac.finalize().into_bytes().into()
        };
        ChallengeSignature {
            current: sign(self),
            previous: self.previous.as_deref().map(sign),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b_sealed_a_seal_is_that_of_its_parts_its_domain_and_either_secret() {
        let old = Keyring::new(&[1; 32], None).unwrap();
        let both = Keyring::new(&[2; 32], Some(&[1; 32])).unwrap();
        let new = Keyring::new(&[2; 32], None).unwrap();
        let shown = old.seal(Domain::Receipt, &[b"said"]).to_bytes();
        assert!(old.seal(Domain::Receipt, &[b"said"]).is(&shown));
        assert!(both.seal(Domain::Receipt, &[b"said"]).is(&shown));
        assert!(!new.seal(Domain::Receipt, &[b"said"]).is(&shown));
        assert!(!old.seal(Domain::Receipt, &[b"sa", b"id"]).is(&shown));
        assert!(!old.seal(Domain::DeviceCookie, &[b"said"]).is(&shown));
        for bit in 0..128 {
            let mut changed = shown;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!old.seal(Domain::Receipt, &[b"said"]).is(&changed), "{bit}");
        }
    }
}
