//! Difficulty of a proof of work, as an expected number of hashes.

use crate::decision::Level;

/// Expected hashes of a challenge of level 1 unless the policy says otherwise: about 0.3 s in a
/// phone's browser.
pub const DIFFICULTY_DEFAULT: u32 = 50_000;

/// Fewest expected hashes that a policy may ask for.
pub const DIFFICULTY_MIN: u32 = 1_000;

/// Most expected hashes of any challenge.
///
/// A slow phone without WebCrypto computes about 80,000 hashes a second, and the worst case is
/// twice the expected number: 5 s.
pub const DIFFICULTY_MAX: u32 = 200_000;

/// Expected hashes at a level: twice as many for each level above the first, up to
/// [`DIFFICULTY_MAX`].
#[must_use]
pub fn difficulty_at(base: u32, level: Option<Level>) -> u32 {
    let doublings = u32::from(level.map_or(0, |level| level.number() - 1));
    let harder = u64::from(base) << doublings;
    let bounded = harder.clamp(u64::from(DIFFICULTY_MIN), u64::from(DIFFICULTY_MAX));
    u32::try_from(bounded).unwrap_or(DIFFICULTY_MAX)
}
