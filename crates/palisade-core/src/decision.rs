//! The answer to one request, with its reasons. A refusal is a value, not an error.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::challenge::{OfferedChallenge, PassNote};
use crate::key::Digest;
use crate::policy::QuotaUnit;
use crate::rule::Rule;
use crate::time::{MINUTE, Micros, SECOND};

/// Outcome of a decision: what the caller should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Let the request pass.
    Allow,
    /// Do not verify the credential now: answer 429 or offer a challenge.
    SoftBlock,
    /// Refuse: a limit, a quota or the lockout denies.
    Deny,
    /// Refuse: the guard blocks, and no challenge frees from it.
    HardBlock,
}

impl Outcome {
    /// Name of the outcome in answers' JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::SoftBlock => "soft_block",
            Self::Deny => "deny",
            Self::HardBlock => "hard_block",
        }
    }
}

/// A step of the penalty ladder (G-LADDER).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Level {
    /// 15 seconds.
    L1,
    /// 60 seconds.
    L2,
    /// 5 minutes.
    L3,
    /// 30 minutes.
    L4,
    /// 6 hours.
    L5,
    /// 24 hours.
    L6,
}

impl Level {
    /// All levels, the lowest first.
    pub const ALL: [Self; 6] = [Self::L1, Self::L2, Self::L3, Self::L4, Self::L5, Self::L6];

    /// Returns the duration of a block of this level, in microseconds.
    #[must_use]
    pub const fn duration(self) -> u64 {
        match self {
            Self::L1 => 15 * SECOND,
            Self::L2 => MINUTE,
            Self::L3 => 5 * MINUTE,
            Self::L4 => 30 * MINUTE,
            Self::L5 => 360 * MINUTE,
            Self::L6 => 1440 * MINUTE,
        }
    }

    /// Number of the level, 1 to 6.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8 + 1
    }

    /// The level with this number, if it is 1 to 6.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::L1),
            2 => Some(Self::L2),
            3 => Some(Self::L3),
            4 => Some(Self::L4),
            5 => Some(Self::L5),
            6 => Some(Self::L6),
            _ => None,
        }
    }

    /// One level up, at most L6.
    #[must_use]
    pub const fn up(self) -> Self {
        match Self::from_number(self.number() + 1) {
            Some(level) => level,
            None => Self::L6,
        }
    }

    /// One level down, at least L1.
    #[must_use]
    pub const fn down(self) -> Self {
        match Self::from_number(self.number() - 1) {
            Some(level) => level,
            None => Self::L1,
        }
    }
}

/// Mode in which a decision was reached. Every answer carries it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The store was asked and answered.
    #[default]
    Normal,
    /// The store could not be asked; refused.
    FailClosed,
    /// The store could not be asked; allowed behind local caps.
    FailOpen,
    /// Decided by bounded local counters.
    Degraded,
    /// The kill switch is on: nothing was asked and nothing is limited.
    Disabled,
}

impl Mode {
    /// Name of the mode in answers' JSON and in metric labels.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::FailClosed => "fail_closed",
            Self::FailOpen => "fail_open",
            Self::Degraded => "degraded",
            Self::Disabled => "disabled",
        }
    }

    /// Whether the store should have been asked and could not be.
    #[must_use]
    pub const fn is_of_outage(self) -> bool {
        matches!(self, Self::FailClosed | Self::FailOpen | Self::Degraded)
    }
}

/// Key of the guard. `K1` is the address prefix, `K2` prefix and user agent, `K3` prefix and
/// device, `K4` the account, `K5` account and device, `device` the device everywhere, `lockout`
/// user name and prefix, and `destination` and `range` those of a one-time code that is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum KeyKind {
    /// K1: the address prefix.
    #[serde(rename = "K1")]
    Prefix,
    /// K2: prefix and user agent.
    #[serde(rename = "K2")]
    PrefixAgent,
    /// K3: prefix and device.
    #[serde(rename = "K3")]
    PrefixDevice,
    /// K4: the account.
    #[serde(rename = "K4")]
    Account,
    /// K5: account and device.
    #[serde(rename = "K5")]
    AccountDevice,
    /// The device everywhere.
    #[serde(rename = "device")]
    Device,
    /// Username and prefix (lockout).
    #[serde(rename = "lockout")]
    Lockout,
    /// Destination of a one-time code.
    #[serde(rename = "destination")]
    Destination,
    /// Range of destinations: a calling code, first digits, or a mail domain.
    #[serde(rename = "range")]
    Range,
}

impl KeyKind {
    /// Returns the name of the key in answers, listings and rules.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Prefix => "K1",
            Self::PrefixAgent => "K2",
            Self::PrefixDevice => "K3",
            Self::Account => "K4",
            Self::AccountDevice => "K5",
            Self::Device => "device",
            Self::Lockout => "lockout",
            Self::Destination => "destination",
            Self::Range => "range",
        }
    }
}

/// One reason of a decision: a rule, and the outcome that it asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = DecisionReason))]
pub struct Reason {
    /// Id of the rule.
    pub rule: Rule,
    /// Guard key that the rule is about; absent for limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyKind>,
    /// Name of the limit that the rule is about; absent for the guard.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub limit: Option<Arc<str>>,
    /// Outcome that the rule asks for.
    pub decision: Outcome,
    /// Ladder level of the block; null if the reason is not a block.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub level: Option<Level>,
    /// Whole seconds to wait; null if there is nothing to wait for.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub retry_after: Option<u64>,
}

/// State of one bucket: its limit, the units left, and when it resets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Reading))]
pub struct LimitReading {
    /// The limit's name in the policy.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub name: Arc<str>,
    /// Fact that the limit counts by: `ip`, `user`, `org`, `token`, `client`, `api_key`, `global`
    /// or `shared`.
    pub scope: &'static str,
    /// The request's class.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub class: Arc<str>,
    /// Size of the limit, in units.
    pub limit: u64,
    /// Units left now.
    pub remaining: u64,
    /// Unix time in seconds, rounded up, at which the whole limit is available again.
    pub reset: u64,
    /// Seconds until this request would fit; null if it fits now.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub retry_after: Option<u64>,
    /// Window in seconds, rounded up; for header parameters.
    #[serde(skip)]
    pub window_seconds: u64,
    /// Unit of the numbers, if the policy defines it; absent for requests and bytes.
    #[serde(skip_serializing_if = "QuotaUnit::is_usual")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, required = false))]
    pub unit: QuotaUnit,
    /// The bucket's digest; header parameters show a digest of it.
    #[serde(skip)]
    pub partition: Digest,
    /// True for a limit in shadow mode: it reports and never denies.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[cfg_attr(feature = "openapi", schema(required = false))]
    pub shadow: bool,
}

/// Machine-readable cause of a refusal, in the answer and in the client's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// An IP, organisation, token, or shared limit, or a guard block.
    RateLimitExceeded,
    /// A user's limit.
    UserRateLimitExceeded,
    /// An OAuth client's limit.
    ClientRateLimitExceeded,
    /// An API key's monthly quota.
    QuotaExceeded,
    /// The OWASP lockout.
    AccountLocked,
    /// Repeated lockouts: a challenge must be passed first (A-CAPTCHA).
    ChallengeRequired,
    /// Global throttle, closed class, or store trouble.
    ServiceUnavailable,
    /// No API key, or an unknown one.
    InvalidApiKey,
    /// A missing scope.
    Forbidden,
    /// The cost can never fit the limit.
    CostExceedsLimit,
}

impl ErrorCode {
    /// Name of the error in answers' JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RateLimitExceeded => "rate_limit_exceeded",
            Self::UserRateLimitExceeded => "user_rate_limit_exceeded",
            Self::ClientRateLimitExceeded => "client_rate_limit_exceeded",
            Self::QuotaExceeded => "quota_exceeded",
            Self::AccountLocked => "account_locked",
            Self::ChallengeRequired => "challenge_required",
            Self::ServiceUnavailable => "service_unavailable",
            Self::InvalidApiKey => "invalid_api_key",
            Self::Forbidden => "forbidden",
            Self::CostExceedsLimit => "cost_exceeds_limit",
        }
    }

    /// The HTTP status of a refusal of this kind.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::RateLimitExceeded
            | Self::UserRateLimitExceeded
            | Self::ClientRateLimitExceeded
            | Self::QuotaExceeded
            | Self::AccountLocked
            | Self::ChallengeRequired => 429,
            Self::ServiceUnavailable => 503,
            Self::InvalidApiKey => 401,
            Self::Forbidden => 403,
            Self::CostExceedsLimit => 400,
        }
    }

    /// True if the caller has used up a limit or a quota, or is locked out. False for a store that
    /// failed, a missing right and a cost that is impossible.
    #[must_use]
    pub const fn is_exceeded(self) -> bool {
        match self {
            Self::RateLimitExceeded
            | Self::UserRateLimitExceeded
            | Self::ClientRateLimitExceeded
            | Self::QuotaExceeded
            | Self::AccountLocked
            | Self::ChallengeRequired => true,
            Self::ServiceUnavailable
            | Self::InvalidApiKey
            | Self::Forbidden
            | Self::CostExceedsLimit => false,
        }
    }

    /// True if the same request may be let through later.
    #[must_use]
    pub const fn is_over_in_time(self) -> bool {
        self.is_exceeded() || matches!(self, Self::ServiceUnavailable)
    }
}

/// Challenge that the application should require before the next attempt (A-CAPTCHA).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Challenge {
    /// A captcha.
    #[default]
    Captcha,
    /// A verification over another channel.
    OutOfBand,
}

/// Challenge as an answer shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = ShownChallenge))]
#[serde(untagged)]
pub enum ShownChallenge<'a> {
    /// One that the client can solve now.
    #[cfg_attr(feature = "openapi", schema(value_type = OfferedChallenge))]
    Offered(&'a OfferedChallenge),
    /// One that the application presents itself.
    Named(Challenge),
}

/// Note of an answer about the lockout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum LockoutNote {
    /// The attempt had no `username`, so that no lockout counts it.
    NotAsked,
}

/// State of an API key's quota, for `X-Quota-*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct QuotaReading {
    /// Monthly quota; `None` is unlimited.
    pub limit: Option<u64>,
    /// Used this month, overage included.
    pub used: u64,
    /// First instant of the next month, Unix seconds.
    pub reset: u64,
}

impl QuotaReading {
    /// Returns the remaining quota; `None` is unlimited.
    #[must_use]
    pub fn remaining(&self) -> Option<u64> {
        self.limit.map(|limit| limit.saturating_sub(self.used))
    }
}

/// Whether enforcement itself is impaired, for `X-RateLimit-Status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Enforcement {
    /// Limits are enforced as configured.
    #[default]
    Full,
    /// Local counters or caps stand in for the store.
    Degraded,
    /// The operator's kill switch is on.
    Disabled,
}

/// Buckets of a decision. One is stored inline, without an allocation: most decisions have no
/// more.
pub type Readings = SmallVec<[LimitReading; 1]>;

/// The answer to one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The outcome.
    pub outcome: Outcome,
    /// Ladder level of a block.
    pub level: Option<Level>,
    /// Whole seconds to wait.
    pub retry_after: Option<u64>,
    /// The mode in which the decision was reached.
    pub mode: Mode,
    /// The rule that decided; `None` for allow.
    pub rule: Option<Rule>,
    /// All candidates that the decision was chosen from.
    pub reasons: Vec<Reason>,
    /// Every bucket that was read, most constraining first; as a rule there is one.
    pub limits: Readings,
    /// Machine-readable error; `None` for allow.
    pub error: Option<ErrorCode>,
    /// HTTP status an enforcing surface answers with.
    pub status: u16,
    /// Progressive delay to apply before answering (A-BACKOFF).
    pub delay_ms: Option<u32>,
    /// Challenge to offer (A-CAPTCHA).
    pub challenge: Option<Challenge>,
    /// Challenge that this client can solve now, where the policy uses challenges (C-KIND).
    pub offer: Option<Box<OfferedChallenge>>,
    /// Fate of the token or pass that the client showed.
    pub pass: Option<PassNote>,
    /// Set if the lockout could not be asked.
    pub lockout: Option<LockoutNote>,
    /// Receipt by which the charge can be given back; only if the request asked for one.
    pub receipt: Option<Box<str>>,
    /// Reservation of the money that a send may cost (S-SPEND).
    pub reservation: Option<Box<str>>,
    /// Names of the limits on requests in progress that apply but were not charged, because the
    /// request asked for no slot (B-SLOT).
    pub not_asked: Option<Box<[Arc<str>]>>,
    /// Time spent in line for a slot, in milliseconds (B-FAIR).
    pub waited_ms: Option<u32>,
    /// Limits that have reached a threshold (B-WARN).
    pub warnings: Option<Box<[ThresholdWarning]>>,
    /// Whether an attack is on, if one would tighten a limit that applied (AD-ATTACK).
    pub attack: Option<AttackNote>,
    /// API-key quota, if one applied.
    pub quota: Option<QuotaReading>,
    /// Whether enforcement was impaired.
    pub enforcement: Enforcement,
    /// The endpoint class, for labels; never an identifier.
    pub class: Option<Arc<str>>,
    /// Instant of the decision, on the clock that it was judged by.
    pub at: Micros,
    /// Revisions of the guard records it was computed from: (kind name, revision).
    pub revisions: Vec<(&'static str, u64)>,
    /// The answer that a flow of the guard in shadow mode would have given.
    pub shadow: Option<Box<ShadowAnswer>>,
}

/// State of the attack on a request's class (AD-ATTACK).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttackNote {
    /// An attack is on.
    pub is_on: bool,
    /// The figure that is in force, for this caller, of the most constraining limit that an attack
    /// tightens.
    pub limit_in_force: u64,
}

/// A limit that has reached a threshold (B-WARN).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ThresholdWarning {
    /// The limit's name.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub limit: Arc<str>,
    /// Highest threshold of `warn_at` that is reached, as a share of the limit, for example 0.8.
    #[serde(serialize_with = "as_fraction", rename = "share")]
    #[cfg_attr(feature = "openapi", schema(value_type = f64))]
    pub share_permille: u16,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn as_fraction<S: serde::Serializer>(permille: &u16, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(f64::from(*permille) / 1000.0)
}

/// Answer that a flow of the guard in shadow mode would have given if it were enforced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ShadowAnswer {
    /// Outcome of the decision.
    pub decision: Outcome,
    /// Ladder level of a block.
    pub level: Option<Level>,
    /// Whole seconds to wait.
    pub retry_after: Option<u64>,
    /// The rule that would have decided.
    pub rule: Option<Rule>,
    /// All reasons that the decision was chosen from.
    pub reasons: Vec<Reason>,
    /// Progressive delay in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u32>,
    /// Challenge to offer to the client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub challenge: Option<Challenge>,
}

impl Decision {
    /// Whole seconds that the client should wait, at least one; `None` where waiting does not
    /// help.
    #[must_use]
    pub fn wait(&self) -> Option<u64> {
        let helps = self.error.is_some_and(ErrorCode::is_over_in_time);
        helps.then(|| self.retry_after.unwrap_or(1).max(1))
    }

    /// The decision that allows, without reasons.
    #[must_use]
    pub const fn allow(at: Micros) -> Self {
        Self {
            outcome: Outcome::Allow,
            level: None,
            retry_after: None,
            mode: Mode::Normal,
            rule: None,
            reasons: Vec::new(),
            limits: Readings::new_const(),
            error: None,
            status: 200,
            delay_ms: None,
            challenge: None,
            offer: None,
            pass: None,
            lockout: None,
            receipt: None,
            reservation: None,
            not_asked: None,
            waited_ms: None,
            warnings: None,
            attack: None,
            quota: None,
            enforcement: Enforcement::Full,
            class: None,
            at,
            revisions: Vec::new(),
            shadow: None,
        }
    }

    /// The challenge as answers show it: one that can be solved now, or the name of one that the
    /// application presents itself.
    #[must_use]
    pub fn shown_challenge(&self) -> Option<ShownChallenge<'_>> {
        let offered = self.offer.as_deref().map(ShownChallenge::Offered);
        offered.or_else(|| self.challenge.map(ShownChallenge::Named))
    }

    /// True if only shadow mode let the caller go on.
    #[must_use]
    pub fn would_refuse(&self) -> bool {
        let refuses = |shadow: &ShadowAnswer| shadow.decision != Outcome::Allow;
        self.shadow.as_deref().is_some_and(refuses)
    }

    /// Turns the decision into that of a flow in shadow mode: it allows, and carries the refusal
    /// that it replaces.
    #[must_use]
    pub fn in_shadow(self) -> Self {
        let shadow = ShadowAnswer {
            decision: self.outcome,
            level: self.level,
            retry_after: self.retry_after,
            rule: self.rule,
            reasons: self.reasons,
            delay_ms: self.delay_ms,
            challenge: self.challenge,
        };
        Self {
            shadow: Some(Box::new(shadow)),
            lockout: self.lockout,
            mode: self.mode,
            revisions: self.revisions,
            ..Self::allow(self.at)
        }
    }

    /// A refusal by `rule`.
    #[must_use]
    pub const fn refuse(at: Micros, outcome: Outcome, rule: Rule, error: ErrorCode) -> Self {
        let mut decision = Self::allow(at);
        decision.outcome = outcome;
        decision.rule = Some(rule);
        decision.error = Some(error);
        decision.status = error.status();
        decision
    }

    /// True if the caller may go on.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        matches!(self.outcome, Outcome::Allow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g_ladder_lasts_as_specified() {
        let seconds: Vec<u64> = Level::ALL.iter().map(|l| l.duration() / SECOND).collect();
        assert_eq!(seconds, [15, 60, 300, 1800, 21_600, 86_400]);
        assert_eq!(Level::L6.up(), Level::L6);
        assert_eq!(Level::L1.down(), Level::L1);
    }

    #[test]
    fn strictness_orders_hard_block_deny_soft_block_allow() {
        assert!(Outcome::HardBlock > Outcome::Deny);
        assert!(Outcome::Deny > Outcome::SoftBlock);
        assert!(Outcome::SoftBlock > Outcome::Allow);
    }
}
