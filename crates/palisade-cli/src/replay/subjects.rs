//! The busiest subjects, told apart by keyed hashes and named by the line they first came in. Only
//! the recording itself shows who a subject is.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::super::events::NumberedEvent;

/// Most subjects that are told apart at once. Beyond that, the half with the fewest refusals is
/// forgotten.
const SUBJECTS_MAX: usize = 200_000;

/// Number of events, and of those among them that were not allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) events: u64,
    pub(super) refused: u64,
}

impl Share {
    pub(super) fn count(&mut self, is_allowed: bool) {
        self.events += 1;
        self.refused += u64::from(!is_allowed);
    }

    pub(super) const fn add(&mut self, other: Self) {
        self.events += other.events;
        self.refused += other.refused;
    }
}

/// One subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) first_line: u64,
    pub(super) share: Share,
}

/// A hasher that returns its input: the keys are keyed hashes already.
#[derive(Clone, Copy, Debug, Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }
}

/// The busiest subjects.
#[derive(Default)]
pub(super) struct Subjects {
    all: HashMap<u64, Subject, BuildHasherDefault<AsItIs>>,
    /// True if some subjects were forgotten: the counts of the others are lower bounds.
    pub(super) is_partial: bool,
}

impl Subjects {
    pub(super) fn count(&mut self, numbered: &NumberedEvent, is_allowed: bool) {
        let Some(whose) = numbered.whose else { return };
        let fresh = Subject {
            first_line: numbered.line,
            share: Share::default(),
        };
        let subject = self.all.entry(whose).or_insert(fresh);
        subject.share.count(is_allowed);
        if self.all.len() > SUBJECTS_MAX {
            self.forget_half();
        }
    }

    fn forget_half(&mut self) {
        let mut kept: Vec<(u64, Subject)> = self.all.drain().collect();
        let rank =
            |(_, one): &(u64, Subject)| std::cmp::Reverse((one.share.refused, one.share.events));
        kept.select_nth_unstable_by_key(SUBJECTS_MAX / 2, rank);
        kept.truncate(SUBJECTS_MAX / 2);
        self.all.extend(kept);
        self.is_partial = true;
    }

    /// Returns the subjects that were refused most, and how many were refused at all.
    pub(super) fn refused_most(&self, count_max: usize) -> (Vec<Subject>, usize) {
        let refused = self.all.values().filter(|one| one.share.refused > 0);
        let mut refused: Vec<Subject> = refused.copied().collect();
        refused.sort_by_key(|one| (std::cmp::Reverse(one.share.refused), one.first_line));
        let count = refused.len();
        refused.truncate(count_max);
        (refused, count)
    }

    /// Returns how many subjects were told apart.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher, RandomState};

    use palisade::cases::parse_event;

    use super::*;

    #[test]
    fn the_busiest_are_kept_when_there_are_too_many() {
        let mut subjects = Subjects::default();
        let hasher = RandomState::new();
        let of = |line: u64, subject: u32| {
            NumberedEvent {
            line,
            event: parse_event(
                r#"{"at":"2026-01-01T00:00:00Z","op":"request","ip":"::1","method":"GET","path":"/"}"#,
            )
            .unwrap(),
            whose: Some(hasher.hash_one(subject)),
            is_allowed: None,
        }
        };
        for n in 2..u32::try_from(SUBJECTS_MAX).unwrap() + 10 {
            subjects.count(&of(u64::from(n), n), true);
            if n % 1000 == 2 {
                subjects.count(&of(1, 1), false);
            }
        }
        assert!(subjects.is_partial && subjects.len() < SUBJECTS_MAX);
        let (top, refused) = subjects.refused_most(10);
        assert_eq!(
            (refused, top[0].first_line, top[0].share.refused),
            (1, 1, 201)
        );
    }
}
