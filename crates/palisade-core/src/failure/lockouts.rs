//! F-BLOCKS for names: lockouts and required challenges that this node has seen stay in force while
//! the store cannot be asked, until their own end.

use std::collections::{BTreeMap, BTreeSet};

use super::modes::DegradedKeys;
use crate::decision::{Challenge, KeyKind, Outcome};
use crate::facts::Attempt;
use crate::guard::aggregate::Candidate;
use crate::key::Digest;
use crate::lockout::Standing;
use crate::rule::Rule;
use crate::time::{Micros, retry_after_seconds};

/// Most names kept per flow. Beyond that, the name whose refusals end first is dropped.
pub const LOCKOUTS_MAX: usize = 100_000;

/// The ends of the refusals of one name, by this node's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ends {
    lock: Micros,
    window: Micros,
    challenge: Option<(Challenge, Micros)>,
}

impl Ends {
    fn last(&self) -> Micros {
        let challenge = self.challenge.map_or(Micros(0), |(_, until)| until);
        self.lock.max(self.window).max(challenge)
    }
}

/// The locked-out names of one flow, bounded.
#[derive(Clone, Debug)]
pub struct LockoutCache {
    capacity: usize,
    names: BTreeMap<Digest, Ends>,
    by_end: BTreeSet<(Micros, Digest)>,
}

impl Default for LockoutCache {
    fn default() -> Self {
        Self::new(LOCKOUTS_MAX)
    }
}

impl LockoutCache {
    /// An empty cache for at most `capacity` names.
    #[must_use]
    pub const fn new(capacity: usize) -> Self {
        Self {
            capacity,
            names: BTreeMap::new(),
            by_end: BTreeSet::new(),
        }
    }

    /// Copies the refusals in force from a name's record. A name without refusals is forgotten.
    pub fn saw(&mut self, name: Digest, standing: &Standing, now: Micros) {
        self.expire(now);
        let challenge = standing.challenge;
        self.put(
            name,
            Ends {
                lock: now.plus(standing.lock_us),
                window: now.plus(standing.window_us),
                challenge: challenge.map(|(which, left_us)| (which, now.plus(left_us))),
            },
            now,
        );
    }

    /// The refusals that apply to this request.
    #[must_use]
    pub fn binding(&self, attempt: Attempt, keys: &DegradedKeys, now: Micros) -> Vec<Candidate> {
        let Some(ends) = self.ends(keys) else {
            return Vec::new();
        };
        // A challenge is required only of a check.
        let challenge = ends.challenge.filter(|_| attempt == Attempt::Check);
        let challenge_until = challenge.map_or(Micros(0), |(_, until)| until);
        let until = [
            (Rule::A_HARD, ends.lock),
            (Rule::A_WINDOW, ends.window),
            (Rule::A_CAPTCHA, challenge_until),
        ];
        let running = until.into_iter().filter(|(_, until)| *until > now);
        running
            .map(|(rule, until)| Candidate {
                rule,
                key: KeyKind::Lockout,
                outcome: Outcome::Deny,
                level: None,
                retry_after: match rule {
                    // Waiting does not help against a challenge: the wait is nominal.
                    Rule::A_CAPTCHA => 1,
                    _ => retry_after_seconds(until.since(now)),
                },
            })
            .collect()
    }

    /// The challenge that the request's name still has to pass.
    #[must_use]
    pub fn challenge(&self, keys: &DegradedKeys, now: Micros) -> Option<Challenge> {
        let (which, until) = self.ends(keys)?.challenge?;
        (now < until).then_some(which)
    }

    /// Withdraws the challenge of a name: it was passed.
    pub fn pass(&mut self, name: Digest, now: Micros) {
        if let Some(ends) = self.names.get(&name).copied() {
            let challenge = None;
            self.put(name, Ends { challenge, ..ends }, now);
        }
    }

    /// Forgets a name: an operator freed it.
    pub fn lift(&mut self, name: Digest) {
        if let Some(old) = self.names.remove(&name) {
            self.by_end.remove(&(old.last(), name));
        }
    }

    /// Forgets names without a refusal in force.
    pub fn expire(&mut self, now: Micros) {
        while let Some((end, name)) = self.by_end.first().copied()
            && end <= now
        {
            self.by_end.pop_first();
            self.names.remove(&name);
        }
    }

    /// Names kept now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// True if none is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    fn ends(&self, keys: &DegradedKeys) -> Option<&Ends> {
        self.names.get(&keys.lockout?)
    }

    fn put(&mut self, name: Digest, ends: Ends, now: Micros) {
        // Removed first, because `by_end` has the name under its old end.
        self.lift(name);
        if ends.last() <= now {
            return;
        }
        self.names.insert(name, ends);
        self.by_end.insert((ends.last(), name));
        if self.names.len() > self.capacity
            && let Some((_, first)) = self.by_end.pop_first()
        {
            self.names.remove(&first);
        }
    }
}
