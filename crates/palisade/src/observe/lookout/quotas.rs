//! API keys near the end of their quota, and when they will reach it.

use std::collections::HashMap;

use palisade_core::decision::QuotaReading;
use palisade_core::policy::hash_api_key;
use palisade_core::time::Micros;
use serde::Serialize;

/// Most keys that are remembered; the fullest stay.
const KEYS_MAX: usize = 256;
/// Share of the quota from which on a key is near its end.
const NEAR_PERCENT: u64 = 80;
/// Digits of the hash that are shown; `palisade quota list` has all of them.
const SHOWN_DIGITS: usize = 16;

/// A key near the end of its quota.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NearQuota {
    /// First digits of the key's hash.
    pub key: String,
    /// Units used this month.
    pub used: u64,
    /// Monthly quota.
    pub limit: u64,
    /// End of the month, in Unix seconds.
    pub reset: u64,
    /// Unix second at which the quota will be used up at the pace of this month so far; absent if
    /// it lasts.
    pub ends_at: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct QuotaUse {
    used: u64,
    limit: u64,
    reset: u64,
}

impl QuotaUse {
    fn per_mille(&self) -> u64 {
        self.used.saturating_mul(1000) / self.limit.max(1)
    }
}

/// The latest readings of keys near their end.
#[derive(Debug, Default)]
pub(super) struct Quotas(HashMap<String, QuotaUse>);

/// True if the key is near the end of its quota.
pub(super) const fn is_near(quota: &QuotaReading) -> bool {
    match quota.limit {
        Some(limit) => quota.used.saturating_mul(100) >= limit.saturating_mul(NEAR_PERCENT),
        None => false,
    }
}

impl Quotas {
    pub(super) fn saw(&mut self, key: &str, quota: &QuotaReading) {
        let Some(limit) = quota.limit else { return };
        let mut shown = hash_api_key(key);
        shown.truncate(SHOWN_DIGITS);
        let seen = QuotaUse {
            used: quota.used,
            limit,
            reset: quota.reset,
        };
        if self.0.len() >= KEYS_MAX && !self.0.contains_key(&shown) {
            self.leave_least();
        }
        self.0.insert(shown, seen);
    }

    fn leave_least(&mut self) {
        let least = self.0.iter().min_by_key(|(_, seen)| seen.per_mille());
        if let Some(key) = least.map(|(key, _)| key.clone()) {
            self.0.remove(&key);
        }
    }

    /// Returns at most `most` keys, the fullest first; months that are over are forgotten.
    pub(super) fn read(&mut self, most: usize, now: Micros) -> Vec<NearQuota> {
        let second = now.unix_seconds_ceil();
        self.0.retain(|_, seen| seen.reset > second);
        let mut all: Vec<(&String, &QuotaUse)> = self.0.iter().collect();
        all.sort_by(|a, b| b.1.per_mille().cmp(&a.1.per_mille()).then(a.0.cmp(b.0)));
        let first = all.into_iter().take(most);
        first.map(|(key, seen)| near(key, *seen, now)).collect()
    }
}

fn near(key: &str, seen: QuotaUse, now: Micros) -> NearQuota {
    let (start, _) = now.month_bounds();
    let elapsed = now.since(start) / 1_000_000;
    let whole = u128::from(elapsed) * u128::from(seen.limit) / u128::from(seen.used.max(1));
    let ends_at = start.unix_seconds_ceil() + u64::try_from(whole).unwrap_or(u64::MAX / 2);
    NearQuota {
        key: key.to_owned(),
        used: seen.used,
        limit: seen.limit,
        reset: seen.reset,
        ends_at: Some(ends_at).filter(|at| *at < seen.reset),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(used: u64, limit: u64) -> QuotaReading {
        let now = Micros::parse_rfc3339("2026-11-16T00:00:00Z").unwrap();
        let reset = now.month_bounds().1.unix_seconds_ceil();
        QuotaReading {
            limit: Some(limit),
            used,
            reset,
        }
    }

    #[test]
    fn q_quota_the_end_is_projected_at_the_pace_of_the_month() {
        let now = Micros::parse_rfc3339("2026-11-16T00:00:00Z").unwrap();
        let mut quotas = Quotas::default();
        quotas.saw("fast", &reading(90, 100));
        quotas.saw("over", &reading(120, 100));
        let read = quotas.read(9, now);
        assert_eq!(read[0].used, 120, "the fullest first");
        let ends = |near: &NearQuota| Micros(near.ends_at.unwrap() * 1_000_000).to_rfc3339();
        // Nine tenths in fifteen days: the rest lasts another 40 hours.
        assert_eq!(ends(&read[1]), "2026-11-17T16:00:00.000Z");
        assert!(ends(&read[0]).as_str() < "2026-11-16");
        let next_month = Micros::parse_rfc3339("2026-12-01T00:00:00Z").unwrap();
        assert_eq!(quotas.read(9, next_month), []);
    }

    #[test]
    fn q_quota_the_fullest_of_many_keys_stay() {
        let mut quotas = Quotas::default();
        for n in 0..1_000 {
            quotas.saw(&format!("key-{n}"), &reading(800 + n % 300, 1_000));
        }
        assert_eq!(quotas.0.len(), KEYS_MAX);
        assert!(!is_near(&reading(79, 100)) && is_near(&reading(80, 100)));
    }
}
