//! Scores as operators see them: how high they are and when they fall (G-DECAY).

use crate::decision::KeyKind;
use crate::time::Micros;

use super::keys::interval;
use super::ladder::KeyState;
use super::policy::GuardPolicy;
use super::records::{Account, Device, Network};

/// A score above zero, and when it falls if nothing is added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandingScore {
    /// The key it is on.
    pub key: KeyKind,
    /// User agent or device within the record, as a digest; `None` for the record itself.
    pub member: Option<String>,
    /// Points now.
    pub score: u8,
    /// When the score falls by a point.
    pub falls_at: Micros,
    /// When the score is zero.
    pub gone_at: Micros,
}

fn standing(
    policy: &GuardPolicy,
    key: KeyKind,
    member: Option<String>,
    state: &KeyState,
    now: Micros,
) -> Option<StandingScore> {
    let interval = interval(policy, key);
    let score = state.score(policy, interval, now);
    let mut falls = state.falls(policy, interval, now);
    let falls_at = falls.next()?;
    Some(StandingScore {
        key,
        member,
        score,
        falls_at,
        gone_at: falls.last().unwrap_or(falls_at),
    })
}

impl Account {
    /// Scores of the account and of its devices.
    #[must_use]
    pub fn standing_scores(&self, policy: &GuardPolicy, now: Micros) -> Vec<StandingScore> {
        let devices = self.devices.iter().filter_map(|device| {
            let member = Some(device.id.hex());
            standing(policy, KeyKind::AccountDevice, member, &device.key, now)
        });
        standing(policy, KeyKind::Account, None, &self.key, now)
            .into_iter()
            .chain(devices)
            .collect()
    }
}

impl Network {
    /// Scores of the prefix and of its user agents.
    #[must_use]
    pub fn standing_scores(&self, policy: &GuardPolicy, now: Micros) -> Vec<StandingScore> {
        let agents = self.agents.iter().filter_map(|agent| {
            let member = Some(agent.id.hex());
            standing(policy, KeyKind::PrefixAgent, member, &agent.key, now)
        });
        standing(policy, KeyKind::Prefix, None, &self.key, now)
            .into_iter()
            .chain(agents)
            .collect()
    }
}

impl Device {
    /// The score of the fingerprint.
    #[must_use]
    pub fn standing_scores(&self, policy: &GuardPolicy, now: Micros) -> Vec<StandingScore> {
        standing(policy, KeyKind::Device, None, &self.key, now)
            .into_iter()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::{DAY, MINUTE};

    #[test]
    fn g_decay_a_standing_score_says_when_it_falls_and_when_it_is_gone() {
        let policy = GuardPolicy::default();
        let start = Micros(DAY);
        let mut account = Account::default();
        account.key.add(&policy, policy.decay.account, 3, start);
        let now = start.plus(4 * MINUTE);
        let seen = account.standing_scores(&policy, now);
        assert_eq!(seen.len(), 1);
        assert_eq!((seen[0].key, seen[0].score), (KeyKind::Account, 3));
        assert_eq!(seen[0].falls_at, start.plus(policy.decay.account));
        assert_eq!(seen[0].gone_at, start.plus(3 * policy.decay.account));
        let score = |at| account.key.score(&policy, policy.decay.account, at);
        assert_eq!(score(seen[0].falls_at), 2);
        assert_eq!(score(Micros(seen[0].gone_at.0 - 1)), 1);
        assert_eq!(score(seen[0].gone_at), 0);
        assert!(account.standing_scores(&policy, seen[0].gone_at).is_empty());
    }
}
