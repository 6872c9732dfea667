//! Attempts that were let through and whose outcome is not known yet (G-PENDING).

use crate::key::Rotating;
use crate::time::Micros;

use super::codec::{DecodeError, Reader, Writer};
use super::sets::Short;

/// Pending attempts that an account keeps.
pub const PENDING_MAX: usize = 16;

/// As what a pending attempt weighs until its outcome is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// A known device's failure: on that device (K5).
    Known,
    /// Another device's: on the account (K4).
    New,
    /// One without a fingerprint: on the account (K4).
    Missing,
}

/// One attempt whose credential is being verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    pub(in crate::guard) id: Short,
    /// The device; `None` if its fingerprint is missing.
    pub(in crate::guard) device: Option<Short>,
    pub(in crate::guard) weight: Weight,
    /// When it was let through.
    pub(in crate::guard) since: Micros,
}

impl Pending {
    fn is_of(&self, device: Option<&Rotating>) -> bool {
        match (self.device, device) {
            (Some(mine), Some(device)) => mine.is(device),
            (None, None) => true,
            _ => false,
        }
    }
}

/// An account's pending attempts, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PendingAttempts(Vec<Pending>);

impl PendingAttempts {
    /// Those that may still end with an outcome.
    pub(in crate::guard) fn live(&self, ttl: u64, now: Micros) -> impl Iterator<Item = &Pending> {
        let lives = move |pending: &&Pending| now.since(pending.since) < ttl;
        self.0.iter().filter(lives)
    }

    /// Opens an attempt, unless the same request has one under way already.
    pub(in crate::guard) fn open(&mut self, request: &Rotating, attempt: Pending) {
        if self.0.len() < PENDING_MAX && !self.0.iter().any(|kept| kept.id.is(request)) {
            self.0.push(attempt);
        }
    }

    /// Ends the attempt of the same request, else the oldest one of the same device.
    pub(in crate::guard) fn end(
        &mut self,
        request: Option<&Rotating>,
        device: Option<&Rotating>,
    ) -> bool {
        let same = |kept: &Pending| request.is_some_and(|request| kept.id.is(request));
        let by_request = self.0.iter().position(same);
        let ended = by_request.or_else(|| self.0.iter().position(|kept| kept.is_of(device)));
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
            Ok(Pending {
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
        let attempt = Pending {
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

    fn who(n: u128) -> Rotating {
        Rotating {
            current: Digest(n << 64),
            previous: None,
        }
    }

    fn opened(attempts: &[(u128, Option<u128>)]) -> PendingAttempts {
        let mut pending = PendingAttempts::default();
        for (second, (id, device)) in attempts.iter().enumerate() {
            let attempt = Pending {
                id: Short::of(who(*id).current),
                device: device.map(|n| Short::of(who(n).current)),
                weight: Weight::New,
                since: Micros(second as u64),
            };
            pending.open(&who(*id), attempt);
        }
        pending
    }

    fn left(pending: &PendingAttempts) -> Vec<u64> {
        pending.0.iter().map(|kept| kept.id.0).collect()
    }

    #[test]
    fn g_pending_an_outcome_ends_its_own_attempt_else_the_oldest_of_its_device() {
        let mut pending = opened(&[(1, Some(7)), (2, Some(7)), (3, Some(8)), (4, None)]);
        assert!(pending.end(Some(&who(2)), Some(&who(9))), "by its id");
        assert_eq!(left(&pending), [1, 3, 4]);
        assert!(pending.end(Some(&who(99)), Some(&who(8))), "by its device");
        assert_eq!(left(&pending), [1, 4]);
        assert!(!pending.end(Some(&who(99)), Some(&who(8))), "nobody's");
        assert!(pending.end(None, None), "without a fingerprint");
        assert_eq!(left(&pending), [1]);
    }

    #[test]
    fn g_pending_a_retried_check_has_one_attempt_and_sixteen_are_the_most() {
        let ids: Vec<(u128, Option<u128>)> = (0..20).map(|n| (n % 18, None)).collect();
        assert_eq!(opened(&ids).0.len(), PENDING_MAX);
        assert_eq!(opened(&[(1, None), (1, None)]).0.len(), 1);
    }
}
