//! Which receipt of the candidate belongs to one that a caller holds, so that what goes back
//! to the live buckets goes back to the candidate's, bucket by bucket.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};

use parking_lot::Mutex;

/// Receipts of checks that both policies allowed, the latest ones.
pub(super) struct Receipts {
    count_max: usize,
    hasher: RandomState,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// By a keyed hash of the caller's receipt: it names buckets, and is held once less.
    own: HashMap<u64, Box<str>>,
    /// The oldest first, used ones included until their turn comes.
    order: VecDeque<u64>,
}

impl Receipts {
    /// Room for so many; the oldest make way.
    pub(super) fn new(count_max: usize) -> Self {
        Self {
            count_max: count_max.max(1),
            hasher: RandomState::new(),
            kept: Mutex::default(),
        }
    }

    /// The caller was given `live`, and the candidate would have given `own`.
    pub(super) fn note(&self, live: &str, own: Box<str>) {
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

    /// What belongs to the caller's receipt, once.
    pub(super) fn take(&self, live: &str) -> Option<Box<str>> {
        let key = self.hasher.hash_one(live);
        self.kept.lock().own.remove(&key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_is_found_once_and_the_oldest_make_way() {
        let receipts = Receipts::new(2);
        for name in ["a", "b", "c"] {
            receipts.note(name, name.to_uppercase().into());
        }
        assert_eq!(receipts.take("a"), None);
        assert_eq!(receipts.take("c").as_deref(), Some("C"));
        assert_eq!(receipts.take("c"), None);
        receipts.note("d", "D".into());
        receipts.note("e", "E".into());
        assert_eq!(receipts.take("b"), None);
        assert_eq!(receipts.take("e").as_deref(), Some("E"));
        assert!(receipts.kept.lock().order.len() <= 2);
    }
}
