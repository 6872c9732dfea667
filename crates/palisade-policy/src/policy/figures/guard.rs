//! Settings of the guard.

use std::time::Duration;

use palisade_core::decision::Level;
use palisade_core::guard::policy::{
    ApiLimit, ApiPolicy, BudgetPolicy, BudgetScope, CorrelationPolicy, DecayPolicy, Eligible,
    EquilibriumPolicy, FlowPolicy, GuardMode, GuardPolicy, LadderPolicy, NewCountry, OwnerLane,
    Pattern, ScorePolicy, ThresholdPolicy,
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

named!(NewCountry {
    "off" => Self::Off,
    "challenge" => Self::Challenge,
});

named!(BudgetScope {
    "failures-and-checks" => Self::FailuresAndChecks,
    "failures" => Self::Failures,
});

section! {
    /// The guard as a whole.
    pub(crate) struct GuardTable(Table "guard") {
        /// Whether the guard's decisions are enforced. `shadow` lets everything pass and reports
        /// the decision that would have been made.
        mode: GuardMode = "enforce";
        /// Devices of the owner that are exempt from blocks which strangers cause on the account:
        /// none (`off`), trusted session devices (`trusted`), or also known devices of medium or
        /// high confidence (`known`).
        owner_lane: OwnerLane = "off";
        /// Whether attempts without an outcome count as failures in later checks until the outcome
        /// arrives.
        pending: bool = "true";
        /// Time for which an attempt without an outcome counts as a failure.
        pending_ttl: Duration = "15s" where "1s"..="1h";
        /// Time for which a `request_id` is remembered, so that a retry changes nothing.
        once_window: Duration = "10min" where "0s"..="1day";
        /// Time for which a known device or a session is remembered after its last use.
        familiar_for: Duration = "365day" where "1day"..="1825day";
        /// Duration of a block at each level, L1 to L6: rising, at most 7 days.
        ladder: [Duration; 6] = "15s,60s,5min,30min,6h,24h";
        /// Quiet time after which a remembered L1 is forgotten. Each further level doubles it.
        ladder_forget: Duration = "10min" where "1s"..="6h";
        /// Time in which an account's score falls by one point.
        decay_account: Duration = "10min" where "1s"..="6h";
        /// Time in which a device's score falls by one point.
        decay_device: Duration = "5min" where "1s"..="6h";
        /// Time in which a network's score falls by one point.
        decay_network: Duration = "3min" where "1s"..="6h";
        /// Remembered level from which decay takes twice as long.
        decay_slow_from: Level = "L2";
        /// Time for which decay pauses after a repeated hard block.
        decay_pause: Duration = "10min" where "0s"..="1day";
        /// Time within which a second hard block counts as repeated.
        decay_pause_window: Duration = "24h" where "1s"..="7day";
    }
}

/// The sections of one flow; the defaults of login and OTP differ.
macro_rules! flow {
    (
        $flow:literal, $module:ident,
        own: { $($own:tt)* },
        new_country: $new_country:expr,
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
                    /// Whether this flow of the guard runs.
                    enabled: bool = "true";
                    /// Overrides `guard.mode` for this flow.
                    mode: Option<GuardMode>;
                    /// Overrides `guard.owner_lane` for this flow.
                    owner_lane: Option<OwnerLane>;
                    /// Overrides `guard.pending` for this flow.
                    pending: Option<bool>;
                    /// Overrides `guard.pending_ttl` for this flow.
                    pending_ttl: Option<Duration> where "1s"..="1h";
                    $($own)*
                }
            }

            section! {
                /// Points that a failure adds.
                pub(crate) struct Scores(Table concat!($flow, ".scores")) {
                    /// Points for a known device when it fails.
                    known: u8 = $known where "0"..="24";
                    /// Points for the account when an unknown device fails.
                    new: u8 = $new where "0"..="24";
                    /// Points for the network and user agent when a device without a fingerprint
                    /// fails.
                    missing: u8 = $missing where "0"..="24";
                    /// Points for the account when devices without a fingerprint fail twice in a
                    /// row.
                    repeat_missing: u8 = $repeat where "0"..="24";
                    /// Time within which two failures without a fingerprint count as in a row.
                    repeat_missing_window: Duration = "30min" where "1s"..="1day";
                    /// Points for the network with a spray block.
                    spray: u8 = "5" where "0"..="24";
                }
            }

            section! {
                /// Scores from which each kind of block is given.
                pub(crate) struct Thresholds(Table concat!($flow, ".thresholds")) {
                    /// Score for a soft block, L1.
                    soft: u8 = $soft where "1"..="24";
                    /// Score for a hard block, L2.
                    hard: u8 = $hard where "1"..="24";
                    /// Score for a hard block of L3 or above.
                    severe: u8 = $severe where "1"..="24";
                    /// Score of the network from which a spray block is L3.
                    spray_severe: u8 = "12" where "1"..="24";
                }
            }

            section! {
                /// Budget of failures that an account has in each epoch.
                pub(crate) struct Budget(Table concat!($flow, ".budget")) {
                    /// Number of failures that exhausts the budget.
                    threshold: u32 = $threshold where "1"..="64";
                    /// Length of an epoch.
                    epoch: Duration = "24h" where "1min"..="24h";
                    /// Level of the block after the budget is exhausted.
                    level: Level = $level;
                    /// Lowest level of that block for a trusted session device.
                    trusted_floor: Level = $floor;
                    /// Time in which an exhausted budget blocks at most once.
                    cooldown: Duration = $cooldown where "1s"..="24h";
                    /// Failures that count. `suspicious` leaves out those of known devices, up to
                    /// `micro_cap`.
                    eligible: Eligible = $eligible;
                    /// Number of failures of one known device that do not count.
                    micro_cap: u32 = "8" where "1"..="10";
                    /// Commands that an exhausted budget blocks.
                    scope: BudgetScope = $scope;
                    /// Whether a strong or known device gets one softer block, L2, before the
                    /// budget is exhausted.
                    recovery: bool = $recovery;
                }
            }

            section! {
                /// Repeated soft blocks that lead to a hard one.
                pub(crate) struct Equilibrium(Table concat!($flow, ".equilibrium")) {
                    /// Number of soft blocks that lead to a hard one.
                    soft_blocks: u32 = "3" where "1"..="8";
                    /// Time within which the soft blocks count.
                    window: Duration = "6h" where "1s"..="24h";
                    /// Level of the hard block.
                    level: Level = "L2";
                }
            }

            section! {
                /// Patterns over several requests.
                pub(crate) struct Correlation(Table concat!($flow, ".correlation")) {
                    /// Spray: number of accounts tried from one network.
                    spray: u32 = "5" where "2"..="16";
                    /// Spray: time within which the accounts count.
                    spray_window: Duration = "10min" where "1s"..="1day";
                    /// Spray: level of the block.
                    spray_level: Level = "L2";
                    /// Spray: number of accounts that fail from one IPv4 /24 or IPv6 /48 within 10
                    /// minutes, as one node sees it. From this number on, unknown devices of that
                    /// network get a soft block. 0 switches this off.
                    spray_wide: u32 = "0" where "0"..="256";
                    /// Rotation: number of devices that try one account.
                    rotation: u32 = "4" where "2"..="16";
                    /// Rotation: time within which the devices count.
                    rotation_window: Duration = "10min" where "1s"..="1day";
                    /// Rotation: level of the block on each device.
                    rotation_level: Level = "L2";
                    /// Rotation: number of rotations after which the account itself is blocked.
                    rotation_repeat: u32 = "3" where "1"..="8";
                    /// Rotation: time within which the rotations count.
                    rotation_repeat_window: Duration = "24h" where "1s"..="1day";
                    /// Rotation: level of the block on the account.
                    rotation_repeat_level: Level = "L4";
                    /// Churn: number of changes of fingerprint on one network and user agent.
                    churn: u32 = "3" where "2"..="6";
                    /// Churn: time within which the changes count.
                    churn_window: Duration = "10min" where "1s"..="1day";
                    /// Churn: level of the block.
                    churn_level: Level = "L2";
                    /// Dilution: number of networks on which one fingerprint is seen.
                    dilution: u32 = "6" where "2"..="16";
                    /// Dilution: time within which the networks count, aligned to the clock.
                    dilution_window: Duration = "10min" where "1s"..="1day";
                    /// Dilution: level of the block.
                    dilution_level: Level = "L2";
                    /// Flood: number of devices first seen on one account.
                    flood: u32 = "6" where "2"..="10";
                    /// Flood: time within which the devices count.
                    flood_window: Duration = "15min" where "1s"..="1day";
                    /// Flood: level of the soft block.
                    flood_level: Level = "L1";
                    /// Flood: level of the hard block on each further device.
                    flood_device_level: Level = "L2";
                    /// Time for which it is remembered that a count was one below a threshold.
                    watch_window: Duration = "30min" where "1s"..="1day";
                    /// Most new devices that are recorded per account.
                    new_per_account: u32 = "10" where "2"..="10";
                    /// Most new devices that are recorded per network.
                    new_per_prefix: u32 = "50" where "1"..="50";
                    /// Time within which new devices count for `new_per_account` and
                    /// `new_per_prefix`.
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
                let new_country: fn(&Flow) -> NewCountry = $new_country;
                Some(FlowPolicy {
                    new_country: new_country(&flow),
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
    own: {
        /// Answer to a login from a country that the account has never succeeded from, once it has
        /// succeeded twice: `challenge` is a soft block from which known devices and a passed
        /// challenge free. Needs `[places]`.
        new_country: NewCountry = "off";
    },
    new_country: |flow| flow.new_country,
    scores: ["2", "3", "4", "6"],
    thresholds: ["5", "8", "12"],
    budget: ["20", "L3", "L2", "60min", "suspicious", "failures-and-checks"],
    recovery: "false",
}

flow! {
    "guard.otp", otp,
    own: {},
    new_country: |_| NewCountry::Off,
    scores: ["4", "5", "6", "8"],
    thresholds: ["4", "7", "10"],
    budget: ["10", "L4", "L3", "120min", "every", "failures"],
    recovery: "true",
}

section! {
    /// The guard of heavy endpoints.
    pub(crate) struct ApiTable(Table "guard.api") {
        /// Whether this flow of the guard runs.
        enabled: bool = "true";
        /// Overrides `guard.mode` for this flow.
        mode: Option<GuardMode>;
        /// Sliding window in which hits are counted.
        window: Duration = "60s" where "1s"..="1day";
        /// Hits per network and user agent above which requests get a soft block.
        minor: u32 = "120" where "1"..="1000000";
        /// Level of the block above `minor`.
        minor_level: Level = "L1";
        /// Hits per device above which requests are blocked.
        moderate: u32 = "240" where "1"..="1000000";
        /// Level of the block above `moderate`.
        moderate_level: Level = "L2";
        /// Hits per network above which requests are blocked.
        severe: u32 = "600" where "1"..="1000000";
        /// Level of the block above `severe`.
        severe_level: Level = "L3";
    }
}

pub(super) fn schemas() -> impl Iterator<Item = Schema> {
    [GuardTable::SCHEMA]
        .into_iter()
        .chain(login::SCHEMAS)
        .chain(otp::SCHEMAS)
        .chain([super::send::schema(), ApiTable::SCHEMA])
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
    let send = super::send::read(root, sink);
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
        send: send?,
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
