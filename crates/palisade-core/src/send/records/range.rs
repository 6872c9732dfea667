//! Sends and verifications of a range, by the minute.
//!
//! A range is one name for a whole country, so its counts must not be a record that every send
//! writes: a lost compare-and-swap would fail the send. Two things keep it apart from them:
//!
//! - It is split into [`RANGE_SHARDS`] records by the destination's digest, and only the first few
//!   sends of an address prefix count at all. A send that loses its swap several times leaves
//!   the count out rather than fail.
//! - It is judged by minutes that are over and whose sends can no longer be verified. Nothing
//!   changes such a minute, so that a node reads the shards of a range once in a minute and every
//!   node sees the same figures, although neither waits for the other.

use crate::guard::DecodeError;
use crate::guard::records::codec::{Reader, Writer};
use crate::send::policy::{RANGE_SPAN_MAX, RangePolicy, VERIFY_WITHIN_MAX};
use crate::time::{MINUTE, Micros};

const VERSION: u8 = 1;

/// Number of records that a range is split into.
pub const RANGE_SHARDS: usize = 16;

/// Most minutes that are judged: those of the window before each instant of two holds.
const MINUTES_MAX: usize = ((3 * RANGE_SPAN_MAX + VERIFY_WITHIN_MAX) / MINUTE) as usize + 2;

/// Counts of one minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MinuteCounts {
    /// Number of the minute since the epoch.
    minute: u64,
    sends: u64,
    verified: u64,
}

/// Counts of a range by the minute: of one shard, or of several added up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeCounts(Vec<MinuteCounts>);

impl RangeCounts {
    /// Adds the counts of another shard.
    pub fn add(&mut self, other: &Self) {
        for one in &other.0 {
            let sum = self.minute(one.minute);
            sum.sends = sum.sends.saturating_add(one.sends);
            sum.verified = sum.verified.saturating_add(one.verified);
        }
    }

    /// Sends, and how many of them were verified, in the minutes from `first` to before `end`.
    pub(in crate::send) fn within(&self, first: u64, end: u64) -> (u64, u64) {
        let minutes = self
            .0
            .iter()
            .filter(|one| (first..end).contains(&one.minute));
        minutes.fold((0, 0), |(sends, verified), one| {
            (sends + one.sends, verified + one.verified)
        })
    }

    fn minute(&mut self, minute: u64) -> &mut MinuteCounts {
        let at = self.0.partition_point(|one| one.minute < minute);
        if self.0.get(at).is_none_or(|one| one.minute != minute) {
            self.0.insert(
                at,
                MinuteCounts {
                    minute,
                    sends: 0,
                    verified: 0,
                },
            );
        }
        &mut self.0[at]
    }
}

/// One shard of a range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SendRange {
    touched: Micros,
    counts: RangeCounts,
}

impl SendRange {
    /// The counts of the shard.
    #[must_use]
    pub const fn counts(&self) -> &RangeCounts {
        &self.counts
    }

    pub(in crate::send) fn send(&mut self, now: Micros) {
        self.counts.minute(minute_of(now)).sends += 1;
        self.prune(now);
    }

    pub(in crate::send) fn verify(&mut self, sent_at: Micros, now: Micros) {
        self.counts.minute(minute_of(sent_at)).verified += 1;
        self.prune(now);
    }

    fn prune(&mut self, now: Micros) {
        let beyond = self.counts.0.len().saturating_sub(MINUTES_MAX);
        self.counts.0.drain(..beyond);
        let oldest = minute_of(now).saturating_sub(MINUTES_MAX as u64);
        self.counts.0.retain(|one| one.minute >= oldest);
        self.touched = self.touched.max(now);
    }

    /// Instant from which nothing in the record matters.
    #[must_use]
    pub const fn expires_at(&self, policy: &RangePolicy) -> Micros {
        let judged = policy.window + policy.verify_within + 2 * policy.hold + MINUTE;
        self.touched.plus(judged)
    }

    /// The record as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new(VERSION, self.touched);
        w.list(&self.counts.0, |w, one| {
            w.near(Micros(one.minute * MINUTE));
            w.number(one.sends);
            w.number(one.verified);
        });
        w.finish()
    }

    /// Reads what [`SendRange::encode`] wrote.
    ///
    /// # Errors
    /// Bytes that no version of this record wrote, or a newer one.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(bytes, VERSION)?;
        let record = Self {
            touched: r.base(),
            counts: RangeCounts(r.list(MINUTES_MAX + 1, |r| {
                Ok(MinuteCounts {
                    minute: minute_of(r.instant()?),
                    sends: r.number()?,
                    verified: r.number()?,
                })
            })?),
        };
        r.finish().map(|()| record)
    }
}

/// The number of the minute of an instant.
#[must_use]
pub const fn minute_of(at: Micros) -> u64 {
    at.0 / MINUTE
}
