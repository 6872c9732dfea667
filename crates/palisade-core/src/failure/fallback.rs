//! Fallbacks of limits while the store cannot be asked: settings, and a pure function that selects
//! one of them. The caller charges local buckets accordingly.
//!
//! Auth has no unlimited variant: no configuration can leave it without a limit.

use std::num::{NonZeroU32, NonZeroU64};

use crate::decision::{Decision, Enforcement, ErrorCode, Mode, Outcome, Reason};
use crate::facts::FieldError;
use crate::limit::{Algorithm, BucketSpec, SpecError, Window};
use crate::policy::{ClassKind, OnStoreFailure, WhenProlonged};
use crate::rule::Rule;
use crate::time::{MINUTE, Micros, SECOND, retry_after_seconds};

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

    /// The share in percent.
    #[must_use]
    pub const fn percent(self) -> u8 {
        self.0
    }

    /// Returns this share of `limit`, rounded down, at least 1.
    #[must_use]
    pub fn of(self, limit: u64) -> NonZeroU64 {
        let share = limit.saturating_mul(u64::from(self.0)) / 100;
        NonZeroU64::new(share).unwrap_or(NonZeroU64::MIN)
    }

    /// Returns `spec` with its limit and burst cut to this share, for a request of `cost`. The
    /// burst keeps room for the whole cost: if a costly request took only the smaller burst, the
    /// bucket would be ready for the next one sooner than the policy's own (D32).
    #[must_use]
    pub fn of_spec(self, spec: &BucketSpec, cost: u64) -> BucketSpec {
        let cut = |burst| {
            let limit = self.of(spec.limit());
            BucketSpec::new(spec.algorithm(), limit, spec.window(), burst)
        };
        // Rounding can make a burst too long to refill; the limit is then the burst.
        let burst = self.of(spec.capacity());
        let cost = NonZeroU64::new(cost.min(spec.capacity()));
        cut(Some(cost.map_or(burst, |cost| burst.max(cost))))
            .or_else(|_| cut(None))
            .unwrap_or(*spec)
    }
}

/// Pace of requests beyond a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BurstPace {
    /// The burst.
    pub burst: NonZeroU32,
    /// Requests per second beyond it.
    pub per_second: NonZeroU32,
}

/// A local cap of one node, keyed by tenant and address prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalCap {
    per_minute: BucketSpec,
    smoothing: Option<BucketSpec>,
}

impl LocalCap {
    /// At most `per_minute` in any minute and, beyond a burst, no faster than
    /// `smoothing` says.
    ///
    /// # Errors
    /// A burst that takes too long to refill.
    pub fn new(per_minute: NonZeroU32, smoothing: Option<BurstPace>) -> Result<Self, SpecError> {
        let algorithm = Algorithm::default_for(per_minute.get().into());
        let smooth = |BurstPace { burst, per_second }| {
            let window = Window::Span(SECOND);
            BucketSpec::new(Algorithm::TokenBucket, per_second, window, Some(burst))
        };
        Ok(Self {
            per_minute: BucketSpec::new(algorithm, per_minute, Window::Span(MINUTE), None)?,
            smoothing: smoothing.map(smooth).transpose()?,
        })
    }

    /// The cap of one address on health, metrics and exempt routes: 60 requests in any minute.
    ///
    /// # Errors
    /// None: 60 is a valid limit.
    pub fn exempt() -> Result<Self, SpecError> {
        Self::new(NonZeroU32::MIN.saturating_add(59), None)
    }

    /// The buckets to charge, all or nothing.
    pub fn specs(&self) -> impl Iterator<Item = &BucketSpec> {
        std::iter::once(&self.per_minute).chain(&self.smoothing)
    }
}

/// Whether the caller of a request is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Caller {
    /// A known tenant.
    Tenant,
    /// An unknown caller.
    Anonymous,
}

/// The stage of an outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outage {
    /// The store answered a probe not long ago, or none was due yet.
    Brief,
    /// The store has answered no availability probe for five minutes.
    Prolonged,
}

/// Facts about a request that the store did not decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AffectedRequest<'a> {
    /// The kind of the request's class.
    pub class: ClassKind,
    /// The behaviour of its class when the store stays down.
    pub prolonged: WhenProlonged,
    /// Method of the request.
    pub method: &'a str,
    /// Path of the request.
    pub path: &'a str,
    /// The caller.
    pub caller: Caller,
    /// The failure rule that its limits ask for; see [`strictest`].
    pub limits: OnStoreFailure,
}

/// Fallback that applies to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallbackRule {
    /// Charge only [`LocalCap::exempt`], locally and keyed by address prefix (D36).
    Exempt,
    /// Charge each limit locally, cut by [`Share::of_spec`].
    Share(Share),
    /// Charge this cap locally, keyed by tenant and address prefix.
    Local {
        /// The cap.
        cap: LocalCap,
        /// The mode that answers report: `degraded`, or `fail_open` where a limit asked for it.
        mode: Mode,
    },
    /// Refuse the request with [`closed`].
    Closed,
}

/// Settings of the fallback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FallbackPolicy {
    /// Share of each limit of an auth class that stays in force.
    pub auth: Share,
    /// Cap of a known tenant.
    pub tenant: LocalCap,
    /// Cap of an anonymous caller.
    pub anonymous: LocalCap,
    /// Paths that GET and HEAD requests may always reach, unless their class is auth or admin; a
    /// trailing `/*` covers everything below.
    pub exempt: Vec<Box<str>>,
}

impl Default for FallbackPolicy {
    #[expect(
        clippy::expect_used,
        reason = "the default figures are constants that a test builds"
    )]
    fn default() -> Self {
        const fn figure(n: u32) -> NonZeroU32 {
            NonZeroU32::MIN.saturating_add(n - 1)
        }
        let smoothing = BurstPace {
            burst: figure(50),
            per_second: figure(2),
        };
        Self {
            auth: Share::HALF,
            tenant: LocalCap::new(figure(100), Some(smoothing)).expect("a valid default"),
            anonymous: LocalCap::new(figure(50), None).expect("a valid default"),
            exempt: vec!["/health".into(), "/health/*".into(), "/metrics".into()],
        }
    }
}

impl FallbackPolicy {
    /// Selects the fallback for one request.
    #[must_use]
    pub fn select(&self, request: AffectedRequest<'_>, outage: Outage) -> FallbackRule {
        let closes = request.prolonged == WhenProlonged::Closed;
        match request.class {
            // First: a health check must be answered however long the outage lasts.
            ClassKind::Ordinary if self.is_exempt(request) => FallbackRule::Exempt,
            _ if closes && outage == Outage::Prolonged => FallbackRule::Closed,
            ClassKind::Admin => FallbackRule::Closed,
            ClassKind::Auth => self.auth(request.limits),
            ClassKind::Ordinary => self.ordinary(request),
        }
    }

    /// Selects the rule for an auth class. The result is never unlimited, whatever the limits ask
    /// for, and never closed by the mere length of an outage: that would be a kill switch for an
    /// attacker who can keep the store away.
    const fn auth(&self, limits: OnStoreFailure) -> FallbackRule {
        match limits {
            OnStoreFailure::Closed => FallbackRule::Closed,
            OnStoreFailure::Fallback | OnStoreFailure::OpenBounded => {
                FallbackRule::Share(self.auth)
            }
        }
    }

    const fn ordinary(&self, request: AffectedRequest<'_>) -> FallbackRule {
        match request.limits {
            OnStoreFailure::Closed => FallbackRule::Closed,
            OnStoreFailure::Fallback => FallbackRule::Local {
                cap: self.cap(request.caller),
                mode: Mode::Degraded,
            },
            OnStoreFailure::OpenBounded => FallbackRule::Local {
                cap: self.anonymous,
                mode: Mode::FailOpen,
            },
        }
    }

    const fn cap(&self, caller: Caller) -> LocalCap {
        match caller {
            Caller::Tenant => self.tenant,
            Caller::Anonymous => self.anonymous,
        }
    }

    /// Whether the path is exempt. A path with `..` or `%` never is: the application may read it
    /// as another path.
    fn is_exempt(&self, request: AffectedRequest<'_>) -> bool {
        let path = request.path;
        let is_read = matches!(request.method, "GET" | "HEAD");
        let plain = !path.contains("..") && !path.contains('%');
        is_read
            && plain
            && self
                .exempt
                .iter()
                .any(|pattern| match pattern.strip_suffix('*') {
                    Some(stem) => path.starts_with(stem),
                    None => path == &**pattern,
                })
    }
}

/// Returns the strictest failure rule among a request's limits: closed if one limit is closed,
/// bounded open only if all are.
#[must_use]
pub fn strictest(limits: impl IntoIterator<Item = OnStoreFailure>) -> OnStoreFailure {
    const fn strictness(limit: OnStoreFailure) -> u8 {
        match limit {
            OnStoreFailure::OpenBounded => 0,
            OnStoreFailure::Fallback => 1,
            OnStoreFailure::Closed => 2,
        }
    }
    limits
        .into_iter()
        .max_by_key(|limit| strictness(*limit))
        .unwrap_or_default()
}

/// A decision of the local fallback that allows the request.
#[must_use]
pub fn allowed(mode: Mode, now: Micros) -> Decision {
    Decision {
        mode,
        enforcement: Enforcement::Degraded,
        reasons: vec![reason(Outcome::Allow, None)],
        ..Decision::allow(now)
    }
}

/// A refusal because a local cap is exceeded: 429, and the body says that enforcement is degraded.
#[must_use]
pub fn exceeded(mode: Mode, wait_us: u64, now: Micros) -> Decision {
    refused(ErrorCode::RateLimitExceeded, mode, wait_us, now)
}

/// A refusal because the class is closed: 503 until the next probe, `wait_us` away.
#[must_use]
pub fn closed(wait_us: u64, now: Micros) -> Decision {
    let error = ErrorCode::ServiceUnavailable;
    refused(error, Mode::FailClosed, wait_us, now)
}

/// A refusal of a request that waited too long for its turn: 503, to be retried at once. The store
/// does answer, so no fallback may stand in for it (F-CONFLICT).
#[must_use]
pub fn conflicted(now: Micros) -> Decision {
    let mut decision = closed(0, now);
    decision.rule = Some(Rule::F_CONFLICT);
    for reason in &mut decision.reasons {
        reason.rule = Rule::F_CONFLICT;
    }
    decision
}

fn refused(error: ErrorCode, mode: Mode, wait_us: u64, now: Micros) -> Decision {
    let seconds = Some(retry_after_seconds(wait_us));
    Decision {
        retry_after: seconds,
        mode,
        enforcement: Enforcement::Degraded,
        reasons: vec![reason(Outcome::Deny, seconds)],
        ..Decision::refuse(now, Outcome::Deny, Rule::F_FALLBACK, error)
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
