//! Settings of the guard.

use std::time::Duration;

use palisade_core::decision::Level;
use palisade_core::guard::policy::{
    ApiLimit, ApiPolicy, BudgetPolicy, BudgetScope, CorrelationPolicy, DecayPolicy, Eligible,
    EquilibriumPolicy, FlowPolicy, GuardMode, GuardPolicy, LadderPolicy, OwnerLane, Pattern,
    ScorePolicy, ThresholdPolicy,
};

use super::micros;
use crate::document::error::{Origin, Sink};
use crate::document::schema::{Schema, Section, read_table};
use crate::document::tree::{Table, lookup};
use crate::named;
use crate::section;

named!(Eligible {
    "suspicious" => Self::Suspicious,
    "every" => Self::Every,
});

named!(GuardMode {
    "enforce" => Self::Enforce,
    "shadow" => Self::Shadow,
});

named!(OwnerLane {
    "off" => Self::Off,
    "trusted" => Self::Trusted,
    "known" => Self::Known,
});

named!(BudgetScope {
    "failures-and-checks" => Self::FailuresAndChecks,
    "failures" => Self::Failures,
});

section! {
    /// The guard as a whole.
    pub(crate) struct GuardTable(Table "guard") {
        /// Whether the answers of every flow bind: `shadow` lets everything pass and shows
        /// what would have been answered.
        mode: GuardMode = "enforce";
        /// Which of the owner's devices blocks that strangers cause on an account leave
        /// alone: none, trusted session devices, or known devices of MEDIUM or HIGH
        /// confidence, too.
        owner_lane: OwnerLane = "off";
        /// Whether attempts whose outcome is not known yet weigh on later checks as if
        /// they had failed.
        pending: bool = "true";
        /// How long an attempt without an outcome does so.
        pending_ttl: Duration = "15s" where "1s"..="1h";
        /// How long a `request_id` is remembered, so that a retry changes nothing.
        once_window: Duration = "10min" where "0s"..="1day";
        /// How long a known device or a session is remembered after its last use.
        familiar_for: Duration = "365day" where "1day"..="1825day";
        /// How long a block of each level lasts, L1 to L6: rising, at most 7 days.
        ladder: [Duration; 6] = "15s,60s,5min,30min,6h,24h";
        /// Quiet time after which a remembered L1 is forgotten; each level doubles it.
        ladder_forget: Duration = "10min" where "1s"..="6h";
        /// An account's score falls by one in this time.
        decay_account: Duration = "10min" where "1s"..="6h";
        /// A device's score falls by one in this time.
        decay_device: Duration = "5min" where "1s"..="6h";
        /// A network's score falls by one in this time.
        decay_network: Duration = "3min" where "1s"..="6h";
        /// Remembered level from which decay takes twice as long.
        decay_slow_from: Level = "L2";
        /// How long decay pauses after a repeated hard block.
        decay_pause: Duration = "10min" where "0s"..="1day";
        /// Two hard blocks within this time are repeated.
        decay_pause_window: Duration = "24h" where "1s"..="7day";
    }
}

/// The sections of one flow; the defaults of login and OTP differ.
macro_rules! flow {
    (
        $flow:literal, $module:ident,
        scores: [$known:literal, $new:literal, $missing:literal, $repeat:literal],
        thresholds: [$soft:literal, $hard:literal, $severe:literal],
        budget: [$threshold:literal, $level:literal, $floor:literal, $cooldown:literal, $eligible:literal, $scope:literal],
        recovery: $recovery:literal,
    ) => {
        pub(crate) mod $module {
            use super::*;

            section! {
                /// The guard of this flow.
                pub(crate) struct Flow(Table $flow) {
                    /// Whether it runs at all.
                    enabled: bool = "true";
                    /// Instead of `guard.mode`, for this flow.
                    mode: Option<GuardMode>;
                    /// Instead of `guard.owner_lane`, for this flow.
                    owner_lane: Option<OwnerLane>;
                    /// Instead of `guard.pending`, for this flow.
                    pending: Option<bool>;
                    /// Instead of `guard.pending_ttl`, for this flow.
                    pending_ttl: Option<Duration> where "1s"..="1h";
                }
            }

            section! {
                /// Points that a failure adds.
                pub(crate) struct Scores(Table concat!($flow, ".scores")) {
                    /// From a known device, to that device.
                    known: u8 = $known where "0"..="24";
                    /// From a device that is not known, to the account.
                    new: u8 = $new where "0"..="24";
                    /// Without a fingerprint, to the network and user agent.
                    missing: u8 = $missing where "0"..="24";
                    /// Without one twice in a row, to the account.
                    repeat_missing: u8 = $repeat where "0"..="24";
                    /// How far the failure before may lie back.
                    repeat_missing_window: Duration = "30min" where "1s"..="1day";
                    /// With a spray block, to the network.
                    spray: u8 = "5" where "0"..="24";
                }
            }

            section! {
                /// The score from which each answer is given.
                pub(crate) struct Thresholds(Table concat!($flow, ".thresholds")) {
                    /// A soft block, L1.
                    soft: u8 = $soft where "1"..="24";
                    /// A hard block, L2.
                    hard: u8 = $hard where "1"..="24";
                    /// A hard block, L3 and above.
                    severe: u8 = $severe where "1"..="24";
                    /// A network's score from which a spray block is L3.
                    spray_severe: u8 = "12" where "1"..="24";
                }
            }

            section! {
                /// The failures that an account may have in an epoch.
                pub(crate) struct Budget(Table concat!($flow, ".budget")) {
                    /// How many.
                    threshold: u32 = $threshold where "1"..="64";
                    /// Length of an epoch.
                    epoch: Duration = "24h" where "1min"..="24h";
                    /// Level of the answer beyond it.
                    level: Level = $level;
                    /// Least level for a trusted session device.
                    trusted_floor: Level = $floor;
                    /// One answer in this time.
                    cooldown: Duration = $cooldown where "1s"..="24h";
                    /// Which failures count: `suspicious` leaves out those of known devices
                    /// up to the micro-cap.
                    eligible: Eligible = $eligible;
                    /// Failures of one known device that do not count.
                    micro_cap: u32 = "8" where "1"..="10";
                    /// What an exhausted budget answers to.
                    scope: BudgetScope = $scope;
                    /// Whether a strong or known device gets one softer answer, L2, before
                    /// the budget is exhausted.
                    recovery: bool = $recovery;
                }
            }

            section! {
                /// When repeated soft blocks end in a hard one.
                pub(crate) struct Equilibrium(Table concat!($flow, ".equilibrium")) {
                    /// Soft blocks.
                    soft_blocks: u32 = "3" where "1"..="8";
                    /// Within this time.
                    window: Duration = "6h" where "1s"..="24h";
                    /// Level of the hard block.
                    level: Level = "L2";
                }
            }

            section! {
                /// Patterns over several requests.
                pub(crate) struct Correlation(Table concat!($flow, ".correlation")) {
                    /// Accounts tried from one network.
                    spray: u32 = "5" where "2"..="16";
                    /// Within this time.
                    spray_window: Duration = "10min" where "1s"..="1day";
                    /// Level of the block.
                    spray_level: Level = "L2";
                    /// Accounts that fail from one IPv4 /24 or IPv6 /48 in ten minutes, as one
                    /// node sees it, from which its unknown devices are softly blocked; 0
                    /// switches that off.
                    spray_wide: u32 = "0" where "0"..="256";
                    /// Devices that try one account.
                    rotation: u32 = "4" where "2"..="16";
                    /// Within this time.
                    rotation_window: Duration = "10min" where "1s"..="1day";
                    /// Level of the block on each device.
                    rotation_level: Level = "L2";
                    /// Rotations after which the account itself is blocked.
                    rotation_repeat: u32 = "3" where "1"..="8";
                    /// Within this time.
                    rotation_repeat_window: Duration = "24h" where "1s"..="1day";
                    /// Level of that block.
                    rotation_repeat_level: Level = "L4";
                    /// Changes of fingerprint on one network and user agent.
                    churn: u32 = "3" where "2"..="6";
                    /// Within this time.
                    churn_window: Duration = "10min" where "1s"..="1day";
                    /// Level of the block.
                    churn_level: Level = "L2";
                    /// Networks on which one fingerprint is seen.
                    dilution: u32 = "6" where "2"..="16";
                    /// Within this time, aligned to the clock.
                    dilution_window: Duration = "10min" where "1s"..="1day";
                    /// Level of the block.
                    dilution_level: Level = "L2";
                    /// Devices first seen on one account.
                    flood: u32 = "6" where "2"..="10";
                    /// Within this time.
                    flood_window: Duration = "15min" where "1s"..="1day";
                    /// Level of the soft block.
                    flood_level: Level = "L1";
                    /// Level of the hard block on each further device.
                    flood_device_level: Level = "L2";
                    /// How long reaching one below a threshold is remembered.
                    watch_window: Duration = "30min" where "1s"..="1day";
                    /// New devices that are recorded per account.
                    new_per_account: u32 = "10" where "2"..="10";
                    /// New devices that are recorded per network.
                    new_per_prefix: u32 = "50" where "1"..="50";
                    /// Within this time.
                    new_window: Duration = "15min" where "1s"..="1day";
                }
            }

            pub(crate) const SCHEMAS: [Schema; 6] = [
                Flow::SCHEMA,
                Scores::SCHEMA,
                Thresholds::SCHEMA,
                Budget::SCHEMA,
                Equilibrium::SCHEMA,
                Correlation::SCHEMA,
            ];

            pub(crate) fn read(
                root: &Table,
                all: &GuardTable,
                sink: &mut Sink,
            ) -> Option<FlowPolicy> {
                let flow = read_table::<Flow>(root, sink);
                let scores = read_table::<Scores>(root, sink);
                let thresholds = read_table::<Thresholds>(root, sink);
                let budget = read_table::<Budget>(root, sink);
                let equilibrium = read_table::<Equilibrium>(root, sink);
                let correlation = read_table::<Correlation>(root, sink);
                let flow = flow?;
                Some(FlowPolicy {
                    enabled: flow.enabled,
                    mode: flow.mode.unwrap_or(all.mode),
                    owner_lane: flow.owner_lane.unwrap_or(all.owner_lane),
                    pending: flow.pending.unwrap_or(all.pending),
                    pending_ttl: micros(flow.pending_ttl.unwrap_or(all.pending_ttl)),
                    scores: scores_policy(&scores?),
                    thresholds: thresholds_policy(&thresholds?),
                    budget: budget_policy(&budget?),
                    equilibrium: equilibrium_policy(&equilibrium?),
                    correlation: correlation_policy(&correlation?),
                })
            }

            fn scores_policy(from: &Scores) -> ScorePolicy {
                ScorePolicy {
                    known: from.known,
                    new: from.new,
                    missing: from.missing,
                    repeat_missing: from.repeat_missing,
                    repeat_missing_window: micros(from.repeat_missing_window),
                    spray: from.spray,
                }
            }

            const fn thresholds_policy(from: &Thresholds) -> ThresholdPolicy {
                ThresholdPolicy {
                    soft: from.soft,
                    hard: from.hard,
                    severe: from.severe,
                    spray_severe: from.spray_severe,
                }
            }

            fn budget_policy(from: &Budget) -> BudgetPolicy {
                BudgetPolicy {
                    threshold: from.threshold,
                    epoch: micros(from.epoch),
                    level: from.level,
                    trusted_floor: from.trusted_floor,
                    cooldown: micros(from.cooldown),
                    eligible: from.eligible,
                    micro_cap: from.micro_cap,
                    scope: from.scope,
                    recovery: from.recovery.then_some(Level::L2),
                }
            }

            fn equilibrium_policy(from: &Equilibrium) -> EquilibriumPolicy {
                EquilibriumPolicy {
                    soft_blocks: from.soft_blocks,
                    window: micros(from.window),
                    level: from.level,
                }
            }

            fn correlation_policy(from: &Correlation) -> CorrelationPolicy {
                let pattern = |count, window, level| Pattern::new(count, micros(window), level);
                CorrelationPolicy {
                    spray: pattern(from.spray, from.spray_window, from.spray_level),
                    spray_wide: from.spray_wide,
                    rotation: pattern(from.rotation, from.rotation_window, from.rotation_level),
                    rotation_repeat: pattern(
                        from.rotation_repeat,
                        from.rotation_repeat_window,
                        from.rotation_repeat_level,
                    ),
                    churn: pattern(from.churn, from.churn_window, from.churn_level),
                    dilution: pattern(from.dilution, from.dilution_window, from.dilution_level),
                    flood: pattern(from.flood, from.flood_window, from.flood_level),
                    flood_device_level: from.flood_device_level,
                    watch_window: micros(from.watch_window),
                    new_per_account: from.new_per_account,
                    new_per_prefix: from.new_per_prefix,
                    new_window: micros(from.new_window),
                }
            }
        }
    };
}

flow! {
    "guard.login", login,
    scores: ["2", "3", "4", "6"],
    thresholds: ["5", "8", "12"],
    budget: ["20", "L3", "L2", "60min", "suspicious", "failures-and-checks"],
    recovery: "false",
}

flow! {
    "guard.otp", otp,
    scores: ["4", "5", "6", "8"],
    thresholds: ["4", "7", "10"],
    budget: ["10", "L4", "L3", "120min", "every", "failures"],
    recovery: "true",
}

section! {
    /// The guard of heavy endpoints.
    pub(crate) struct ApiTable(Table "guard.api") {
        /// Whether it runs at all.
        enabled: bool = "true";
        /// Instead of `guard.mode`, for this flow.
        mode: Option<GuardMode>;
        /// The sliding window.
        window: Duration = "60s" where "1s"..="1day";
        /// More hits than this per network and user agent are softly blocked.
        minor: u32 = "120" where "1"..="1000000";
        /// Level of that block.
        minor_level: Level = "L1";
        /// More hits than this per device are blocked.
        moderate: u32 = "240" where "1"..="1000000";
        /// Level of that block.
        moderate_level: Level = "L2";
        /// More hits than this per network are blocked.
        severe: u32 = "600" where "1"..="1000000";
        /// Level of that block.
        severe_level: Level = "L3";
    }
}

pub(super) fn schemas() -> impl Iterator<Item = Schema> {
    [GuardTable::SCHEMA]
        .into_iter()
        .chain(login::SCHEMAS)
        .chain(otp::SCHEMAS)
        .chain([ApiTable::SCHEMA])
}

/// Reads the guard's settings; each part is checked by the core's own bounds.
pub(super) fn read(root: &Table, sink: &mut Sink) -> Option<GuardPolicy> {
    let own = read_table::<GuardTable>(root, sink);
    let table = own.as_ref().map(whole);
    // Where the shared `[guard]` table is wrong, the tables of the flows are judged with its
    // defaults.
    let all = own.or_else(|| read_table::<GuardTable>(&Table::new(), &mut Sink::default()))?;
    let login = login::read(root, &all, sink);
    let otp = otp::read(root, &all, sink);
    let api = read_table::<ApiTable>(root, sink).map(|table| api(&table, &all));
    // One part at a time, with defaults for the others, so that the error can name its table.
    let others = GuardPolicy::default;
    let parts = [
        ("guard", table.clone()),
        (
            "guard.login",
            login.clone().map(|login| GuardPolicy { login, ..others() }),
        ),
        (
            "guard.otp",
            otp.clone().map(|otp| GuardPolicy { otp, ..others() }),
        ),
        (
            "guard.api",
            api.clone().map(|api| GuardPolicy { api, ..others() }),
        ),
    ];
    let valid = parts.iter().fold(true, |valid, (path, part)| {
        part.as_ref()
            .is_some_and(|part| validate(part, path, root, sink))
            && valid
    });
    Some(GuardPolicy {
        login: login?,
        otp: otp?,
        api: api?,
        ..table.filter(|_| valid)?
    })
}

fn whole(from: &GuardTable) -> GuardPolicy {
    GuardPolicy {
        ladder: LadderPolicy {
            durations: from.ladder.map(micros),
            forget: micros(from.ladder_forget),
        },
        decay: DecayPolicy {
            account: micros(from.decay_account),
            device: micros(from.decay_device),
            network: micros(from.decay_network),
            slow_from: from.decay_slow_from,
            pause: micros(from.decay_pause),
            pause_window: micros(from.decay_pause_window),
        },
        once_window: micros(from.once_window),
        familiar_for: micros(from.familiar_for),
        ..GuardPolicy::default()
    }
}

fn api(from: &ApiTable, all: &GuardTable) -> ApiPolicy {
    let limit = |limit, level| ApiLimit { limit, level };
    ApiPolicy {
        enabled: from.enabled,
        mode: from.mode.unwrap_or(all.mode),
        window: micros(from.window),
        minor: limit(from.minor, from.minor_level),
        moderate: limit(from.moderate, from.moderate_level),
        severe: limit(from.severe, from.severe_level),
    }
}

fn validate(policy: &GuardPolicy, path: &str, root: &Table, sink: &mut Sink) -> bool {
    let Err(error) = policy.validate() else {
        return true;
    };
    let origin = lookup(root, path).map_or(Origin::Nowhere, |entry| entry.key.clone());
    sink.report(
        &origin,
        format!("`{path}`: `{}` {}", error.field, error.problem),
    );
    false
}
