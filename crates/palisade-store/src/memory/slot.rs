//! One slot of the table: a tag that identifies its owner, and its word.
//!
//! The tag is the lower half of the owner's id. Together with the bits that lead to the segment,
//! the odds that any two of ten million buckets are mistaken for each other are 3 × 10⁻¹⁰, and
//! since ids are keyed, nobody can search for such a pair.
//!
//! A thread without the segment's lock may read a slot, and may swap the word of one that it has
//! recognised. Everything else needs the segment's lock and, on a slot with an owner,
//! [`Slot::lock`], after which no swap by another thread succeeds.

use std::sync::atomic::{AtomicU64, Ordering};

use super::word::Word;

#[cfg(test)]
mod tests;

/// A 64-bit atomic; a trait so that the protocol can be model-checked.
pub(crate) trait Atomic {
    fn new(value: u64) -> Self;
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    /// Compare-and-swap, with acquire and release on success.
    fn swap_if(&self, current: u64, new: u64) -> Result<u64, u64>;
}

impl Atomic for AtomicU64 {
    #[inline]
    fn new(value: u64) -> Self {
        Self::new(value)
    }

    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    #[inline]
    fn swap_if(&self, current: u64, new: u64) -> Result<u64, u64> {
        self.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire)
    }
}

/// A slot. It never straddles two cache lines.
#[repr(align(16))]
pub(crate) struct Slot<A = AtomicU64> {
    tag: A,
    word: A,
}

/// A slot as a thread without the lock sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SlotView {
    /// The slot has no owner: the probe ends here.
    Empty,
    /// The slot belongs to another bucket.
    Other,
    /// The slot belongs to the bucket that is looked for.
    Own(Word),
}

impl<A: Atomic> Slot<A> {
    pub(crate) fn free() -> Self {
        Self {
            tag: A::new(0),
            word: A::new(Word::FREE.0),
        }
    }

    /// Returns the word if the tag is `tag`; whether the slot still has an owner is for the word
    /// to say. The word is read before the tag: as the owner only changes while the word is locked
    /// or empty, a later [`Slot::swap`] of this word succeeds only if the tag was right.
    #[inline]
    pub(crate) fn word_of(&self, tag: u64) -> Option<Word> {
        let word = Word(self.word.load(Ordering::Acquire));
        (self.tag.load(Ordering::Relaxed) == tag).then_some(word)
    }

    /// Looks at the slot, in the order of [`Slot::word_of`].
    #[inline]
    pub(crate) fn look(&self, tag: u64) -> SlotView {
        let word = Word(self.word.load(Ordering::Acquire));
        if word.is_empty() {
            SlotView::Empty
        } else if self.tag.load(Ordering::Relaxed) == tag {
            SlotView::Own(word)
        } else {
            SlotView::Other
        }
    }

    /// Replaces a word that [`Slot::look`] returned; false if it has changed.
    #[inline]
    pub(crate) fn swap(&self, seen: Word, new: Word) -> bool {
        self.word.swap_if(seen.0, new.0).is_ok()
    }

    /// Keeps other threads from swapping the word, and returns it. Only under the segment's lock,
    /// and until [`Slot::unlock`], [`Slot::assign`] or [`Slot::vacate`].
    pub(crate) fn lock(&self) -> Word {
        let mut word = Word(self.word.load(Ordering::Acquire));
        loop {
            match self.word.swap_if(word.0, word.locked().0) {
                Ok(_) => return word,
                Err(current) => word = Word(current),
            }
        }
    }

    /// Ends [`Slot::lock`]: the owner stays, with this word.
    pub(crate) fn unlock(&self, word: Word) {
        self.word.store(word.0, Ordering::Release);
    }

    /// Gives the slot a new owner. Only under the segment's lock, on a slot that is empty or
    /// locked. `word` sets the content; the generation is the slot's own.
    pub(crate) fn assign(&self, tag: u64, word: impl FnOnce(Word) -> Word) {
        let generation = Word(self.word.load(Ordering::Relaxed)).next_free();
        self.tag.store(tag, Ordering::Relaxed);
        self.word.store(word(generation).0, Ordering::Release);
    }

    /// Removes the owner. Only under the segment's lock, on a locked slot.
    pub(crate) fn vacate(&self) {
        let generation = Word(self.word.load(Ordering::Relaxed)).next_free();
        self.word.store(generation.0, Ordering::Release);
    }

    /// Reads the word, to look at the state and not to change it.
    pub(crate) fn word(&self) -> Word {
        Word(self.word.load(Ordering::Acquire))
    }

    /// Tag of the owner, or of the last one if there is none. Only a hint without the segment's
    /// lock.
    #[inline]
    pub(crate) fn tag(&self) -> u64 {
        self.tag.load(Ordering::Relaxed)
    }
}
