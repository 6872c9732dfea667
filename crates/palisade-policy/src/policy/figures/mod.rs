//! Settings of guard, lockout, fallback and the availability breaker. A test compares their
//! defaults with the core's own.

mod guard;
mod send;

use std::num::NonZeroU32;
use std::time::Duration;

use palisade_core::adaptive::AdaptiveSettings;
use palisade_core::adaptive::attack::AttackSettings;
use palisade_core::adaptive::load::LoadSettings;
use palisade_core::decision::{Challenge, Level};
use palisade_core::failure::fallback::{BurstPace, Share};
use palisade_core::failure::{AvailabilitySettings, FallbackPolicy, LocalCap};
use palisade_core::headers::HeaderFamilies;
use palisade_core::lockout::{ChallengeMode, LockoutKey, LockoutPolicy};
use palisade_core::policy::{ReservationSettings, RlsSettings, Settings};

use crate::document::decode::{Decode, Problem, Problems, one_of};
use crate::document::error::{Origin, Sink};
use crate::document::schema::{Schema, Section, read_table};
use crate::document::tree::{Node, Table, lookup};
use crate::named;
use crate::policy::sections::Urls;
use crate::policy::tables::{AdaptiveTable, ProtectedPart, ReservationsTable, RlsTable};
use crate::section;

named!(Level {
    "L1" => Self::L1,
    "L2" => Self::L2,
    "L3" => Self::L3,
    "L4" => Self::L4,
    "L5" => Self::L5,
    "L6" => Self::L6,
});

named!(Challenge {
    "captcha" => Self::Captcha,
    "out_of_band" => Self::OutOfBand,
});

impl Decode for ChallengeMode {
    fn kind() -> String {
        "`require`, `advise`".to_owned()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        let names = [("require", Self::Require), ("advise", Self::Advise)];
        let is_kind = matches!(node.as_str(), Some("captcha" | "out_of_band"));
        let hint = |problem: Problem| match is_kind {
            true => problem.hint("which challenge is put says `challenge_kind`"),
            false => problem,
        };
        one_of(node, &names).map_err(|found| found.into_iter().map(hint).collect())
    }
}

named!(LockoutKey {
    "username" => Self::Username,
    "account" => Self::Account,
});

/// Configured durations are bounded, so this never saturates.
fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

section! {
    /// The lockout of a user name and network, shared by all authentication endpoints.
    pub(crate) struct LockoutTable(Table "lockout") {
        /// Whether the lockout runs.
        enabled: bool = "true";
        /// Identity that is counted together with the address: `username` as it was passed, or
        /// `account` for applications that pass none.
        key: LockoutKey = "username";
        /// Failures within `window` after which the next attempt is denied.
        window_failures: u32 = "5" where "1"..="16";
        /// Time within which `window_failures` count.
        window: Duration = "15min" where "1s"..="20day";
        /// Failures within `hard_window` that cause a lock, each time this number is reached.
        hard_failures: u32 = "10" where "1"..="32";
        /// Time within which `hard_failures` count.
        hard_window: Duration = "24h" where "1s"..="20day";
        /// Duration of a lock.
        lock: Duration = "15min" where "1s"..="20day";
        /// Delay after one, two, and more consecutive failures, in milliseconds.
        delays_ms: [u32; 3] = "250,500,1000";
        /// Lockouts within `captcha_window` after which a challenge is asked for.
        captcha_lockouts: u32 = "3" where "1"..="8";
        /// Time within which `captcha_lockouts` count.
        captcha_window: Duration = "24h" where "1s"..="20day";
        /// Effect of a challenge: `require` denies checks until it is passed, `advise` only names
        /// it in the answer.
        challenge: ChallengeMode = "require";
        /// Kind of challenge.
        challenge_kind: Challenge = "captcha";
        /// Time after which an unanswered challenge is dropped.
        challenge_for: Duration = "20day" where "1s"..="20day";
    }
}

section! {
    /// Local caps of each node while the store is unavailable.
    pub(crate) struct FallbackTable(Table "fallback") {
        /// Requests of a known tenant and address in any minute.
        tenant_per_minute: NonZeroU32 = "100" where "1"..="1000000";
        /// Most of these requests at once.
        tenant_burst: NonZeroU32 = "50" where "1"..="1000000";
        /// Requests per second beyond `tenant_burst`.
        tenant_per_second: NonZeroU32 = "2" where "1"..="1000000";
        /// Requests of an unknown caller's address in any minute.
        anonymous_per_minute: NonZeroU32 = "50" where "1"..="1000000";
        /// Share of its limits that an authentication class keeps, in percent.
        auth_percent: u8 = "50" where "1"..="100";
        /// Paths that stay available while the store is unavailable: GET and HEAD, 60 times a
        /// minute from each address, unless their class is auth or admin. Other methods follow
        /// their class.
        exempt: Vec<String> = "/health,/health/*,/metrics";
    }
}

section! {
    /// The breaker of limits and quotas. The breaker of the guard is not configurable.
    pub(crate) struct BreakerTable(Table "breaker.availability") {
        /// Consecutive failures that open the breaker.
        failures: u32 = "5" where "1"..="1000";
        /// Time from opening to the first probe.
        probe_after: Duration = "10s" where "100ms"..="1h";
        /// Time between probes.
        probe_interval: Duration = "5s" where "100ms"..="1h";
        /// Successful probes that close the breaker.
        successes: u32 = "3" where "1"..="1000";
        /// Time without an answered probe after which an outage is prolonged.
        prolonged_after: Duration = "5min" where "1s"..="1day";
    }
}

pub(crate) fn schemas() -> impl Iterator<Item = Schema> {
    guard::schemas().chain([
        LockoutTable::SCHEMA,
        FallbackTable::SCHEMA,
        BreakerTable::SCHEMA,
    ])
}

/// Reads all settings other than the limits.
pub(crate) fn settings(root: &Table, headers: HeaderFamilies, sink: &mut Sink) -> Option<Settings> {
    let guard = guard::read(root, sink);
    let lockout = lockout(root, sink);
    let fallback = fallback(root, sink);
    let availability = breaker(root, sink);
    let urls = read_table::<Urls>(root, sink);
    let rls = read_table::<RlsTable>(root, sink);
    let reservations = read_table::<ReservationsTable>(root, sink);
    let adaptive = adaptive(root, sink);
    let urls = urls?;
    Some(Settings {
        guard: guard?,
        lockout: lockout?,
        fallback: fallback?,
        availability: availability?,
        urls: palisade_core::bodies::Urls {
            support: urls.support_url.as_str().into(),
            upgrade: urls.upgrade_url.as_str().into(),
        },
        headers,
        rls: rls.map(|rls| RlsSettings {
            shadow: rls.shadow,
            count_denied: rls.count_denied,
            refunds: rls.refunds,
            metadata: rls.metadata,
            org_key: rls.org_key.map(String::into_boxed_str),
        })?,
        reservations: reservations.map(|table| ReservationSettings {
            max_hold_us: micros(table.max_hold),
        })?,
        adaptive: adaptive?,
        ..Settings::default()
    })
}

/// Reads the settings of adaptive limits.
fn adaptive(root: &Table, sink: &mut Sink) -> Option<AdaptiveSettings> {
    let from = read_table::<AdaptiveTable>(root, sink)?;
    if from.min > from.max {
        let origin = lookup(root, "adaptive").map_or(Origin::Nowhere, |entry| entry.key.clone());
        let message = "`adaptive.min` is above `adaptive.max`";
        sink.report_with(&origin, message, "lower `min`, or raise `max`");
        return None;
    }
    let (min, max) = (from.min, from.max);
    Some(AdaptiveSettings {
        load: from
            .protect
            .map(|ProtectedPart::Upstream| LoadSettings { min, max }),
        attack: AttackSettings {
            surge: from.surge,
            floor: from.surge_min,
        },
    })
}

/// Reads the settings of the lockout.
fn lockout(root: &Table, sink: &mut Sink) -> Option<LockoutPolicy> {
    let from = read_table::<LockoutTable>(root, sink)?;
    #[allow(clippy::needless_update, reason = "a feature for tests adds a field")]
    let policy = LockoutPolicy {
        enabled: from.enabled,
        key: from.key,
        window_failures: from.window_failures,
        window: micros(from.window),
        hard_failures: from.hard_failures,
        hard_window: micros(from.hard_window),
        lock: micros(from.lock),
        delays_ms: from.delays_ms,
        captcha_lockouts: from.captcha_lockouts,
        captcha_window: micros(from.captcha_window),
        challenge_mode: from.challenge,
        challenge: from.challenge_kind,
        challenge_for: micros(from.challenge_for),
        ..LockoutPolicy::default()
    };
    if let Err(error) = policy.validate() {
        let origin = lookup(root, "lockout").map_or(Origin::Nowhere, |entry| entry.key.clone());
        sink.report(&origin, error.to_string());
        return None;
    }
    Some(policy)
}

/// Reads the settings of the fallback.
fn fallback(root: &Table, sink: &mut Sink) -> Option<FallbackPolicy> {
    let from = read_table::<FallbackTable>(root, sink)?;
    let smoothing = BurstPace {
        burst: from.tenant_burst,
        per_second: from.tenant_per_second,
    };
    let tenant = LocalCap::new(from.tenant_per_minute, Some(smoothing));
    let anonymous = LocalCap::new(from.anonymous_per_minute, None);
    match (tenant, anonymous) {
        (Ok(tenant), Ok(anonymous)) => Some(FallbackPolicy {
            auth: Share::new("fallback.auth_percent", from.auth_percent).ok()?,
            tenant,
            anonymous,
            exempt: from
                .exempt
                .into_iter()
                .map(String::into_boxed_str)
                .collect(),
        }),
        (Err(error), _) | (_, Err(error)) => {
            let origin =
                lookup(root, "fallback").map_or(Origin::Nowhere, |entry| entry.key.clone());
            sink.report(&origin, format!("`fallback`: {error}"));
            None
        }
    }
}

/// Reads the settings of the `availability` breaker.
fn breaker(root: &Table, sink: &mut Sink) -> Option<AvailabilitySettings> {
    let from = read_table::<BreakerTable>(root, sink)?;
    Some(AvailabilitySettings {
        trip_failures: from.failures,
        probe_dwell: micros(from.probe_after),
        probe_interval: micros(from.probe_interval),
        close_successes: from.successes,
        prolonged_after: micros(from.prolonged_after),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::error::Sources;
    use crate::document::tree::{Node, set};

    /// Settings that are judged together with another one.
    const TOGETHER: [&str; 8] = [
        "guard.login.thresholds.soft",
        "guard.login.thresholds.hard",
        "guard.login.thresholds.severe",
        "guard.otp.thresholds.soft",
        "guard.otp.thresholds.hard",
        "guard.otp.thresholds.severe",
        "guard.login.correlation.new_per_account",
        "guard.otp.correlation.new_per_account",
    ];

    fn errors_with(path: &str, text: &str) -> Option<String> {
        let mut root = Table::new();
        set(&mut root, path, Node::text(text, Origin::Nowhere));
        let mut sink = Sink::default();
        let settings = settings(&root, HeaderFamilies::default(), &mut sink);
        let sources = Sources {
            path: None,
            file: "",
            builtin: "",
        };
        let errors = sink.finish(sources).map(|errors| errors.to_string());
        assert_eq!(settings.is_some(), errors.is_none());
        errors
    }

    #[test]
    fn the_declared_bounds_are_what_the_core_accepts() {
        let mut tried = 0;
        for schema in schemas() {
            for key in schema.keys {
                let path = format!("{}.{}", schema.path, key.name);
                let Some((min, max)) = key.bounds else {
                    continue;
                };
                if TOGETHER.contains(&path.as_str()) {
                    continue;
                }
                for bound in [min, max] {
                    assert_eq!(errors_with(&path, bound), None, "{path} = {bound}");
                    tried += 1;
                }
            }
        }
        assert!(tried > 100, "{tried}");
    }

    #[test]
    fn figures_that_contradict_each_other_name_their_table() {
        for (path, text, table) in [
            ("guard.login.thresholds.soft", "9", "`guard.login`"),
            ("guard.otp.correlation.new_per_account", "5", "`guard.otp`"),
            ("guard.api.severe_level", "L4", "`guard.api`"),
            ("guard.ladder", "15s,60s,5min,30min,6h,5h", "`guard`"),
        ] {
            let errors = errors_with(path, text).unwrap_or_default();
            assert!(errors.contains(table), "{path}: {errors}");
        }
    }
}
