//! The slot's protocol under every interleaving of threads, checked by loom.

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

use super::{Atomic, Slot, SlotView};
use crate::memory::word::{Word, WordContent};

impl Atomic for AtomicU64 {
    fn new(value: u64) -> Self {
        Self::new(value)
    }

    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    fn swap_if(&self, current: u64, new: u64) -> Result<u64, u64> {
        self.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire)
    }
}

/// Two slots and the lock of their segment.
struct Pair {
    slots: [Slot<AtomicU64>; 2],
    lock: Mutex<()>,
}

const OURS: u64 = 1;
const THEIRS: u64 = 2;
const START: u64 = 100;

fn held(free: Word) -> Word {
    free.with_ticks(START).unwrap()
}

/// A segment in which our bucket has the first slot.
fn pair() -> Arc<Pair> {
    let pair = Pair {
        slots: [Slot::free(), Slot::free()],
        lock: Mutex::new(()),
    };
    pair.slots[0].assign(OURS, held);
    Arc::new(pair)
}

impl Pair {
    /// Takes as the table does: without the lock, and with it if that fails.
    fn take(&self, tag: u64) {
        if self.take_unlocked(tag).is_none() {
            let _locked = self.lock.lock().unwrap();
            let slot = self.find(tag);
            let word = slot.lock();
            slot.unlock(one_more(word));
        }
    }

    fn take_unlocked(&self, tag: u64) -> Option<()> {
        loop {
            let (slot, word) = self.slots.iter().find_map(|slot| match slot.look(tag) {
                SlotView::Own(word) => Some((slot, word)),
                _ => None,
            })?;
            let WordContent::Ticks(_) = word.held() else {
                return None;
            };
            if slot.swap(word, one_more(word)) {
                return Some(());
            }
        }
    }

    fn find(&self, tag: u64) -> &Slot<AtomicU64> {
        self.slots
            .iter()
            .find(|slot| matches!(slot.look(tag), SlotView::Own(_)))
            .unwrap()
    }

    fn ticks(&self, tag: u64) -> u64 {
        match self.find(tag).word().held() {
            WordContent::Ticks(ticks) => ticks,
            other => panic!("{other:?}"),
        }
    }

    /// Moves our bucket to the second slot and gives the first one to another bucket with the very
    /// same ticks: the worst that a split can do.
    fn change_owners(&self) {
        let _locked = self.lock.lock().unwrap();
        let [first, second] = &self.slots;
        let word = first.lock();
        let WordContent::Ticks(ticks) = word.held() else {
            panic!("under the lock nobody else works on it");
        };
        second.assign(OURS, |free| free.with_ticks(ticks).unwrap());
        first.assign(THEIRS, |free| free.with_ticks(ticks).unwrap());
    }
}

impl Pair {
    /// Drops the first slot's bucket and moves ours up into the gap, as expiry does.
    fn close_gap(&self) {
        let _locked = self.lock.lock().unwrap();
        let [first, second] = &self.slots;
        first.lock();
        let word = second.lock();
        first.assign(OURS, |free| free.holding(word));
        second.vacate();
    }
}

fn one_more(word: Word) -> Word {
    let WordContent::Ticks(ticks) = word.held() else {
        panic!("{:?}", word.held());
    };
    word.with_ticks(ticks + 1).unwrap()
}

#[test]
fn no_interleaving_loses_a_take() {
    loom::model(|| {
        let pair = pair();
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let pair = Arc::clone(&pair);
                thread::spawn(move || pair.take(OURS))
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(pair.ticks(OURS), START + 2);
    });
}

#[test]
fn no_interleaving_mixes_a_take_with_a_locked_change() {
    loom::model(|| {
        let pair = pair();
        let other = Arc::clone(&pair);
        let locked = thread::spawn(move || {
            let _locked = other.lock.lock().unwrap();
            let word = other.slots[0].lock();
            other.slots[0].unlock(one_more(one_more(word)));
        });
        pair.take(OURS);
        locked.join().unwrap();
        assert_eq!(pair.ticks(OURS), START + 3);
    });
}

#[test]
fn no_interleaving_charges_the_wrong_owner() {
    loom::model(|| {
        let pair = pair();
        let other = Arc::clone(&pair);
        let mover = thread::spawn(move || other.change_owners());
        pair.take(OURS);
        mover.join().unwrap();
        let theirs = pair.ticks(THEIRS);
        assert_eq!(pair.ticks(OURS), START + 1);
        // The bucket was given away with or without the take, and not touched since.
        assert!(theirs == START || theirs == START + 1);
    });
}

#[test]
fn no_interleaving_lets_a_take_reach_a_slot_that_was_given_away() {
    loom::model(|| {
        let pair = pair();
        let other = Arc::clone(&pair);
        let mover = thread::spawn(move || {
            other.change_owners();
            other.ticks(THEIRS)
        });
        pair.take(OURS);
        let given = mover.join().unwrap();
        assert_eq!(pair.ticks(THEIRS), given);
    });
}

#[test]
fn no_interleaving_loses_a_take_while_a_gap_closes() {
    loom::model(|| {
        let pair = Pair {
            slots: [Slot::free(), Slot::free()],
            lock: Mutex::new(()),
        };
        pair.slots[0].assign(THEIRS, held);
        pair.slots[1].assign(OURS, held);
        let pair = Arc::new(pair);
        let other = Arc::clone(&pair);
        let mover = thread::spawn(move || other.close_gap());
        pair.take(OURS);
        mover.join().unwrap();
        assert_eq!(pair.ticks(OURS), START + 1);
        assert_eq!(pair.slots[1].word().held(), WordContent::Empty);
    });
}
