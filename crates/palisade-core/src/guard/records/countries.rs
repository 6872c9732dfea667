//! Countries from which an account has succeeded (P-GUARD), as keyed digests.

use crate::key::DigestPair;
use crate::time::Micros;

use super::codec::{DecodeError, Reader, Writer};
use super::sets::Short;

/// Most countries of an account; the one with the oldest success leaves first.
pub const COUNTRIES_MAX: usize = 8;
/// Successes from which an account has a history to compare with.
const HISTORY: u8 = 2;

/// Successes of an account and their countries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Countries {
    /// Number of successes, at most `HISTORY`.
    successes: u8,
    /// Instant of the last success that was written. It need not be exact.
    last: Micros,
    /// Countries in the order of their last success, the newest last. Half a digest tells eight of
    /// them apart.
    seen: Vec<Short>,
}

/// The instant of the last success is written again when it is older than this: a success in the
/// usual country then changes nothing.
const FRESH: u64 = crate::time::DAY;

impl Countries {
    /// Whether the account has succeeded from this country; `None` without a history.
    pub(in crate::guard) fn knows(&self, country: &DigestPair) -> Option<bool> {
        let knows = self.seen.iter().any(|seen| seen.is(country));
        (self.successes >= HISTORY).then_some(knows)
    }

    /// Notes a success from this country; true if that changed anything.
    pub(in crate::guard) fn succeeded(&mut self, country: &DigestPair, now: Micros) -> bool {
        let newest = Short::of(country.current);
        let is_usual = self.successes >= HISTORY && self.seen.last() == Some(&newest);
        if is_usual && now.since(self.last) < FRESH {
            return false;
        }
        self.seen.retain(|seen| !seen.is(country));
        if self.seen.len() >= COUNTRIES_MAX {
            self.seen.remove(0);
        }
        self.seen.push(newest);
        self.successes = HISTORY.min(self.successes + 1);
        self.last = now;
        true
    }

    /// Forgets everything; true if there was anything.
    pub(in crate::guard) fn forget(&mut self) -> bool {
        !std::mem::take(self).is_empty()
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }

    pub(super) fn prune(&mut self, kept_for: u64, now: Micros) {
        if now.since(self.last) >= kept_for {
            *self = Self::default();
        }
    }

    pub(super) const fn expires_at(&self, kept_for: u64) -> Micros {
        match self.is_empty() {
            true => Micros(0),
            false => self.last.plus(kept_for),
        }
    }

    pub(super) fn encode(&self, writer: &mut Writer) {
        writer.byte(self.successes);
        writer.far(self.last);
        writer.list(&self.seen, |w, seen| w.short(*seen));
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            successes: reader.byte()?.min(HISTORY),
            last: reader.instant()?,
            seen: reader.list(COUNTRIES_MAX, Reader::short)?,
        })
    }
}

#[cfg(test)]
impl Countries {
    pub(super) fn full() -> Self {
        Self {
            successes: HISTORY,
            last: super::bounds::FAR_OFF,
            seen: vec![Short(u64::MAX); COUNTRIES_MAX],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Digest;
    use crate::time::{DAY, SECOND};

    fn country(n: u128) -> DigestPair {
        DigestPair {
            current: Digest(n << 64),
            previous: None,
        }
    }

    #[test]
    fn p_guard_at_most_eight_countries_are_kept_and_the_oldest_leaves() {
        let mut countries = Countries::default();
        for n in 0..8 {
            assert!(countries.succeeded(&country(u128::from(n)), Micros(n)));
        }
        assert!(
            countries.succeeded(&country(0), Micros(8)),
            "now the newest"
        );
        assert!(countries.succeeded(&country(8), Micros(9)));
        assert_eq!(countries.knows(&country(1)), Some(false));
        for n in [0, 2, 7, 8] {
            assert_eq!(countries.knows(&country(n)), Some(true), "{n}");
        }
    }

    #[test]
    fn p_guard_a_success_in_the_usual_country_changes_nothing_for_a_day() {
        let mut countries = Countries::default();
        assert!(countries.succeeded(&country(1), Micros(0)));
        assert_eq!(countries.knows(&country(1)), None, "no history yet");
        assert!(countries.succeeded(&country(1), Micros(1)));
        assert_eq!(countries.knows(&country(1)), Some(true));
        assert!(!countries.succeeded(&country(1), Micros(SECOND)));
        assert!(countries.succeeded(&country(1), Micros(2 * DAY)));
        assert_eq!(countries.expires_at(DAY), Micros(3 * DAY));
        countries.prune(DAY, Micros(3 * DAY));
        assert!(countries.is_empty());
    }
}
