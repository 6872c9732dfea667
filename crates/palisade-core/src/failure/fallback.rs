//! What a limit falls back to while the store cannot be asked: figures and pure
//! selection. The caller charges local buckets accordingly.
//!
//! There is no unlimited variant for a class, so that no configuration can leave
//! auth unlimited.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use crate::decision::{Decision, Enforcement, ErrorCode, Mode, Outcome, Reason};
use crate::facts::FieldError;
use crate::rule::Rule;
use crate::time::{Micros, retry_after_seconds};

/// A share of a limit: 1 to 100 percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(u8);

impl Share {
    /// Half.
    pub const HALF: Self = Self(50);

    /// A share in percent that arrived as `field`.
    ///
    /// # Errors
    /// Zero, or more than the whole limit.
    pub const fn new(field: &'static str, percent: u8) -> Result<Self, FieldError> {
        match percent {
            1..=100 => Ok(Self(percent)),
            _ => Err(FieldError::new(field, "must be 1 to 100 percent")),
        }
    }

    /// In percent.
    #[must_use]
    pub const fn percent(self) -> u8 {
        self.0
    }

    /// This share of `limit`, rounded down, at least 1.
    #[must_use]
    pub fn of(self, limit: u64) -> u64 {
        let share = u128::from(limit) * u128::from(self.0) / 100;
        u64::try_from(share).unwrap_or(limit).max(1)
    }
}

/// Beyond a burst, how fast requests may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Smoothing {
    /// The burst.
    pub burst: NonZeroU32,
    /// Requests per second beyond it.
    pub per_second: NonZeroU32,
}

/// A local cap of one node, keyed by tenant and address prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalCap {
    /// Requests in any minute.
    pub per_minute: NonZeroU32,
    /// A token bucket on top of it.
    pub smoothing: Option<Smoothing>,
}

/// What a class of endpoints does in an outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassFallback {
    /// Each of its limits locally, at this share. Closes when the outage is prolonged.
    Share(Share),
    /// Closed: 503.
    Closed,
    /// The local cap of the caller's kind.
    Local,
}

/// Who calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Caller {
    /// A known tenant.
    Tenant,
    /// Nobody known.
    Anonymous,
}

/// How long the outage has lasted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outage {
    /// The store answered a probe not long ago, or none was due yet.
    Brief,
    /// The store has answered no availability probe for five minutes.
    Prolonged,
}

/// The rule for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallbackRule {
    /// Allowed: a health or metrics route.
    Exempt,
    /// Charge each limit locally, with [`Share::of`] the limit.
    Share(Share),
    /// Charge this cap locally, keyed tenant and prefix.
    Local(LocalCap),
    /// Refuse with [`closed`].
    Closed,
}

/// Figures of the fallback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FallbackPolicy {
    /// Cap of a known tenant.
    pub tenant: LocalCap,
    /// Cap of an anonymous caller.
    pub anonymous: LocalCap,
    /// What a class does; a class that is not listed has its caller's local cap.
    pub classes: BTreeMap<Box<str>, ClassFallback>,
    /// Paths that are always allowed; a trailing `/*` covers everything below.
    pub exempt: Vec<Box<str>>,
}

impl Default for FallbackPolicy {
    fn default() -> Self {
        const fn figure(n: u32) -> NonZeroU32 {
            NonZeroU32::MIN.saturating_add(n - 1)
        }
        Self {
            tenant: LocalCap {
                per_minute: figure(100),
                smoothing: Some(Smoothing {
                    burst: figure(50),
                    per_second: figure(2),
                }),
            },
            anonymous: LocalCap {
                per_minute: figure(50),
                smoothing: None,
            },
            classes: BTreeMap::from([
                ("auth".into(), ClassFallback::Share(Share::HALF)),
                ("admin".into(), ClassFallback::Closed),
            ]),
            exempt: vec!["/health".into(), "/health/*".into(), "/metrics".into()],
        }
    }
}

impl FallbackPolicy {
    /// The rule for a request of `class` to `path`. A class of its own is never
    /// exempt, whatever its path.
    #[must_use]
    pub fn select(&self, class: &str, path: &str, caller: Caller, outage: Outage) -> FallbackRule {
        let class = self.classes.get(class).copied();
        match (class.unwrap_or(ClassFallback::Local), outage) {
            (ClassFallback::Closed, _) | (ClassFallback::Share(_), Outage::Prolonged) => {
                FallbackRule::Closed
            }
            (ClassFallback::Share(share), Outage::Brief) => FallbackRule::Share(share),
            (ClassFallback::Local, _) if self.is_exempt(path) => FallbackRule::Exempt,
            (ClassFallback::Local, _) => FallbackRule::Local(self.cap(caller)),
        }
    }

    /// The local cap of a kind of caller.
    #[must_use]
    pub const fn cap(&self, caller: Caller) -> LocalCap {
        match caller {
            Caller::Tenant => self.tenant,
            Caller::Anonymous => self.anonymous,
        }
    }

    fn is_exempt(&self, path: &str) -> bool {
        self.exempt
            .iter()
            .any(|pattern| match pattern.strip_suffix('*') {
                Some(stem) => path.starts_with(stem),
                None => path == &**pattern,
            })
    }
}

/// Allowed by the local fallback.
#[must_use]
pub fn allowed(now: Micros) -> Decision {
    Decision {
        mode: Mode::Degraded,
        enforcement: Enforcement::Degraded,
        reasons: vec![reason(Outcome::Allow, None)],
        ..Decision::allow(now)
    }
}

/// Over a local cap: 429, and the body says that enforcement is degraded.
#[must_use]
pub fn exceeded(wait_us: u64, now: Micros) -> Decision {
    refused(
        ErrorCode::RateLimitExceeded,
        429,
        Mode::Degraded,
        wait_us,
        now,
    )
}

/// A closed class: 503 until the next probe, `wait_us` away.
#[must_use]
pub fn closed(wait_us: u64, now: Micros) -> Decision {
    refused(
        ErrorCode::ServiceUnavailable,
        503,
        Mode::FailClosed,
        wait_us,
        now,
    )
}

fn refused(error: ErrorCode, status: u16, mode: Mode, wait_us: u64, now: Micros) -> Decision {
    let seconds = Some(retry_after_seconds(wait_us));
    Decision {
        retry_after: seconds,
        mode,
        enforcement: Enforcement::Degraded,
        reasons: vec![reason(Outcome::Deny, seconds)],
        ..Decision::refuse(now, Outcome::Deny, Rule::F_FALLBACK, error, status)
    }
}

const fn reason(decision: Outcome, retry_after: Option<u64>) -> Reason {
    Reason {
        rule: Rule::F_FALLBACK,
        key: None,
        limit: None,
        decision,
        level: None,
        retry_after,
    }
}
