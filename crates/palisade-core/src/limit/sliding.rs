//! Sliding log and sliding wheel: a queue of (instant, hits), oldest first.

use std::collections::VecDeque;

use super::{BucketSpec, COUNT_MAX, CountsFrom, State};
use crate::time::Micros;

/// Hits of a sliding counter, oldest first. Hits of one instant (or one slot of the
/// wheel) share an entry, so the queue is never longer than the limit, nor than 65
/// entries on a wheel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    entries: VecDeque<(Micros, u64)>,
    total: u64,
}

/// The hits in `state`; replaces a state of another algorithm by empty hits.
pub(super) fn of(state: &mut State) -> &mut Hits {
    if !matches!(state, State::Hits(_)) {
        *state = State::Hits(Hits::default());
    }
    match state {
        State::Hits(hits) => hits,
        _ => unreachable!("just made"),
    }
}

impl Hits {
    /// Rebuilds hits from stored entries. An instant that is out of order is raised to that of its
    /// predecessor: a hit may be held longer, never shorter.
    #[must_use]
    pub fn from_entries(stored: impl IntoIterator<Item = (Micros, u64)>) -> Self {
        let mut hits = Self::default();
        for (at, count) in stored {
            hits.append(at, count);
        }
        hits
    }

    /// The entries, oldest first.
    pub fn entries(&self) -> impl Iterator<Item = (Micros, u64)> + '_ {
        self.entries.iter().copied()
    }

    /// Number of entries held; bounds the memory.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn newest(&self) -> Micros {
        self.entries.back().map_or(Micros(0), |(at, _)| *at)
    }

    pub(super) fn push(&mut self, spec: &BucketSpec, now: Micros, (from, cost): (CountsFrom, u64)) {
        self.prune(spec, now);
        let at = spec.hit_instant(now, from);
        match from {
            CountsFrom::Now => self.append(at, cost),
            CountsFrom::Ago(_) | CountsFrom::Instant(_) => self.insert(at, cost),
        }
    }

    /// Puts hits in their place among the others.
    fn insert(&mut self, at: Micros, cost: u64) {
        let cost = cost.min(COUNT_MAX.saturating_sub(self.total));
        let place = self.entries.partition_point(|(kept, _)| *kept < at);
        match self.entries.get_mut(place) {
            Some((kept, count)) if *kept == at => *count += cost,
            _ if cost > 0 => self.entries.insert(place, (at, cost)),
            _ => {}
        }
        self.total += cost;
    }

    fn append(&mut self, at: Micros, cost: u64) {
        let cost = cost.min(COUNT_MAX.saturating_sub(self.total));
        if cost == 0 {
            return;
        }
        self.total += cost;
        // A clock that has stepped back must not put a hit before an older one.
        let at = at.max(self.newest());
        match self.entries.back_mut() {
            Some((last, count)) if *last == at => *count += cost,
            _ => self.entries.push_back((at, cost)),
        }
    }

    /// Moves hits that are later than `latest` to it.
    pub(super) fn pull_to(&mut self, latest: Micros) {
        if self.newest() > latest {
            let pulled = |(at, count): (Micros, u64)| (at.min(latest), count);
            *self = Self::from_entries(self.entries().map(pulled));
        }
    }

    fn prune(&mut self, spec: &BucketSpec, now: Micros) {
        while let Some((at, count)) = self.entries.front() {
            if is_live(spec, *at, now) {
                break;
            }
            self.total -= *count;
            self.entries.pop_front();
        }
    }

    pub(super) fn pop_oldest(&mut self, spec: &BucketSpec, now: Micros, cost: u64) {
        self.prune(spec, now);
        let mut left = cost;
        while left > 0
            && let Some((_, count)) = self.entries.front_mut()
        {
            let gone = left.min(*count);
            *count -= gone;
            left -= gone;
            self.total -= gone;
            if *count == 0 {
                self.entries.pop_front();
            }
        }
    }

    /// Removes hits that were put in at `at` and still count. They are kept at an instant between
    /// `at` and the end of its slot (a log that has become a wheel holds instants within a slot).
    /// The oldest such entry is never younger than theirs, and so the hits that stay are never
    /// older than those really used.
    pub(super) fn remove_taken(&mut self, spec: &BucketSpec, at: Micros, now: Micros, cost: u64) {
        self.prune(spec, now);
        if !is_live(spec, at, now) {
            return;
        }
        let own = at..=spec.slot_instant(at);
        let first = self.entries.partition_point(|(kept, _)| kept < own.start());
        let Some((kept, _)) = self.entries.get(first).copied() else {
            return;
        };
        let mut left = if own.contains(&kept) { cost } else { 0 };
        for (_, count) in self.entries.range_mut(first..).take_while(|e| e.0 == kept) {
            let gone = left.min(*count);
            *count -= gone;
            left -= gone;
            self.total -= gone;
        }
        self.entries.retain(|(_, count)| *count > 0);
    }

    fn expired(&self, spec: &BucketSpec, now: Micros) -> u64 {
        self.entries
            .iter()
            .take_while(|(at, _)| !is_live(spec, *at, now))
            .map(|(_, count)| *count)
            .sum()
    }

    pub(super) fn used(&self, spec: &BucketSpec, now: Micros) -> (u64, Micros) {
        let used = self.total - self.expired(spec, now);
        let reset = if used == 0 {
            now
        } else {
            self.newest().plus(spec.window_us())
        };
        (used, reset)
    }

    pub(super) fn fits(&self, spec: &BucketSpec, now: Micros, cost: u64) -> Option<Micros> {
        // No underflow: costs above the capacity were refused before.
        let room = spec.capacity() - cost;
        // With the expired hits: if there is room even so, no entry need be looked at.
        let mut held = self.total;
        if held <= room {
            return None;
        }
        for (at, count) in &self.entries {
            held -= *count;
            let free_at = at.plus(spec.window_us());
            if held <= room {
                return (free_at > now).then_some(free_at);
            }
        }
        None
    }
}

fn is_live(spec: &BucketSpec, at: Micros, now: Micros) -> bool {
    at.plus(spec.window_us()) > now
}
