//! One bucket packed into 64 bits, so that a decision is one compare-and-swap.
//!
//! | bits | what |
//! | --- | --- |
//! | 63–58 | generation: changes whenever the slot gets another owner or place |
//! | 57–0 | a token bucket's arrival time in ticks after the table's origin, or a special value |
//!
//! 2⁵⁸ ticks are 814 days: a later arrival time is kept in the slab, like the states of the other
//! algorithms. The generation keeps a thread that read a word, was suspended, and found the slot
//! with a new owner from charging the wrong bucket: the word would have to return to the same tick
//! of 2⁻¹² µs after exactly 64 changes of owner.

/// Bits of an arrival time or special value.
pub(crate) const VALUE_BITS: u32 = 58;
const VALUE: u64 = (1 << VALUE_BITS) - 1;
const GENERATION: u64 = !VALUE;
const GENERATION_ONE: u64 = 1 << VALUE_BITS;

const EMPTY: u64 = VALUE;
const LOCKED: u64 = VALUE - 1;
const SLAB_LAST: u64 = VALUE - 2;
const SLAB_FIRST: u64 = SLAB_LAST - u16::MAX as u64;

/// The packed word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Word(pub(crate) u64);

/// Content of a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WordContent {
    /// The slot has no owner.
    Empty,
    /// A thread that holds the segment's lock is working on the slot.
    Locked,
    /// Arrival time of a token bucket, in ticks after the table's origin.
    Ticks(u64),
    /// The state is in the segment's slab, at this index.
    Slab(u16),
}

/// The word cannot hold as many ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TooFar;

impl Word {
    pub(crate) const FREE: Self = Self(EMPTY);

    pub(crate) const fn held(self) -> WordContent {
        match self.0 & VALUE {
            EMPTY => WordContent::Empty,
            LOCKED => WordContent::Locked,
            #[expect(clippy::cast_possible_truncation, reason = "a slab has 2¹⁶ places")]
            value @ SLAB_FIRST..=SLAB_LAST => WordContent::Slab((SLAB_LAST - value) as u16),
            ticks => WordContent::Ticks(ticks),
        }
    }

    /// Arrival time of a token bucket, if the word holds one.
    #[inline]
    pub(crate) const fn ticks(self) -> Option<u64> {
        let value = self.0 & VALUE;
        if value < SLAB_FIRST {
            Some(value)
        } else {
            None
        }
    }

    pub(crate) const fn is_empty(self) -> bool {
        self.0 & VALUE == EMPTY
    }

    /// Word of this bucket with another arrival time.
    pub(crate) const fn with_ticks(self, ticks: u64) -> Result<Self, TooFar> {
        if ticks >= SLAB_FIRST {
            return Err(TooFar);
        }
        Ok(self.with_value(ticks))
    }

    pub(crate) const fn with_slab(self, index: u16) -> Self {
        self.with_value(SLAB_LAST - index as u64)
    }

    pub(crate) const fn locked(self) -> Self {
        self.with_value(LOCKED)
    }

    /// Word with the content of `other`, in this word's generation.
    pub(crate) const fn holding(self, other: Self) -> Self {
        self.with_value(other.0 & VALUE)
    }

    /// Word without an owner, of the next generation.
    pub(crate) const fn next_free(self) -> Self {
        Self((self.0 & GENERATION).wrapping_add(GENERATION_ONE) | EMPTY)
    }

    const fn with_value(self, value: u64) -> Self {
        Self(self.0 & GENERATION | value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_word_reads_back() {
        for word in [
            Word::FREE,
            Word::FREE.next_free(),
            Word(u64::MAX).next_free(),
        ] {
            assert_eq!(word.held(), WordContent::Empty);
            assert_eq!(word.locked().held(), WordContent::Locked);
            for ticks in [0, 1, SLAB_FIRST - 1] {
                assert_eq!(
                    word.with_ticks(ticks).unwrap().held(),
                    WordContent::Ticks(ticks)
                );
                assert_eq!(word.with_ticks(ticks).unwrap().ticks(), Some(ticks));
            }
            let others = [
                word,
                word.locked(),
                word.with_slab(0),
                word.with_slab(u16::MAX),
            ];
            assert!(others.iter().all(|word| word.ticks().is_none()));
            assert_eq!(word.with_ticks(SLAB_FIRST), Err(TooFar));
            for index in [0, 1, u16::MAX] {
                assert_eq!(word.with_slab(index).held(), WordContent::Slab(index));
            }
        }
    }

    #[test]
    fn the_generation_survives_a_change_of_value() {
        let word = Word::FREE.next_free().with_slab(3);
        let other = Word::FREE.with_ticks(7).unwrap();
        for changed in [
            word.locked(),
            word.with_ticks(9).unwrap(),
            word.holding(other),
        ] {
            assert_eq!(word.0 & GENERATION, changed.0 & GENERATION);
        }
        assert_eq!(word.holding(other).held(), WordContent::Ticks(7));
        assert_ne!(word.0 & GENERATION, word.next_free().0 & GENERATION);
    }

    #[test]
    fn generations_come_round_after_64() {
        let mut word = Word::FREE;
        for turn in 1..=64 {
            word = word.next_free();
            assert_eq!(word == Word::FREE, turn == 64);
        }
    }
}
