//! Attempts that were let through and whose outcome is not known yet (G-PENDING).

use crate::key::DigestPair;
use crate::time::Micros;

use super::codec::{DecodeError, Reader, Writer};
use super::sets::Short;

/// Most pending attempts that an account keeps.
pub const PENDING_MAX: usize = 16;

/// The failure that a pending attempt counts as until its outcome is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// A failure of a known device: counts on that device (K5).
    Known,
    /// A failure of another device: counts on the account (K4).
    New,
    /// A failure without a fingerprint: counts on the account (K4).
    Missing,
}

/// One attempt whose credential is being verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingAttempt {
    pub(in crate::guard) id: Short,
    /// The device; `None` if its fingerprint is missing.
    pub(in crate::guard) device: Option<Short>,
    pub(in crate::guard) weight: Weight,
    /// When the attempt was let through.
    pub(in crate::guard) since: Micros,
}

impl PendingAttempt {
    fn is_of(&self, device: Option<&DigestPair>) -> bool {
        match (self.device, device) {
            (Some(mine), Some(device)) => mine.is(device),
            (None, None) => true,
            _ => false,
        }
    }
}

/// An account's pending attempts, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PendingAttempts(Vec<PendingAttempt>);

impl PendingAttempts {
    /// Attempts whose outcome may still come.
    pub(in crate::guard) fn live(
        &self,
        ttl: u64,
        now: Micros,
    ) -> impl Iterator<Item = &PendingAttempt> {
        let lives = move |pending: &&PendingAttempt| now.since(pending.since) < ttl;
        self.0.iter().filter(lives)
    }

    /// Opens an attempt, unless the same request has one already or there is no room. Attempts
    /// past their time are removed first.
    pub(in crate::guard) fn open(
        &mut self,
        request: &DigestPair,
        attempt: PendingAttempt,
        ttl: u64,
    ) {
        self.prune(ttl, attempt.since);
        if self.0.len() < PENDING_MAX && !self.0.iter().any(|kept| kept.id.is(request)) {
            self.0.push(attempt);
        }
    }

    /// Ends the attempt of the same request, else the oldest attempt of the same device that is
    /// not past its time: an outcome says nothing about an attempt past its time.
    pub(in crate::guard) fn end(
        &mut self,
        request: Option<&DigestPair>,
        device: Option<&DigestPair>,
        ttl: u64,
        now: Micros,
    ) -> bool {
        let lives = |kept: &PendingAttempt| now.since(kept.since) < ttl;
        let same = |kept: &PendingAttempt| request.is_some_and(|request| kept.id.is(request));
        let by_request = self.0.iter().position(same);
        let ended = by_request.or_else(|| {
            let of_device = |kept: &PendingAttempt| kept.is_of(device) && lives(kept);
            self.0.iter().position(of_device)
        });
        ended.map(|index| self.0.remove(index)).is_some()
    }

    pub(super) fn prune(&mut self, ttl: u64, now: Micros) {
        self.0.retain(|kept| now.since(kept.since) < ttl);
    }

    pub(super) fn expires_at(&self, ttl: u64) -> Micros {
        let last = self.0.last();
        last.map_or(Micros(0), |kept| kept.since.plus(ttl))
    }

    pub(super) fn encode(&self, writer: &mut Writer) {
        writer.list(&self.0, |w, kept| {
            let weight = match kept.weight {
                Weight::Known => 0,
                Weight::New => 1,
                Weight::Missing => 2,
            };
            w.byte(weight << 1 | u8::from(kept.device.is_some()));
            w.short(kept.id);
            if let Some(device) = kept.device {
                w.short(device);
            }
            w.near(kept.since);
        });
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let attempts = reader.list(PENDING_MAX, |r| {
            let packed = r.byte()?;
            let weight = match packed >> 1 {
                0 => Weight::Known,
                1 => Weight::New,
                2 => Weight::Missing,
                _ => return Err(DecodeError::Corrupt),
            };
            let id = r.short()?;
            let device = match packed & 1 {
                0 => None,
                _ => Some(r.short()?),
            };
            Ok(PendingAttempt {
                id,
                device,
                weight,
                since: r.instant()?,
            })
        })?;
        Ok(Self(attempts))
    }
}

#[cfg(test)]
impl PendingAttempts {
    pub(super) fn full() -> Self {
        let attempt = PendingAttempt {
            id: Short(u64::MAX),
            device: Some(Short(u64::MAX)),
            weight: Weight::Missing,
            since: super::bounds::FAR_OFF,
        };
        Self(vec![attempt; PENDING_MAX])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Digest;

    const TTL: u64 = 100;

    fn who(n: u128) -> DigestPair {
        DigestPair {
            current: Digest(n << 64),
            previous: None,
        }
    }

    fn opened(attempts: &[(u128, Option<u128>)]) -> PendingAttempts {
        let mut pending = PendingAttempts::default();
        for (second, (id, device)) in attempts.iter().enumerate() {
            let attempt = PendingAttempt {
                id: Short::of(who(*id).current),
                device: device.map(|n| Short::of(who(n).current)),
                weight: Weight::New,
                since: Micros(second as u64),
            };
            pending.open(&who(*id), attempt, TTL);
        }
        pending
    }

    fn left(pending: &PendingAttempts) -> Vec<u64> {
        pending.0.iter().map(|kept| kept.id.0).collect()
    }

    #[test]
    fn g_pending_an_outcome_ends_its_own_attempt_else_the_oldest_of_its_device() {
        let mut pending = opened(&[(1, Some(7)), (2, Some(7)), (3, Some(8)), (4, None)]);
        let mut end = |id: Option<u128>, device: Option<u128>| {
            let (id, device) = (id.map(who), device.map(who));
            let ended = pending.end(id.as_ref(), device.as_ref(), TTL, Micros(5));
            (ended, left(&pending))
        };
        assert_eq!(end(Some(2), Some(9)), (true, vec![1, 3, 4]), "by its id");
        assert_eq!(end(Some(99), Some(8)), (true, vec![1, 4]), "by its device");
        assert_eq!(end(Some(99), Some(8)), (false, vec![1, 4]), "nobody's");
        assert_eq!(end(None, None), (true, vec![1]), "without a fingerprint");
    }

    #[test]
    fn g_pending_an_attempt_whose_time_is_over_takes_neither_an_outcome_nor_a_place() {
        let mut pending = opened(&[(1, Some(7)), (2, Some(7))]);
        assert!(pending.end(None, Some(&who(7)), TTL, Micros(TTL)));
        assert_eq!(left(&pending), [1], "the first was over already");
        assert!(pending.end(Some(&who(1)), Some(&who(7)), TTL, Micros(TTL)));

        let one = opened(&[(1, None)]).0[0];
        let since = |at| PendingAttempt {
            since: Micros(at),
            ..one
        };
        let mut full = PendingAttempts(vec![since(0); PENDING_MAX]);
        full.open(&who(9), since(TTL), TTL);
        assert_eq!(full.0.len(), 1);
    }

    #[test]
    fn g_pending_a_retried_check_has_one_attempt_and_sixteen_are_the_most() {
        let ids: Vec<(u128, Option<u128>)> = (0..20).map(|n| (n % 18, None)).collect();
        assert_eq!(opened(&ids).0.len(), PENDING_MAX);
        assert_eq!(opened(&[(1, None), (1, None)]).0.len(), 1);
    }
}
