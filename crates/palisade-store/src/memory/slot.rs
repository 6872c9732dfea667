//! One slot of the table: a tag that says who owns it, and its word.
//!
//! The tag is the lower half of the owner's id. Together with the bits that led to
//! the segment, two of ten million buckets are taken for one another with odds of
//! 3 × 10⁻¹⁰, and as ids are keyed nobody can look for such a pair.
//!
//! A thread without the segment's lock may look at a slot and swap the word of one
//! it has recognised. Everything else needs the segment's lock and, on a slot with
//! an owner, [`Slot::lock`], after which no swap of others succeeds.

use std::sync::atomic::{AtomicU64, Ordering};

use super::word::Word;

#[cfg(test)]
mod tests;

/// A 64-bit atomic; a trait so that the protocol can be model-checked.
pub(crate) trait Atomic {
    fn new(value: u64) -> Self;
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    /// Acquire and release on success.
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

/// The slot. It never lies across two cache lines.
#[repr(align(16))]
pub(crate) struct Slot<A = AtomicU64> {
    tag: A,
    word: A,
}

/// A slot as a thread without the lock sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Seen {
    /// No owner: the end of a probe.
    Empty,
    /// Somebody else's.
    Other,
    /// The asked bucket's.
    Own(Word),
}

impl<A: Atomic> Slot<A> {
    pub(crate) fn free() -> Self {
        Self {
            tag: A::new(0),
            word: A::new(Word::FREE.0),
        }
    }

    /// The word, if the tag is the asked one; whether the slot still has an owner is
    /// for the word to say. The word is read before the owner: as the owner only
    /// changes while the word is locked or empty, a later [`Slot::swap`] of this word
    /// succeeds only if the owner was right.
    #[inline]
    pub(crate) fn word_of(&self, tag: u64) -> Option<Word> {
        let word = Word(self.word.load(Ordering::Acquire));
        (self.tag.load(Ordering::Relaxed) == tag).then_some(word)
    }

    /// Looks at the slot, as [`Slot::word_of`] does.
    #[inline]
    pub(crate) fn look(&self, tag: u64) -> Seen {
        let word = Word(self.word.load(Ordering::Acquire));
        if word.is_empty() {
            Seen::Empty
        } else if self.tag.load(Ordering::Relaxed) == tag {
            Seen::Own(word)
        } else {
            Seen::Other
        }
    }

    /// Replaces a word that [`Slot::look`] returned; false if it has changed.
    #[inline]
    pub(crate) fn swap(&self, seen: Word, new: Word) -> bool {
        self.word.swap_if(seen.0, new.0).is_ok()
    }

    /// Keeps others from swapping the word and returns it. Only under the segment's
    /// lock, and until [`Slot::unlock`], [`Slot::assign`] or [`Slot::vacate`].
    pub(crate) fn lock(&self) -> Word {
        let mut word = Word(self.word.load(Ordering::Acquire));
        loop {
            match self.word.swap_if(word.0, word.locked().0) {
                Ok(_) => return word,
                Err(current) => word = Word(current),
            }
        }
    }

    /// Ends [`Slot::lock`]: the same owner with this word.
    pub(crate) fn unlock(&self, word: Word) {
        self.word.store(word.0, Ordering::Release);
    }

    /// Gives the slot a new owner. Only under the segment's lock, on a slot that is
    /// empty or locked. `word` says what is held; the generation is the slot's own.
    pub(crate) fn assign(&self, tag: u64, word: impl FnOnce(Word) -> Word) {
        let generation = Word(self.word.load(Ordering::Relaxed)).next_free();
        self.tag.store(tag, Ordering::Relaxed);
        self.word.store(word(generation).0, Ordering::Release);
    }

    /// Takes the owner away. Only under the segment's lock, on a locked slot.
    pub(crate) fn vacate(&self) {
        let generation = Word(self.word.load(Ordering::Relaxed)).next_free();
        self.word.store(generation.0, Ordering::Release);
    }

    /// The word, for a look at its state without intent to change it.
    pub(crate) fn word(&self) -> Word {
        Word(self.word.load(Ordering::Acquire))
    }

    /// The owner's tag; the last owner's, if there is none. Without the segment's lock
    /// only a hint.
    #[inline]
    pub(crate) fn tag(&self) -> u64 {
        self.tag.load(Ordering::Relaxed)
    }
}
