//! Changes of buckets that a record marks as made (B-ONCE).

use palisade_core::plan::Charge;
use palisade_core::record::{Record, RecordKey, RecordWrite};
use palisade_core::time::Micros;

use crate::{ChargeReadings, TakenCharge};

/// Changes of buckets that are made once: a record marks them as made, and is written in the same
/// step.
#[derive(Clone, Debug)]
pub struct Correction<'p> {
    /// The record. Without it the buckets do not change.
    pub mark: Mark,
    /// Charges that are made whether or not they fit, except to a limit that only reports; none may
    /// deny, and each bucket occurs once.
    pub more: Vec<Charge<'p>>,
    /// Charges that go back, as far as their buckets still count them.
    pub back: Vec<TakenCharge<'p>>,
}

/// The record that marks a [`Correction`] as made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Name of the record.
    pub key: RecordKey,
    /// Revision that the record must have; zero if there must be none.
    pub expect: u64,
    /// New content of the record.
    pub bytes: Vec<u8>,
    /// When the record expires: not before the one that it replaces, and the same in a repetition.
    pub expires_at: Micros,
}

/// Outcome of a correction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CorrectionOutcome {
    /// The mark was written and the buckets were changed. Readings of [`Correction::more`] come
    /// first, as a charge answers, then those of [`Correction::back`], as a return answers.
    Made(ChargeReadings),
    /// This very mark was there: nothing was changed that had been changed before. The readings
    /// are those of a look at the buckets, in the same order.
    Repeated(ChargeReadings),
    /// The record has changed in another way, or the mark has expired, so that an earlier one may
    /// have been forgotten; nothing was changed.
    Conflict,
}

impl<'p> Correction<'p> {
    /// All charges, in the order of the readings.
    #[must_use]
    pub fn charges(&self) -> Vec<Charge<'p>> {
        let back = self.back.iter().map(|taken| &taken.charge);
        self.more.iter().chain(back).cloned().collect()
    }
}

impl Mark {
    /// The mark as a write of its record.
    #[must_use]
    pub fn write(&self) -> RecordWrite {
        RecordWrite {
            key: self.key,
            expect: self.expect,
            bytes: Some(self.bytes.clone()),
            expires_at: self.expires_at,
        }
    }

    /// Whether the record that is there is this mark.
    #[must_use]
    pub fn is(&self, found: Option<&Record>) -> bool {
        found.is_some_and(|found| found.revision == self.expect + 1 && found.bytes == self.bytes)
    }
}
