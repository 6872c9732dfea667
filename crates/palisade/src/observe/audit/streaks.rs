//! Denials in a row, per authenticated actor.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::HashMap;
use palisade_core::facts::RequestFacts;
use palisade_core::key::{Digest, Keyring, SegmentKind};
use parking_lot::Mutex;

/// Most actors that are counted at once.
const ACTORS_MAX: usize = 10_000;

pub(super) struct Streaks {
    threshold: NonZeroU32,
    running: Mutex<HashMap<Digest, u32>>,
    /// Number of actors with a streak: lets an allowed request skip the lock while it is 0.
    followed: AtomicUsize,
}

impl Streaks {
    pub(super) fn new(threshold: NonZeroU32) -> Self {
        Self {
            threshold,
            running: Mutex::default(),
            followed: AtomicUsize::new(0),
        }
    }

    /// Counts a denial. Returns the length of the streak if it is to be reported: when it reaches
    /// the threshold, and whenever it has doubled since. A client that keeps asking for days would
    /// otherwise fill the audit.
    pub(super) fn denied(&self, keyring: &Keyring, facts: &RequestFacts) -> Option<u32> {
        let actor = actor(keyring, facts)?;
        let mut running = self.running.lock();
        if running.len() >= ACTORS_MAX
            && !running.contains_key(&actor)
            && let Some(other) = running.keys().next().copied()
        {
            running.remove(&other);
        }
        let streak = running.entry(actor).or_default();
        *streak = streak.saturating_add(1);
        let streak = *streak;
        self.followed.store(running.len(), Ordering::Relaxed);
        let (times, threshold) = (streak / self.threshold, self.threshold.get());
        (times.is_power_of_two() && streak.is_multiple_of(threshold)).then_some(streak)
    }

    /// Ends an actor's streak, because a request was allowed.
    pub(super) fn allowed(&self, keyring: &Keyring, facts: &RequestFacts) {
        if self.followed.load(Ordering::Relaxed) == 0 {
            return;
        }
        if let Some(actor) = actor(keyring, facts) {
            let mut running = self.running.lock();
            running.remove(&actor);
            self.followed.store(running.len(), Ordering::Relaxed);
        }
    }
}

/// Returns the digest of the authenticated actor: a user, token or API key, within its organisation
/// if that is known.
fn actor(keyring: &Keyring, facts: &RequestFacts) -> Option<Digest> {
    let (kind, id) = [
        (SegmentKind::User, facts.user.as_ref()),
        (SegmentKind::Token, facts.token.as_ref()),
        (SegmentKind::ApiKey, facts.api_key.as_ref()),
    ]
    .into_iter()
    .find_map(|(kind, id)| Some((kind, id?)))?;
    let org = facts.org.as_ref().map_or(&[][..], |org| org.as_bytes());
    Some(keyring.segment(kind, &[org, id.as_bytes()]).digest)
}
