//! A bounded sketch of the most frequent keys in the last ten minutes.
//!
//! The algorithm is Space-Saving: a newcomer takes the place and the count of the least frequent
//! one. So nothing with a share above one in `PLACES` is missed, and counts are never too low.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use palisade_core::time::{MINUTE, Micros};

/// Most keys with a count of their own in one minute.
const PLACES: usize = 256;
/// Minutes that count.
const MINUTES: u64 = 10;
/// When every place is taken, one newcomer of this many is counted, with the weight of all: a flood
/// of newcomers must not make each refusal search for the least frequent key.
const STRANGERS_PER_LOOK: u32 = 8;

#[derive(Debug)]
struct Sketch<K> {
    minute: u64,
    counts: HashMap<K, u64>,
    strangers: u32,
}

impl<K: Eq + Hash + Clone> Sketch<K> {
    fn new(minute: u64) -> Self {
        Self {
            minute,
            counts: HashMap::new(),
            strangers: 0,
        }
    }

    fn add(&mut self, key: &K) {
        if let Some(count) = self.counts.get_mut(key) {
            *count += 1;
            return;
        }
        if self.counts.len() < PLACES {
            self.counts.insert(key.clone(), 1);
            return;
        }
        self.strangers += 1;
        if self.strangers >= STRANGERS_PER_LOOK {
            self.strangers = 0;
            self.replace_least(key);
        }
    }

    fn replace_least(&mut self, key: &K) {
        let least = self.counts.iter().min_by_key(|(_, count)| **count);
        if let Some((least, count)) = least.map(|(key, count)| (key.clone(), *count)) {
            self.counts.remove(&least);
            let weight = u64::from(STRANGERS_PER_LOOK);
            self.counts.insert(key.clone(), count + weight);
        }
    }
}

/// The most frequent keys of the last ten minutes.
#[derive(Debug)]
pub(super) struct Top<K>(VecDeque<Sketch<K>>);

impl<K> Default for Top<K> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<K: Eq + Hash + Clone + Ord> Top<K> {
    pub(super) fn add(&mut self, key: &K, now: Micros) {
        let minute = now.0 / MINUTE;
        if self.0.back().is_none_or(|sketch| sketch.minute < minute) {
            self.forget(minute);
            self.0.push_back(Sketch::new(minute));
        }
        if let Some(sketch) = self.0.back_mut() {
            sketch.add(key);
        }
    }

    fn forget(&mut self, minute: u64) {
        let is_old = |sketch: &Sketch<K>| sketch.minute + MINUTES <= minute;
        while self.0.front().is_some_and(is_old) {
            self.0.pop_front();
        }
    }

    /// Returns at most `most` keys with their counts, the most frequent first.
    pub(super) fn read(&self, most: usize, now: Micros) -> Vec<(K, u64)> {
        let minute = now.0 / MINUTE;
        let mut sums: HashMap<&K, u64> = HashMap::new();
        let counted = |sketch: &&Sketch<K>| sketch.minute + MINUTES > minute;
        for sketch in self.0.iter().filter(counted) {
            for (key, count) in &sketch.counts {
                *sums.entry(key).or_default() += count;
            }
        }
        let mut all: Vec<(&K, u64)> = sums.into_iter().collect();
        all.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
        let first = all.into_iter().take(most);
        first.map(|(key, count)| (key.clone(), count)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_are_found_among_a_flood_of_strangers_in_bounded_memory() {
        let mut top = Top::default();
        for n in 0..100_000_u32 {
            top.add(&(1_000 + n), Micros(0));
            if n % 10 == 0 {
                top.add(&(n / 10 % 3), Micros(0));
            }
        }
        let read = top.read(3, Micros(0));
        let mut keys: Vec<u32> = read.iter().map(|(key, _)| *key).collect();
        keys.sort_unstable();
        assert_eq!(keys, [0, 1, 2], "{read:?}");
        assert!(read.iter().all(|(_, count)| *count >= 3_333));
        assert_eq!(top.0[0].counts.len(), PLACES);
    }

    #[test]
    fn what_is_ten_minutes_old_is_forgotten() {
        let mut top = Top::default();
        for minute in 0..60 {
            top.add(&minute, Micros(minute * MINUTE));
        }
        let now = Micros(59 * MINUTE);
        assert_eq!(top.0.len(), 10);
        assert_eq!(top.read(100, now).len(), 10);
        assert_eq!(top.read(100, now.plus(10 * MINUTE)), []);
    }
}
