//! Maps the receipts that callers hold to those of the candidate, so that a refund of live buckets
//! also refunds the candidate's buckets.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};

use parking_lot::Mutex;

/// Receipts of the latest checks that both policies allowed.
pub(super) struct Receipts {
    count_max: usize,
    hasher: RandomState,
    kept: Mutex<ReceiptTable>,
}

#[derive(Default)]
struct ReceiptTable {
    /// The candidate's receipts by a keyed hash of the caller's, so that the caller's receipt,
    /// which names buckets, is not kept as well.
    own: HashMap<u64, Box<str>>,
    /// The hashes, oldest first. A used one stays until it is the oldest.
    order: VecDeque<u64>,
}

impl Receipts {
    /// Room for `count_max` receipts; beyond it the oldest is dropped.
    pub(super) fn new(count_max: usize) -> Self {
        Self {
            count_max: count_max.max(1),
            hasher: RandomState::new(),
            kept: Mutex::default(),
        }
    }

    /// Notes that `own` is the candidate's receipt for the check whose caller got `live`.
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

    /// Removes and returns the candidate's receipt for the caller's, so that it is refunded once.
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
