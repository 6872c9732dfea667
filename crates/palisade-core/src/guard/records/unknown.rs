//! Unknown outcomes of an account's strangers (G-UNKNOWN).

use crate::time::{MINUTE, Micros};

use super::codec::{DecodeError, Reader, Writer};

/// Unknown outcomes within the window that do not count as failures.
const FREE: usize = 2;
/// Time for which an unknown outcome is remembered.
const WINDOW: u64 = 10 * MINUTE;

/// Instants of the last unknown outcomes, oldest first, at most `FREE` of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnknownOutcomes(Vec<Micros>);

impl UnknownOutcomes {
    /// Notes an unknown outcome; true if it is the third within the window, or a further one.
    pub(in crate::guard) fn note(&mut self, now: Micros) -> bool {
        self.prune(now);
        let counts = self.0.len() >= FREE;
        if counts {
            self.0.remove(0);
        }
        self.0.push(now);
        counts
    }

    pub(super) fn prune(&mut self, now: Micros) {
        self.0.retain(|at| now.since(*at) < WINDOW);
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn expires_at(&self) -> Micros {
        self.0.last().map_or(Micros(0), |at| at.plus(WINDOW))
    }

    pub(super) fn encode(&self, writer: &mut Writer) {
        writer.times(&self.0);
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.times(FREE).map(Self)
    }
}

#[cfg(test)]
impl UnknownOutcomes {
    pub(super) fn full() -> Self {
        Self(vec![super::bounds::FAR_OFF; FREE])
    }
}
