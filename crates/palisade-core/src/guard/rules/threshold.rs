//! G-THRESHOLD: a score in a band leads to that band's block.

use crate::decision::{KeyKind, Level};
use crate::guard::command::Command;
use crate::guard::ladder::{Class, Memory};
use crate::rule::Rule;

/// G-THRESHOLD: judges the keys that just got points. On the account (K4) and its
/// device (K5) the bands give SOFT L1, HARD L2, HARD L3 and up; on prefix and user
/// agent (K2) always SOFT.
pub(in crate::guard) fn judge(command: &mut Command<'_>) {
    let bands = [
        (KeyKind::Account, own_band as Band),
        (KeyKind::AccountDevice, own_band),
        (KeyKind::PrefixAgent, shared_band),
    ];
    for (key, band) in bands {
        if !command.hits.contains(&key) {
            continue;
        }
        if let Some((class, level)) = band(command, key) {
            command.order(key, class, level, Rule::G_THRESHOLD, Memory::Keep);
        }
    }
}

type Band = fn(&Command<'_>, KeyKind) -> Option<(Class, Level)>;

/// The block for a score of K4 or K5. In the severe band a remembered level is exceeded by one:
/// that makes the ladder progressive.
fn own_band(command: &Command<'_>, key: KeyKind) -> Option<(Class, Level)> {
    let bands = &command.flow.thresholds;
    let score = command.score(key);
    if score >= bands.severe {
        let remembered = command
            .state(key)
            .and_then(|state| state.level(command.policy, command.now));
        let level = match remembered {
            Some(level) if level >= Level::L3 => level.up(),
            _ => Level::L3,
        };
        Some((Class::Hard, level))
    } else if score >= bands.hard {
        Some((Class::Hard, Level::L2))
    } else if score >= bands.soft {
        Some((Class::Soft, Level::L1))
    } else {
        None
    }
}

/// The block for a score of K2: never HARD, because many people share a prefix and user agent.
fn shared_band(command: &Command<'_>, key: KeyKind) -> Option<(Class, Level)> {
    let bands = &command.flow.thresholds;
    let level = match command.score(key) {
        score if score >= bands.severe => Level::L3,
        score if score >= bands.hard => Level::L2,
        score if score >= bands.soft => Level::L1,
        _ => return None,
    };
    Some((Class::Soft, level))
}

#[cfg(test)]
mod tests {
    crate::scenarios::scenarios! {
        #[test]
        fn g_threshold_climbs_one_step_per_block() proves "G-THRESHOLD" {"
            0      fail d=d1           => allow
            1s     fail d=d1           => soft L1 15s G-THRESHOLD
            2s     check d=d1          => soft L1 14s G-THRESHOLD
            31s    fail d=d1           => hard L2 60s G-THRESHOLD
            1m31s  fail d=d1           => hard L3 300s
            6m31s  fail d=d1           => hard L4 1800s
            36m31s fail d=d1           => hard L5 21600s
        "}

        #[test]
        fn g_threshold_otp_is_stricter() proves "G-THRESHOLD" {"
            0      otp.fail d=d1       => soft L1 15s
            20s    otp.fail d=d1       => hard L3 300s
            5m20s  otp.fail d=d1       => hard L4 1800s
            1h     otp.fail a=b d=me+known => soft L1 15s
            1h1s   otp.fail a=b d=me+known => hard L2 60s
            1h61s  otp.fail a=b d=me+known => hard L3 300s
        "}

        #[test]
        fn g_threshold_a_soft_block_yields_to_a_challenge() proves "G-THRESHOLD" {"
            0 x2/1s fail d=d1          => *
            2s     check d=d1 pass     => allow
            3s     check d=d1          => soft L1 13s
            4s     fail d=d1 pass      => hard L2 60s
            5s     check d=d1 pass     => hard L2 59s
        "}
    }
}
