//! The record of an account's sends.

use super::keep_recent;
use crate::guard::DecodeError;
use crate::guard::records::codec::{Reader, Writer};
use crate::key::Digest;
use crate::send::policy::ACCOUNT_MAX;
use crate::time::{HOUR, Micros};

const VERSION: u8 = 1;

/// Sends to an account's destinations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SendAccount {
    touched: Micros,
    /// Sends of the last hour, the oldest first.
    pub(in crate::send) sends: Vec<Micros>,
    /// Digest of the destination that was last sent to: a success without a destination verifies
    /// it.
    last: Option<Digest>,
}

impl SendAccount {
    /// Digest of the destination that was last sent to, if that was within the hour.
    #[must_use]
    pub fn last_destination(&self, now: Micros) -> Option<Digest> {
        let is_recent = |at: &&Micros| now.since(**at) <= HOUR;
        self.sends.last().filter(is_recent).and(self.last)
    }

    pub(in crate::send) fn send(&mut self, destination: Digest, now: Micros) {
        keep_recent(&mut self.sends, |at| *at, HOUR, ACCOUNT_MAX - 1, now);
        self.sends.push(now);
        self.last = Some(destination);
        self.touched = now;
    }

    /// Instant from which nothing in the record matters.
    #[must_use]
    pub const fn expires_at(&self) -> Micros {
        self.touched.plus(HOUR)
    }

    /// The record as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new(VERSION, self.touched);
        w.times(&self.sends);
        w.byte(u8::from(self.last.is_some()));
        if let Some(last) = self.last {
            w.digest(last);
        }
        w.finish()
    }

    /// Reads what [`SendAccount::encode`] wrote.
    ///
    /// # Errors
    /// Bytes that no version of this record wrote, or a newer one.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(bytes, VERSION)?;
        let record = Self {
            touched: r.base(),
            sends: r.times(ACCOUNT_MAX)?,
            last: match r.byte()? {
                0 => None,
                1 => Some(r.digest()?),
                _ => return Err(DecodeError::Corrupt),
            },
        };
        r.finish().map(|()| record)
    }
}
