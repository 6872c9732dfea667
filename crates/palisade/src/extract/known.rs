//! Tokens whose signature was found good, by digest.
//!
//! A signature costs far more than a digest, and an address that has used up its guesses
//! is no longer believed about new tokens: its neighbours behind the same address keep
//! theirs. Times are judged anew on every use. The keys of a verifier never change, so
//! neither does what it has found.

use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::RwLock;
use sha2::{Digest, Sha256};

use super::jwt::{Claims, Times};

/// Most tokens of a generation; two generations are kept.
const GENERATION_MAX: usize = 16 * 1024;

/// What a good token says.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) claims: Claims,
    pub(super) times: Times,
}

pub(super) type TokenDigest = [u8; 32];

pub(super) fn digest(token: &str) -> TokenDigest {
    Sha256::digest(token.as_bytes()).into()
}

/// Tokens that were used lately, in two generations: what was not used while the younger
/// one filled up goes with the older one.
#[derive(Default)]
pub(super) struct KnownTokens(RwLock<Generations>);

#[derive(Default)]
struct Generations {
    young: HashMap<TokenDigest, Arc<Accepted>>,
    old: HashMap<TokenDigest, Arc<Accepted>>,
}

impl KnownTokens {
    pub(super) fn get(&self, digest: &TokenDigest) -> Option<Arc<Accepted>> {
        let (found, is_young) = {
            let known = self.0.read();
            let young = known.young.get(digest);
            let found = young.or_else(|| known.old.get(digest)).cloned();
            (found, young.is_some())
        };
        if let Some(found) = found.as_ref().filter(|_| !is_young) {
            self.insert(*digest, Arc::clone(found));
        }
        found
    }

    pub(super) fn insert(&self, digest: TokenDigest, accepted: Arc<Accepted>) {
        let mut known = self.0.write();
        if known.young.len() >= GENERATION_MAX {
            known.old = std::mem::take(&mut known.young);
        }
        known.young.insert(digest, accepted);
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        let known = self.0.read();
        known.young.len() + known.old.len()
    }
}

impl std::fmt::Debug for KnownTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KnownTokens(…)")
    }
}

#[cfg(test)]
mod tests {
    use palisade_core::Id;

    use super::*;

    fn accepted() -> Arc<Accepted> {
        let claims = Claims {
            user: None,
            org: None,
            token: Id::new("token", "t").unwrap(),
            scopes: Vec::new(),
            roles: Vec::new(),
        };
        let times = Times::default();
        Arc::new(Accepted { claims, times })
    }

    #[test]
    fn i_cost_known_tokens_are_bounded_and_used_ones_stay() {
        let known = KnownTokens::default();
        let used = digest("used");
        known.insert(used, accepted());
        for number in 0..3 * GENERATION_MAX {
            known.insert(digest(&number.to_string()), accepted());
            if number % 1024 == 0 {
                assert!(known.get(&used).is_some(), "{number}");
            }
        }
        assert!(known.len() <= 2 * GENERATION_MAX);
        assert!(known.get(&digest("0")).is_none());
    }
}
