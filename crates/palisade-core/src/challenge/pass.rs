//! Passes: proof of a passed challenge, sealed with the secret and carried by its holder.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use super::{BoundTo, ChallengeBinding, ChallengeRefusal, Fit};
use crate::key::{Digest, Domain, Keyring, Segment, SegmentKind};
use crate::limit::{Algorithm, BucketSpec, Window};
use crate::policy::{Dimension, Family, Limit, LimitDef};
use crate::receipt::{Reader, number};
use crate::time::Micros;

/// Longest sealed pass, in bytes.
pub const PASS_BYTES_MAX: usize = 96;

/// Most uses of a pass.
pub const PASS_USES_MAX: u16 = 250;

/// First byte of a pass: the version of its encoding.
const VERSION: u8 = 1;

/// Time for which uses are remembered: 18 minutes. A store may start shorter windows empty after a
/// crash, and no pass or puzzle lives longer.
const REMEMBERED_US: u64 = 1 << 30;

/// A text that is no pass of ours, or was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not a pass that was issued here, or was changed")]
pub struct PassError;

/// The carrier of a pass. One kind does not open as the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PassKind {
    /// A `challenge_token` of the decision API.
    Token,
    /// The cookie of a browser.
    Cookie,
}

impl PassKind {
    const fn domain(self) -> Domain {
        match self {
            Self::Token => Domain::ChallengeToken,
            Self::Cookie => Domain::ChallengePass,
        }
    }
}

/// Proof of a passed challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// Name of the challenge that was passed; the uses are counted under it.
    pub id: Digest,
    /// Instant after which the pass is late.
    pub expires: Micros,
    /// The caller that passed the challenge.
    pub bound: BoundTo,
    /// Attempts that the pass frees.
    pub uses: u16,
    /// Whether the pass has followed its holder to the other address family: it does so once.
    pub has_moved: bool,
}

impl Pass {
    /// Seals the pass into bytes that only the holder of the secret can make.
    #[must_use]
    pub fn seal(&self, keyring: &Keyring, kind: PassKind) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend_from_slice(&self.id.to_bytes());
        out.extend_from_slice(&self.bound.subject.to_be_bytes());
        out.extend_from_slice(&self.bound.prefix.to_be_bytes());
        out.push(u8::from(self.bound.is_v6) | u8::from(self.has_moved) << 1);
        number(&mut out, u64::from(self.uses));
        number(&mut out, self.expires.0);
        let seal = keyring.seal(kind.domain(), &[&out]);
        out.extend_from_slice(&seal.to_bytes());
        out
    }

    /// Opens a sealed pass.
    ///
    /// # Errors
    /// It was not sealed as this kind with one of the keyring's secrets, or was changed.
    pub fn open(keyring: &Keyring, kind: PassKind, bytes: &[u8]) -> Result<Self, PassError> {
        let (body, seal) = bytes
            .split_last_chunk()
            .filter(|_| bytes.len() <= PASS_BYTES_MAX)
            .ok_or(PassError)?;
        if !keyring.seal(kind.domain(), &[body]).is(seal) {
            return Err(PassError);
        }
        Self::read(&mut Reader(body)).ok_or(PassError)
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let version = reader.byte()?;
        let id = reader.digest()?;
        let both = reader.digest()?.0;
        let flags = reader.byte()?;
        let uses = u16::try_from(reader.number()?).ok()?;
        let expires = Micros(reader.number()?);
        let bound = BoundTo {
            subject: u64::try_from(both >> 64).ok()?,
            prefix: u64::try_from(both & u128::from(u64::MAX)).ok()?,
            is_v6: flags & 1 != 0,
        };
        (version == VERSION && reader.0.is_empty()).then_some(Self {
            id,
            expires,
            bound,
            uses,
            has_moved: flags & 2 != 0,
        })
    }

    /// Whether the pass is good for this caller now, uses aside. A pass that has to follow its
    /// holder to the other address family fits as [`Fit::OtherFamily`].
    ///
    /// # Errors
    /// Late or foreign.
    pub fn fit(&self, binding: &ChallengeBinding, now: Micros) -> Result<Fit, ChallengeRefusal> {
        if now > self.expires {
            return Err(ChallengeRefusal::Late);
        }
        match binding.fit(&self.bound) {
            Fit::Foreign => Err(ChallengeRefusal::Foreign),
            Fit::OtherFamily if self.has_moved => Err(ChallengeRefusal::Foreign),
            fit => Ok(fit),
        }
    }

    /// This pass for its holder's address of the other family.
    #[must_use]
    pub fn moved(&self, binding: &ChallengeBinding) -> Self {
        Self {
            bound: binding.bound_to(),
            has_moved: true,
            ..*self
        }
    }

    /// The limit whose bucket counts the uses of passes with as many uses as this one.
    #[must_use]
    pub fn uses_limit(&self) -> Option<Limit> {
        marks("challenge-uses", u32::from(self.uses.min(PASS_USES_MAX)))
    }
}

/// The limit of a bucket that holds one unit, which marks a puzzle, or the move of a pass, as used.
#[must_use]
pub fn used_once(name: &'static str) -> Option<Limit> {
    marks(name, 1)
}

/// The segment that names a challenge in the bucket of its uses. It is made without a secret, so
/// that it stays the same when secrets rotate; it identifies nobody.
#[must_use]
pub const fn segment_of(id: Digest) -> Segment {
    Segment {
        kind: SegmentKind::Descriptor,
        digest: id,
    }
}

fn marks(name: &str, most: u32) -> Option<Limit> {
    let window = Window::Span(REMEMBERED_US);
    let most = NonZeroU32::new(most)?;
    let spec = BucketSpec::new(Algorithm::SlidingLog, most, window, None);
    let by = vec![Dimension::Descriptor("challenge".into())];
    let mut def = LimitDef::new(name, by, spec.ok()?);
    // Durable: a crash must not make what was used good again.
    def.family = Family::Quota;
    Some(Limit::bind(def))
}
