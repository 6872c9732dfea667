//! The built-in proof of work, in ALTCHA's format (C-POW): find the number that, written after the
//! salt, has the given SHA-256.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{BoundTo, ChallengeBinding, ChallengeRefusal, Fit};
use crate::hex;
use crate::key::{Digest, Keyring};
use crate::time::{Micros, SECOND};

/// Name of the hash function in ALTCHA's format.
pub const ALGORITHM: &str = "SHA-256";

/// Random bytes at the start of a salt.
pub const NONCE_BYTES: usize = 12;

/// Longest salt that is read, in bytes: ours are shorter.
const SALT_BYTES_MAX: usize = 128;

/// A proof of work to be solved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Puzzle {
    /// Always `SHA-256`.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub algorithm: Box<str>,
    /// SHA-256 of the salt followed by the number to be found, in hexadecimal.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub challenge: Box<str>,
    /// The salt, with the expiry and the caller that the challenge is bound to.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub salt: Box<str>,
    /// Largest number that has to be tried.
    pub maxnumber: u32,
    /// Our signature of `challenge`: HMAC-SHA-256 in hexadecimal.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub signature: Box<str>,
}

/// The parts of a puzzle that its issuer chooses.
#[derive(Clone, Copy, Debug)]
pub struct PuzzleTerms {
    /// Random bytes: no two puzzles are alike.
    pub nonce: [u8; NONCE_BYTES],
    /// Random number, of which the one to be found is made.
    pub random: u32,
    /// Hashes that a solver is expected to need.
    pub difficulty: u32,
    /// Instant after which a solution is late.
    pub expires: Micros,
}

/// A solution, as ALTCHA's widget and libraries send it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Solution {
    /// Name of the hash function.
    pub algorithm: Box<str>,
    /// [`Puzzle::challenge`].
    pub challenge: Box<str>,
    /// The number that was found.
    pub number: u64,
    /// [`Puzzle::salt`].
    pub salt: Box<str>,
    /// [`Puzzle::signature`].
    pub signature: Box<str>,
}

/// A puzzle that was solved by the caller that it was issued to. Whether it was used before is for
/// the store to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SolvedPuzzle {
    /// Names the puzzle, whatever the secret.
    pub id: Digest,
    /// Whether the caller has changed its address family since.
    pub has_moved: bool,
}

impl Puzzle {
    /// Issues a puzzle for one caller.
    #[must_use]
    pub fn issue(keyring: &Keyring, binding: &ChallengeBinding, terms: &PuzzleTerms) -> Self {
        let salt = Salt {
            nonce: terms.nonce,
            expires: terms.expires.unix_seconds_ceil(),
            bound: binding.bound_to(),
        };
        let salt = salt.write();
        // Uniform over 0..=2·difficulty: the mean number of tries is the difficulty.
        let maxnumber = terms.difficulty.saturating_mul(2).min(u32::MAX - 1);
        let challenge = hash(&salt, u64::from(terms.random % (maxnumber + 1)));
        Self {
            algorithm: ALGORITHM.into(),
            signature: keyring.challenge_signature(&challenge).to_hex().into(),
            challenge: challenge.into(),
            salt: salt.into(),
            maxnumber,
        }
    }

    /// Solves the puzzle as a client does; `None` if no number up to `maxnumber` does.
    #[must_use]
    pub fn solve(&self) -> Option<Solution> {
        let number = (0..=u64::from(self.maxnumber))
            .find(|number| hash(&self.salt, *number) == *self.challenge)?;
        Some(Solution {
            algorithm: self.algorithm.clone(),
            challenge: self.challenge.clone(),
            number,
            salt: self.salt.clone(),
            signature: self.signature.clone(),
        })
    }
}

impl Solution {
    /// Verifies everything that needs no store: the signature, the number, the time and the caller.
    ///
    /// # Errors
    /// Wrong, late or foreign, in this order.
    pub fn verify(
        &self,
        keyring: &Keyring,
        binding: &ChallengeBinding,
        now: Micros,
    ) -> Result<SolvedPuzzle, ChallengeRefusal> {
        let signature = keyring.challenge_signature(&self.challenge);
        let salt = Salt::read(&self.salt).filter(|_| *self.algorithm == *ALGORITHM);
        let salt = salt.ok_or(ChallengeRefusal::Wrong)?;
        if !signature.is_hex(&self.signature) || hash(&self.salt, self.number) != *self.challenge {
            return Err(ChallengeRefusal::Wrong);
        }
        if now > Micros(salt.expires.saturating_mul(SECOND)) {
            return Err(ChallengeRefusal::Late);
        }
        let has_moved = match binding.fit(&salt.bound) {
            Fit::Same => false,
            Fit::OtherFamily => true,
            Fit::Foreign => return Err(ChallengeRefusal::Foreign),
        };
        // Without a secret, so that a puzzle keeps its name when secrets rotate.
        let id = Digest::from_hex(self.challenge.get(..32).unwrap_or_default());
        let id = id.ok_or(ChallengeRefusal::Wrong)?;
        Ok(SolvedPuzzle { id, has_moved })
    }
}

/// A salt, read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Salt {
    nonce: [u8; NONCE_BYTES],
    /// Unix seconds.
    expires: u64,
    bound: BoundTo,
}

impl Salt {
    /// The salt as text. It ends with `&`: otherwise digits could be moved from the salt to the
    /// number, and a part of the salt be changed under the same signature.
    fn write(&self) -> String {
        let mut text = String::with_capacity(SALT_BYTES_MAX);
        for byte in self.nonce {
            hex::push_byte(&mut text, byte);
        }
        let BoundTo {
            subject,
            prefix,
            is_v6,
        } = self.bound;
        let family = if is_v6 { '6' } else { '4' };
        let both = u128::from(subject) << 64 | u128::from(prefix);
        text.push_str("?expires=");
        text.push_str(itoa::Buffer::new().format(self.expires));
        text.push_str("&bound=");
        text.push(family);
        hex::push(&mut text, both);
        text.push('&');
        text
    }

    /// Reads what [`Salt::write`] wrote, and no other spelling of it.
    fn read(text: &str) -> Option<Self> {
        let (nonce, rest) = text
            .split_once("?expires=")
            .filter(|_| text.len() <= SALT_BYTES_MAX)?;
        let (expires, rest) = rest.split_once("&bound=")?;
        let is_v6 = rest.starts_with('6');
        let both = Digest::from_hex(rest.get(1..33)?)?.0;
        let salt = Self {
            nonce: nonce_of(nonce)?,
            expires: expires.parse().ok()?,
            bound: BoundTo {
                subject: u64::try_from(both >> 64).ok()?,
                prefix: u64::try_from(both & u128::from(u64::MAX)).ok()?,
                is_v6,
            },
        };
        (salt.write() == text).then_some(salt)
    }
}

fn nonce_of(text: &str) -> Option<[u8; NONCE_BYTES]> {
    let mut nonce = [0; NONCE_BYTES];
    for (at, byte) in nonce.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(nonce)
}

/// SHA-256 of the salt and the number in decimal digits, in hexadecimal.
fn hash(salt: &str, number: u64) -> String {
    let mut hasher = Sha256::new();
    hasher.update(salt);
    hasher.update(itoa::Buffer::new().format(number));
    hex::of_bytes(&hasher.finalize())
}
