//! The record of a destination.

use super::keep_recent;
use crate::guard::DecodeError;
use crate::guard::records::codec::{Reader, Writer};
use crate::guard::records::sets::Short;
use crate::key::{Digest, DigestPair};
use crate::send::policy::DESTINATION_MAX;
use crate::send::range::RANGES_OF_ONE;
use crate::time::{DAY, Micros};

const VERSION: u8 = 1;

/// Most sends that are kept: twice the largest figure, for known devices.
const SENDS_MAX: usize = 2 * DESTINATION_MAX;

/// One send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedSend {
    /// Instant of the send.
    pub at: Micros,
    /// Digest of its request id (G-ONCE).
    request: Option<Short>,
    /// Which of the destination's ranges counted it, by position.
    counted: [bool; RANGES_OF_ONE],
    /// Whether a success followed in time.
    verified: bool,
}

/// Sends to one destination, and its last verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SendDestination {
    touched: Micros,
    /// Sends of the last day, the oldest first.
    pub(in crate::send) sends: Vec<CountedSend>,
    /// Sends since the last verification.
    pub(in crate::send) unverified: u32,
    /// Instant of the last verification.
    pub(in crate::send) verified_at: Option<Micros>,
    /// Digests of the ranges that the last send belonged to: a success is counted where its send
    /// was.
    pub(in crate::send) ranges: Vec<Digest>,
}

impl SendDestination {
    /// Digests of the ranges that the last send belonged to.
    #[must_use]
    pub fn ranges(&self) -> &[Digest] {
        &self.ranges
    }

    /// True if something was sent to the destination within a day.
    #[must_use]
    pub const fn was_sent_to(&self) -> bool {
        !self.sends.is_empty()
    }

    /// True if the destination was verified within `time`.
    #[must_use]
    pub fn is_verified(&self, time: u64, now: Micros) -> bool {
        self.verified_at.is_some_and(|at| now.since(at) < time)
    }

    /// True if a send with this request id was counted within `window`.
    pub(in crate::send) fn has_sent(&self, request: &DigestPair, window: u64, now: Micros) -> bool {
        let recent = self.sends.iter().filter(|one| now.since(one.at) < window);
        let mut ids = recent.filter_map(|one| one.request);
        ids.any(|id| id.is(request))
    }

    pub(in crate::send) fn send(
        &mut self,
        request: Option<&DigestPair>,
        counted: [bool; RANGES_OF_ONE],
        ranges: Vec<Digest>,
        now: Micros,
    ) {
        keep_recent(&mut self.sends, |one| one.at, DAY, SENDS_MAX - 1, now);
        if self.sends.is_empty() {
            // After a day without a send the pause is that of a first one.
            self.unverified = 0;
        }
        self.sends.push(CountedSend {
            at: now,
            request: request.map(|pair| Short::of(pair.current)),
            counted,
            verified: false,
        });
        self.unverified = self.unverified.saturating_add(1);
        self.ranges = ranges;
        self.touched = now;
    }

    /// Notes a success: sends that are not older than `within` are verified. Returns their instants
    /// for each range that counted them.
    pub(in crate::send) fn verify(
        &mut self,
        within: u64,
        now: Micros,
    ) -> [Vec<Micros>; RANGES_OF_ONE] {
        let mut of_ranges = [const { Vec::new() }; RANGES_OF_ONE];
        let recent = self
            .sends
            .iter_mut()
            .filter(|one| now.since(one.at) <= within);
        for send in recent.filter(|one| !one.verified) {
            send.verified = true;
            for (instants, counted) in of_ranges.iter_mut().zip(send.counted) {
                instants.extend(counted.then_some(send.at));
            }
        }
        self.unverified = 0;
        self.verified_at = Some(now);
        self.touched = now;
        of_ranges
    }

    /// Instant from which nothing in the record matters.
    #[must_use]
    pub fn expires_at(&self, exempt_for: u64) -> Micros {
        let verified = self.verified_at.map(|at| at.plus(exempt_for));
        let sent = self.sends.last().map(|one| one.at.plus(DAY));
        verified.max(sent).unwrap_or(self.touched)
    }

    /// The record as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new(VERSION, self.touched);
        w.list(&self.sends, |w, send| {
            let [first, second] = send.counted;
            let has_id = send.request.is_some();
            w.byte(crate::guard::records::codec::pack(&[
                has_id,
                send.verified,
                first,
                second,
            ]));
            w.near(send.at);
            if let Some(id) = send.request {
                w.short(id);
            }
        });
        w.number(u64::from(self.unverified));
        w.byte(u8::from(self.verified_at.is_some()));
        if let Some(at) = self.verified_at {
            w.far(at);
        }
        w.list(&self.ranges, |w, range| w.digest(*range));
        w.finish()
    }

    /// Reads what [`SendDestination::encode`] wrote.
    ///
    /// # Errors
    /// Bytes that no version of this record wrote, or a newer one.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(bytes, VERSION)?;
        let record = Self {
            touched: r.base(),
            sends: r.list(SENDS_MAX, |r| {
                let flags = r.byte()?;
                let has = |bit: u8| flags & 1 << bit != 0;
                if flags >= 1 << 4 {
                    return Err(DecodeError::Corrupt);
                }
                Ok(CountedSend {
                    at: r.instant()?,
                    request: if has(0) { Some(r.short()?) } else { None },
                    verified: has(1),
                    counted: [has(2), has(3)],
                })
            })?,
            unverified: u32::try_from(r.number()?).map_err(|_| DecodeError::Corrupt)?,
            verified_at: r.instant_option()?,
            ranges: r.list(RANGES_OF_ONE, Reader::digest)?,
        };
        r.finish().map(|()| record)
    }
}
