//! The record of an address prefix's sends.

use super::keep_recent;
use crate::guard::DecodeError;
use crate::guard::records::codec::{Reader, Writer};
use crate::guard::records::sets::Short;
use crate::key::DigestPair;
use crate::send::policy::{NETWORK_MAX, RANGE_SPAN_MAX};
use crate::time::{DAY, HOUR, Micros};

const VERSION: u8 = 1;

/// Most sends that are remembered as counted for a range. More than that only if a network may send
/// to many countries within an hour.
const COUNTED_MAX: usize = 64;

/// A digest with an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::send) struct DatedDigest {
    who: Short,
    at: Micros,
}

/// Sends from one address prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SendNetwork {
    touched: Micros,
    /// Sends of the last hour, the oldest first.
    pub(in crate::send) sends: Vec<Micros>,
    /// Distinct destinations of the last day, in the order of their last send.
    pub(in crate::send) destinations: Vec<DatedDigest>,
    /// Sends that counted for a range.
    counted: Vec<DatedDigest>,
}

impl SendNetwork {
    /// Instants of the last send to each distinct destination of a day, the oldest first; `None` if
    /// this destination is among them.
    pub(in crate::send) fn others(
        &self,
        destination: &DigestPair,
        now: Micros,
    ) -> Option<Vec<Micros>> {
        let is_recent = |one: &&DatedDigest| now.since(one.at) < DAY;
        let mut recent = self.destinations.iter().filter(is_recent);
        let is_known = recent.clone().any(|one| one.who.is(destination));
        (!is_known).then(|| recent.by_ref().map(|one| one.at).collect())
    }

    /// Sends within `window` that counted for a range.
    pub(in crate::send) fn counted(&self, range: &DigestPair, window: u64, now: Micros) -> usize {
        let recent = self.counted.iter().filter(|one| now.since(one.at) < window);
        recent.filter(|one| one.who.is(range)).count()
    }

    pub(in crate::send) fn send(
        &mut self,
        destination: &DigestPair,
        counted: impl Iterator<Item = DigestPair>,
        now: Micros,
    ) {
        let dated = |pair: &DigestPair| DatedDigest {
            who: Short::of(pair.current),
            at: now,
        };
        keep_recent(&mut self.sends, |at| *at, HOUR, NETWORK_MAX - 1, now);
        self.sends.push(now);
        self.destinations.retain(|one| !one.who.is(destination));
        keep_recent(
            &mut self.destinations,
            |one| one.at,
            DAY,
            NETWORK_MAX - 1,
            now,
        );
        self.destinations.push(dated(destination));
        self.counted.extend(counted.map(|range| dated(&range)));
        keep_recent(
            &mut self.counted,
            |one| one.at,
            RANGE_SPAN_MAX,
            COUNTED_MAX,
            now,
        );
        self.touched = now;
    }

    /// Instant from which nothing in the record matters.
    #[must_use]
    pub const fn expires_at(&self) -> Micros {
        self.touched.plus(DAY)
    }

    /// The record as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new(VERSION, self.touched);
        w.times(&self.sends);
        for list in [&self.destinations, &self.counted] {
            w.list(list, |w, one| {
                w.short(one.who);
                w.near(one.at);
            });
        }
        w.finish()
    }

    /// Reads what [`SendNetwork::encode`] wrote.
    ///
    /// # Errors
    /// Bytes that no version of this record wrote, or a newer one.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(bytes, VERSION)?;
        let dated = |r: &mut Reader<'_>| {
            Ok(DatedDigest {
                who: r.short()?,
                at: r.instant()?,
            })
        };
        let record = Self {
            touched: r.base(),
            sends: r.times(NETWORK_MAX)?,
            destinations: r.list(NETWORK_MAX, dated)?,
            counted: r.list(COUNTED_MAX, dated)?,
        };
        r.finish().map(|()| record)
    }
}
