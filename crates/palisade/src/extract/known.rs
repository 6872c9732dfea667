//! Cache of tokens whose signature has been verified, by digest.
//!
//! A verification costs far more than a digest. And while an address that has used up its guesses
//! is not believed about new tokens, cached tokens of other clients behind that address stay valid.
//! Times are checked on every use. The keys of a verifier never change, so a verdict on a signature
//! stays true.
//!
//! A token is looked up by a short hash, and its digest is computed only when there is an entry to
//! compare it with: a flood of guesses pays for no digest either (I-COST).

use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashMap};
use parking_lot::RwLock;
use sha2::{Digest, Sha256};

use super::jwt::{Claims, Times};

/// Most tokens of a generation; two generations are kept.
const GENERATION_MAX: usize = 16 * 1024;

/// Claims and times of an accepted token.
#[derive(Debug)]
pub(super) struct AcceptedToken {
    pub(super) claims: Claims,
    pub(super) times: Times,
}

/// An accepted token: only its digest, its claims and its times are kept.
#[derive(Debug)]
struct KnownToken {
    digest: [u8; 32],
    accepted: AcceptedToken,
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// Tokens that were used recently, in two generations. When the younger one is full, it becomes the
/// older one, and tokens that were not used in the meantime are dropped.
#[derive(Default)]
pub(super) struct KnownTokens {
    /// Hashes tokens with a random seed, so that nobody can choose tokens that collide.
    places: DefaultHashBuilder,
    generations: RwLock<Generations>,
}

#[derive(Default)]
struct Generations {
    young: HashMap<u64, Arc<KnownToken>>,
    old: HashMap<u64, Arc<KnownToken>>,
}

impl Generations {
    fn insert(&mut self, place: u64, known: Arc<KnownToken>) {
        if self.young.len() >= GENERATION_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(place, known);
    }
}

impl KnownTokens {
    /// Calls `read` with the claims and times of a token, if the token was accepted before.
    pub(super) fn get<T>(&self, token: &str, read: impl FnOnce(&AcceptedToken) -> T) -> Option<T> {
        let place = self.places.hash_one(token);
        // The lock is released before the digest is computed: that takes longer than the lookup.
        let (found, is_young) = {
            let known = self.generations.read();
            let young = known.young.get(&place);
            let found = young.or_else(|| known.old.get(&place)).cloned();
            (found?, young.is_some())
        };
        if found.digest != digest(token) {
            // Another token has the same short hash.
            return None;
        }
        let read = read(&found.accepted);
        // A token that is in use moves to the young generation.
        if !is_young {
            self.generations.write().insert(place, found);
        }
        Some(read)
    }

    pub(super) fn insert(&self, token: &str, accepted: AcceptedToken) {
        let known = Arc::new(KnownToken {
            digest: digest(token),
            accepted,
        });
        let place = self.places.hash_one(token);
        self.generations.write().insert(place, known);
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        let known = self.generations.read();
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

    fn accepted() -> AcceptedToken {
        let claims = Claims {
            user: None,
            org: None,
            token: Id::new("token", "t").unwrap(),
            scopes: Vec::new(),
            roles: Vec::new(),
        };
        let times = Times::default();
        AcceptedToken { claims, times }
    }

    fn knows(known: &KnownTokens, token: &str) -> bool {
        known.get(token, |_| ()).is_some()
    }

    #[test]
    fn i_cost_known_tokens_are_bounded_and_used_ones_stay() {
        let known = KnownTokens::default();
        known.insert("used", accepted());
        for number in 0..3 * GENERATION_MAX {
            known.insert(&number.to_string(), accepted());
            if number % 1024 == 0 {
                assert!(knows(&known, "used"), "{number}");
            }
        }
        assert!(known.len() <= 2 * GENERATION_MAX);
        assert!(!knows(&known, "0"));
    }

    #[test]
    fn i_jwt_a_token_in_the_place_of_a_good_one_is_not_taken_for_it() {
        let known = KnownTokens::default();
        let good = Arc::new(KnownToken {
            digest: digest("good"),
            accepted: accepted(),
        });
        let place = known.places.hash_one("guessed");
        known.generations.write().insert(place, good);
        assert!(!knows(&known, "guessed"));
        assert!(!knows(&known, "good"));
    }
}
