//! Maps what callers hold, receipts and reservations, to what the candidate holds for the same
//! requests, so that whatever is given back or settled is so in the candidate's buckets, too.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash, RandomState};

use parking_lot::Mutex;

/// Receipts or reservations of the candidate, for the latest requests that both policies allowed.
pub(super) struct Counterparts<T> {
    count_max: usize,
    hasher: RandomState,
    kept: Mutex<CounterpartTable<T>>,
}

struct CounterpartTable<T> {
    /// The candidate's own by a keyed hash of the caller's, so that the caller's, which names
    /// buckets, is not kept as well.
    own: HashMap<u64, T>,
    /// The hashes, oldest first. A used one stays until it is the oldest.
    order: VecDeque<u64>,
}

impl<T: Clone> Counterparts<T> {
    /// Room for `count_max`; beyond it the oldest is dropped.
    pub(super) fn new(count_max: usize) -> Self {
        Self {
            count_max: count_max.max(1),
            hasher: RandomState::new(),
            kept: Mutex::new(CounterpartTable {
                own: HashMap::new(),
                order: VecDeque::new(),
            }),
        }
    }

    /// Notes that `own` is the candidate's for the request whose caller got `live`.
    pub(super) fn note<K: Hash + ?Sized>(&self, live: &K, own: T) {
        let key = self.hasher.hash_one(live);
        let mut kept = self.kept.lock();
        if kept.order.len() >= self.count_max
            && let Some(oldest) = kept.order.pop_front()
        {
            kept.own.remove(&oldest);
        }
        kept.order.push_back(key);
        kept.own.insert(key, own);
    }

    /// The candidate's for the caller's.
    pub(super) fn find<K: Hash + ?Sized>(&self, live: &K) -> Option<T> {
        let key = self.hasher.hash_one(live);
        self.kept.lock().own.get(&key).cloned()
    }

    /// Removes and returns the candidate's for the caller's, so that it is used once.
    pub(super) fn take<K: Hash + ?Sized>(&self, live: &K) -> Option<T> {
        let key = self.hasher.hash_one(live);
        self.kept.lock().own.remove(&key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_is_found_once_and_the_oldest_make_way() {
        let receipts: Counterparts<Box<str>> = Counterparts::new(2);
        for name in ["a", "b", "c"] {
            receipts.note(name, name.to_uppercase().into());
        }
        assert_eq!(receipts.take("a"), None);
        assert_eq!(receipts.take("c").as_deref(), Some("C"));
        assert_eq!(receipts.take("c"), None);
        receipts.note("d", "D".into());
        receipts.note("e", "E".into());
        assert_eq!(receipts.take("b"), None);
        assert_eq!(receipts.find("e").as_deref(), Some("E"));
        assert_eq!(receipts.take("e").as_deref(), Some("E"));
        assert!(receipts.kept.lock().order.len() <= 2);
    }
}
