//! Settings of the guard. The defaults come from the specification (spec/guard.md); the bounds at
//! the top keep a record within its size, whatever the configuration says.

use crate::decision::Level;
use crate::record::Flow;
use crate::send::SendPolicy;
use crate::time::{DAY, HOUR, MINUTE, SECOND};

/// Highest score a key can have.
pub const SCORE_MAX: u8 = 24;
/// Most members of a correlation set; a threshold above it could never be met.
pub const SET_MAX: usize = 16;
/// Largest budget threshold: so many instants of failures are kept.
pub const BUDGET_MAX: usize = 64;
/// Largest micro-cap of a known device.
pub const MICRO_CAP_MAX: usize = 10;
/// Largest count of soft blocks or rotation episodes that a rule may ask for.
pub const HISTORY_MAX: usize = 8;
/// Most new fingerprints per prefix that may get an entry within a window.
pub const FINGERPRINTS_MAX: usize = 50;
/// Most new fingerprints per account that may get an entry within a window.
pub const NEW_DEVICES_MAX: usize = 10;
/// Largest number of fingerprint changes that G-CHURN may ask for.
pub const CHANGES_MAX: usize = 6;

/// All settings of the guard.
#[derive(Clone, Debug, PartialEq)]
pub struct GuardPolicy {
    /// Password logins.
    pub login: FlowPolicy,
    /// One-time codes and step-up checks.
    pub otp: FlowPolicy,
    /// Heavy endpoints.
    pub api: ApiPolicy,
    /// Sending of one-time codes.
    pub send: SendPolicy,
    /// Durations of blocks by level, and the memory of levels (G-LADDER).
    pub ladder: LadderPolicy,
    /// Decay of scores (G-DECAY).
    pub decay: DecayPolicy,
    /// Time for which a `request_id` is remembered, in microseconds (G-ONCE).
    pub once_window: u64,
    /// Time for which a known device or a session is remembered after its last use, in
    /// microseconds.
    pub familiar_for: u64,
}

impl GuardPolicy {
    /// Settings of login or OTP; `None` for the heavy API.
    #[must_use]
    pub const fn flow(&self, flow: Flow) -> Option<&FlowPolicy> {
        match flow {
            Flow::Login => Some(&self.login),
            Flow::Otp => Some(&self.otp),
            Flow::Api => None,
        }
    }

    /// Whether the answers of `flow` bind.
    #[must_use]
    pub const fn mode(&self, flow: Flow) -> GuardMode {
        match flow {
            Flow::Login => self.login.mode,
            Flow::Otp => self.otp.mode,
            Flow::Api => self.api.mode,
        }
    }

    /// Whether the answers to sends bind.
    #[must_use]
    pub fn send_mode(&self) -> GuardMode {
        self.send.mode.unwrap_or(self.otp.mode)
    }

    /// Returns the duration of a block of `level`.
    pub(crate) const fn duration(&self, level: Level) -> u64 {
        self.ladder.duration(level)
    }
}

impl Default for GuardPolicy {
    fn default() -> Self {
        Self {
            login: FlowPolicy::login(),
            otp: FlowPolicy::otp(),
            api: ApiPolicy::default(),
            send: SendPolicy::default(),
            ladder: LadderPolicy::default(),
            decay: DecayPolicy::default(),
            once_window: 10 * MINUTE,
            familiar_for: 365 * DAY,
        }
    }
}

/// Whether a flow's answers are enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GuardMode {
    /// Answers are enforced.
    #[default]
    Enforce,
    /// Rules run, count and show what they would have answered; the decision is ALLOW.
    Shadow,
}

impl GuardMode {
    /// The name of the mode in policies.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Shadow => "shadow",
        }
    }
}

/// Devices of the owner that strangers cannot lock out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OwnerLane {
    /// No device: an account's block binds everybody.
    #[default]
    Off,
    /// A trusted session device.
    Trusted,
    /// A trusted session device, and a known device of MEDIUM or HIGH confidence.
    Known,
}

/// Answer to a login from a country that the account has never succeeded from (P-GUARD).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NewCountry {
    /// Countries are not looked at, and none is remembered.
    #[default]
    Off,
    /// A soft block, from which a challenge frees.
    Challenge,
}

/// Settings of login or OTP.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowPolicy {
    /// If off, every command of the flow is allowed and nothing is kept.
    pub enabled: bool,
    /// Whether the flow's answers bind.
    pub mode: GuardMode,
    /// Devices of the owner that strangers cannot lock out.
    pub owner_lane: OwnerLane,
    /// Whether pending attempts count in later checks (G-PENDING).
    pub pending: bool,
    /// Time for which an attempt without an outcome is pending, in microseconds.
    pub pending_ttl: u64,
    /// Answer to a login from a new country (P-GUARD).
    pub new_country: NewCountry,
    /// Points per failure.
    pub scores: ScorePolicy,
    /// Bands of a score (G-THRESHOLD).
    pub thresholds: ThresholdPolicy,
    /// The daily failure budget (G-BUDGET).
    pub budget: BudgetPolicy,
    /// Repeated soft blocks (G-EQUILIBRIUM).
    pub equilibrium: EquilibriumPolicy,
    /// Patterns over several requests.
    pub correlation: CorrelationPolicy,
}

impl FlowPolicy {
    /// Default settings of the login flow.
    #[must_use]
    pub fn login() -> Self {
        Self {
            enabled: true,
            mode: GuardMode::Enforce,
            owner_lane: OwnerLane::Off,
            pending: true,
            pending_ttl: 15 * SECOND,
            new_country: NewCountry::Off,
            scores: ScorePolicy {
                known: 2,
                new: 3,
                missing: 4,
                repeat_missing: 6,
                repeat_missing_window: 30 * MINUTE,
                spray: 5,
            },
            thresholds: ThresholdPolicy {
                soft: 5,
                hard: 8,
                severe: 12,
                spray_severe: 12,
            },
            budget: BudgetPolicy::login(),
            equilibrium: EquilibriumPolicy::default(),
            correlation: CorrelationPolicy::default(),
        }
    }

    /// Default settings of the OTP flow.
    #[must_use]
    pub fn otp() -> Self {
        Self {
            enabled: true,
            mode: GuardMode::Enforce,
            owner_lane: OwnerLane::Off,
            pending: true,
            pending_ttl: 15 * SECOND,
            new_country: NewCountry::Off,
            scores: ScorePolicy {
                known: 4,
                new: 5,
                missing: 6,
                repeat_missing: 8,
                repeat_missing_window: 30 * MINUTE,
                spray: 5,
            },
            thresholds: ThresholdPolicy {
                soft: 4,
                hard: 7,
                severe: 10,
                spray_severe: 12,
            },
            budget: BudgetPolicy::otp(),
            equilibrium: EquilibriumPolicy::default(),
            correlation: CorrelationPolicy::default(),
        }
    }
}

/// Points that a failure adds.
#[derive(Clone, Debug, PartialEq)]
pub struct ScorePolicy {
    /// Added to K5 by a failure of a known device (G-SCORE-KNOWN).
    pub known: u8,
    /// Added to K4 by a failure of a device that is not known (G-SCORE-NEW).
    pub new: u8,
    /// Added to K2 by a failure without a fingerprint (G-SCORE-MISSING).
    pub missing: u8,
    /// Added to K4 as well if the account's previous failure had no fingerprint either
    /// (G-SCORE-REPEAT-MISSING).
    pub repeat_missing: u8,
    /// Longest time since that previous failure, in microseconds.
    pub repeat_missing_window: u64,
    /// Added to K1 when a spray block is issued (G-SCORE-SPRAY).
    pub spray: u8,
}

/// Lowest score of each band.
#[derive(Clone, Debug, PartialEq)]
pub struct ThresholdPolicy {
    /// SOFT L1.
    pub soft: u8,
    /// HARD L2.
    pub hard: u8,
    /// HARD L3 and above.
    pub severe: u8,
    /// Score of K1 from which a spray block is L3.
    pub spray_severe: u8,
}

/// Failures that a budget counts (G-BUDGET-ELIGIBLE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eligible {
    /// Failures that scored the account or had no fingerprint; those of a known device only beyond
    /// its micro-cap.
    Suspicious,
    /// Every failure.
    Every,
}

/// Commands that an active budget answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetScope {
    /// A failure, and a check that would be allowed.
    FailuresAndChecks,
    /// Failures only.
    Failures,
}

/// The failure budget of an account.
#[derive(Clone, Debug, PartialEq)]
pub struct BudgetPolicy {
    /// Eligible failures that activate the budget; at most [`BUDGET_MAX`].
    pub threshold: u32,
    /// Length of an epoch, in microseconds.
    pub epoch: u64,
    /// Level of the budget's answer.
    pub level: Level,
    /// Lowest level for a trusted session, whose answer is otherwise one level lower.
    pub trusted_floor: Level,
    /// Time between two answers, in microseconds.
    pub cooldown: u64,
    /// Failures that count.
    pub eligible: Eligible,
    /// Failures of one known device within an epoch's length that do not count; at most
    /// [`MICRO_CAP_MAX`].
    pub micro_cap: u32,
    /// Commands that the budget answers.
    pub scope: BudgetScope,
    /// Level of the answer that replaces activation once, for a device with HIGH
    /// confidence or known to the account (G-RECOVERY); `None` switches that off.
    pub recovery: Option<Level>,
}

impl BudgetPolicy {
    /// Default settings of the login budget.
    #[must_use]
    pub const fn login() -> Self {
        Self {
            threshold: 20,
            epoch: DAY,
            level: Level::L3,
            trusted_floor: Level::L2,
            cooldown: HOUR,
            eligible: Eligible::Suspicious,
            micro_cap: 8,
            scope: BudgetScope::FailuresAndChecks,
            recovery: None,
        }
    }

    /// Default settings of the OTP budget.
    #[must_use]
    pub const fn otp() -> Self {
        Self {
            threshold: 10,
            epoch: DAY,
            level: Level::L4,
            trusted_floor: Level::L3,
            cooldown: 2 * HOUR,
            eligible: Eligible::Every,
            micro_cap: 8,
            scope: BudgetScope::Failures,
            recovery: Some(Level::L2),
        }
    }
}

/// When repeated soft blocks end in a hard one.
#[derive(Clone, Debug, PartialEq)]
pub struct EquilibriumPolicy {
    /// Soft blocks issued; at most [`HISTORY_MAX`].
    pub soft_blocks: u32,
    /// Time within which they are counted, in microseconds.
    pub window: u64,
    /// Level of the hard block.
    pub level: Level,
}

impl Default for EquilibriumPolicy {
    fn default() -> Self {
        Self {
            soft_blocks: 3,
            window: 6 * HOUR,
            level: Level::L2,
        }
    }
}

/// Patterns over several requests. Windows are in microseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct CorrelationPolicy {
    /// Distinct accounts on one prefix (G-SPRAY).
    pub spray: Pattern,
    /// Distinct accounts failing from one /24 or /48 in ten minutes, as one node sees it
    /// (G-SPRAY-WIDE); 0 switches that off.
    pub spray_wide: u32,
    /// Distinct fingerprints on one account (G-ROTATION).
    pub rotation: Pattern,
    /// Rotation episodes that block the account (G-ROTATION-REPEAT).
    pub rotation_repeat: Pattern,
    /// Fingerprint changes on one prefix and user agent (G-CHURN).
    pub churn: Pattern,
    /// Prefixes of one fingerprint in an aligned window (G-DILUTION).
    pub dilution: Pattern,
    /// Fingerprints first seen on one account (G-FLOOD).
    pub flood: Pattern,
    /// Level of the block on K5 of each further new fingerprint in a flood.
    pub flood_device_level: Level,
    /// Time for which a metric is remembered to have reached one below its threshold (G-WATCH).
    pub watch_window: u64,
    /// New fingerprints with an entry, per account (G-EPHEMERAL).
    pub new_per_account: u32,
    /// New fingerprints with an entry, per prefix (G-EPHEMERAL).
    pub new_per_prefix: u32,
    /// Window of `new_per_account` and `new_per_prefix`.
    pub new_window: u64,
}

/// A threshold within a time, and the level of the block that follows.
#[derive(Clone, Debug, PartialEq)]
pub struct Pattern {
    /// Count that triggers the block.
    pub threshold: u32,
    /// Time within which it is counted, in microseconds.
    pub window: u64,
    /// Level of the block.
    pub level: Level,
}

impl Pattern {
    /// A pattern of `threshold` events within `window`.
    #[must_use]
    pub const fn new(threshold: u32, window: u64, level: Level) -> Self {
        Self {
            threshold,
            window,
            level,
        }
    }
}

impl Default for CorrelationPolicy {
    fn default() -> Self {
        Self {
            spray: Pattern::new(5, 10 * MINUTE, Level::L2),
            spray_wide: 0,
            rotation: Pattern::new(4, 10 * MINUTE, Level::L2),
            rotation_repeat: Pattern::new(3, DAY, Level::L4),
            churn: Pattern::new(3, 10 * MINUTE, Level::L2),
            dilution: Pattern::new(6, 10 * MINUTE, Level::L2),
            flood: Pattern::new(6, 15 * MINUTE, Level::L1),
            flood_device_level: Level::L2,
            watch_window: 30 * MINUTE,
            new_per_account: 10,
            new_per_prefix: 50,
            new_window: 15 * MINUTE,
        }
    }
}

/// The penalty ladder and the memory of levels.
#[derive(Clone, Debug, PartialEq)]
pub struct LadderPolicy {
    /// Durations of L1 to L6, in microseconds.
    pub durations: [u64; 6],
    /// Quiet time after which a remembered L1 is forgotten; each level doubles it.
    pub forget: u64,
}

impl LadderPolicy {
    /// Returns the duration of a block of `level`.
    #[must_use]
    pub const fn duration(&self, level: Level) -> u64 {
        self.durations[level as usize]
    }
}

impl Default for LadderPolicy {
    fn default() -> Self {
        Self {
            durations: Level::ALL.map(Level::duration),
            forget: 10 * MINUTE,
        }
    }
}

/// Decay of scores. Times are in microseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct DecayPolicy {
    /// Time per point on K4.
    pub account: u64,
    /// Time per point on K5 and K3.
    pub device: u64,
    /// Time per point on K1 and K2.
    pub network: u64,
    /// Remembered level from which an interval is twice as long.
    pub slow_from: Level,
    /// Time for which decay pauses after the second hard block within `pause_window`.
    pub pause: u64,
    /// Two hard blocks within this time pause decay.
    pub pause_window: u64,
}

impl Default for DecayPolicy {
    fn default() -> Self {
        Self {
            account: 10 * MINUTE,
            device: 5 * MINUTE,
            network: 3 * MINUTE,
            slow_from: Level::L2,
            pause: 10 * MINUTE,
            pause_window: DAY,
        }
    }
}

/// Settings of the heavy API (G-API).
#[derive(Clone, Debug, PartialEq)]
pub struct ApiPolicy {
    /// If off, every hit is allowed and nothing is counted.
    pub enabled: bool,
    /// Whether the answers bind.
    pub mode: GuardMode,
    /// The sliding window, in microseconds.
    pub window: u64,
    /// Limit on K2.
    pub minor: ApiLimit,
    /// Limit on K3; its block is placed on K2 if the confidence is LOW.
    pub moderate: ApiLimit,
    /// Limit on K1.
    pub severe: ApiLimit,
}

/// One rate of the heavy API and the level of its block.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiLimit {
    /// Hits per window that still pass.
    pub limit: u32,
    /// Level of the block for more hits than that; at most L3.
    pub level: Level,
}

impl Default for ApiPolicy {
    fn default() -> Self {
        let limit = |limit, level| ApiLimit { limit, level };
        Self {
            enabled: true,
            mode: GuardMode::Enforce,
            window: 60 * SECOND,
            minor: limit(120, Level::L1),
            moderate: limit(240, Level::L2),
            severe: limit(600, Level::L3),
        }
    }
}
