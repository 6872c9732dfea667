//! Remaining quota of the busiest organisations. The number of series is bounded, and labels are
//! the first digits of digests.

use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashMap;
use palisade_core::decision::LimitReading;
use palisade_core::facts::RequestFacts;
use palisade_core::key::{Digest, Keyring, SegmentKind};
use parking_lot::RwLock;

use crate::observe::who::log_digest;

/// Hexadecimal digits of a label: enough to distinguish a few thousand.
const LABEL_DIGITS: usize = 16;

/// One of this many requests by unknown organisations is considered for a place, so that a crowd of
/// them does not make every request search for the least busy organisation.
const STRANGERS_PER_LOOK: u64 = 64;

#[derive(Debug)]
pub(super) struct Orgs {
    orgs_max: usize,
    known: RwLock<HashMap<Digest, Org>>,
    strangers: AtomicU64,
}

#[derive(Debug)]
struct Org {
    label: Box<str>,
    remaining: AtomicU64,
    hits: AtomicU64,
}

impl Orgs {
    pub(super) fn new(orgs_max: usize) -> Self {
        Self {
            orgs_max,
            known: RwLock::default(),
            strangers: AtomicU64::new(0),
        }
    }

    pub(super) fn saw(&self, keyring: &Keyring, facts: &RequestFacts, limits: &[LimitReading]) {
        let Some(org) = facts.org.as_ref().filter(|_| self.orgs_max > 0) else {
            return;
        };
        let of_org = limits.iter().filter(|reading| reading.scope == "org");
        let Some(longest) = of_org.max_by_key(|reading| reading.window_seconds) else {
            return;
        };
        let key = keyring.segment(SegmentKind::Org, &[org.as_bytes()]).digest;
        if let Some(org) = self.known.read().get(&key) {
            org.remaining.store(longest.remaining, Ordering::Relaxed);
            org.hits.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.admit(key, longest.remaining, || {
            let mut label = log_digest(keyring, "org", org.as_bytes()).hex();
            label.truncate(LABEL_DIGITS);
            label
        });
    }

    fn admit(&self, key: Digest, remaining: u64, label: impl FnOnce() -> String) {
        let strangers = self.strangers.fetch_add(1, Ordering::Relaxed);
        let full = self.known.read().len() >= self.orgs_max;
        if full && !strangers.is_multiple_of(STRANGERS_PER_LOOK) {
            return;
        }
        let mut known = self.known.write();
        // Counted again, because another thread may have added one before this one got the lock.
        if known.len() >= self.orgs_max {
            leave_least_busy(&mut known);
        }
        known.insert(
            key,
            Org {
                label: label().into(),
                remaining: AtomicU64::new(remaining),
                hits: AtomicU64::new(1),
            },
        );
    }

    /// Returns label and remaining quota of every known organisation.
    pub(super) fn read(&self) -> Vec<(String, u64)> {
        let known = self.known.read();
        let mut all: Vec<(String, u64)> = known
            .values()
            .map(|org| (org.label.to_string(), org.remaining.load(Ordering::Relaxed)))
            .collect();
        all.sort_unstable();
        all
    }
}

/// Removes the least busy organisation, and halves the counts of the others so that the past fades.
fn leave_least_busy(known: &mut HashMap<Digest, Org>) {
    let hits = |org: &Org| org.hits.load(Ordering::Relaxed);
    let least = known.iter().min_by_key(|(_, org)| hits(org));
    if let Some(key) = least.map(|(key, _)| *key) {
        known.remove(&key);
    }
    for org in known.values() {
        org.hits.store(hits(org) / 2, Ordering::Relaxed);
    }
}
