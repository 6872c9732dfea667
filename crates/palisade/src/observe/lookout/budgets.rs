//! The fullest budgets: buckets that count a unit of the policy's own, such as tokens or money.

use std::collections::HashMap;
use std::sync::Arc;

use palisade_core::decision::LimitReading;
use palisade_core::key::Digest;
use palisade_core::time::Micros;
use serde::Serialize;

use super::PSEUDONYM_DIGITS;

/// Most buckets that are remembered; the fullest stay.
const BUCKETS_MAX: usize = 256;

/// One bucket of a budget as it was read last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FilledBudget {
    /// The limit.
    pub limit: Arc<str>,
    /// Dimension that the limit counts by, for example `org`.
    pub kind: &'static str,
    /// First digits of the subject's digest, the same as in the audit; of the bucket's digest
    /// where the subject is no one caller.
    pub pseudonym: String,
    /// The bucket's digest, by which reservations name it.
    pub bucket: String,
    /// The unit.
    pub unit: Arc<str>,
    /// Used and reserved units.
    pub used: u64,
    /// Units in a window.
    pub capacity: u64,
    /// When all of it is free again, in Unix seconds.
    pub reset: u64,
}

impl FilledBudget {
    fn per_mille(&self) -> u64 {
        self.used.saturating_mul(1000) / self.capacity.max(1)
    }
}

/// The latest readings of budgets.
#[derive(Debug, Default)]
pub(super) struct Budgets(HashMap<(Arc<str>, Digest), FilledBudget>);

/// True if the bucket counts a unit of the policy's own.
pub(super) const fn is_budget(reading: &LimitReading) -> bool {
    reading.unit.is_named()
}

impl Budgets {
    /// Remembers a bucket of this subject.
    pub(super) fn saw(&mut self, reading: &LimitReading, subject: Option<(&'static str, Digest)>) {
        let (kind, digest) = subject.unwrap_or((reading.scope, reading.partition));
        let mut pseudonym = digest.hex();
        pseudonym.truncate(PSEUDONYM_DIGITS);
        let budget = FilledBudget {
            limit: Arc::clone(&reading.name),
            kind,
            pseudonym,
            bucket: reading.partition.hex(),
            unit: reading.unit.name().into(),
            used: reading.limit.saturating_sub(reading.remaining),
            capacity: reading.limit,
            reset: reading.reset,
        };
        let key = (Arc::clone(&reading.name), reading.partition);
        if self.0.len() >= BUCKETS_MAX && !self.0.contains_key(&key) {
            self.leave_least();
        }
        self.0.insert(key, budget);
    }

    fn leave_least(&mut self) {
        let least = self.0.iter().min_by_key(|(_, budget)| budget.per_mille());
        if let Some(key) = least.map(|(key, _)| key.clone()) {
            self.0.remove(&key);
        }
    }

    /// Returns at most `most` buckets, the fullest first. Those that are empty again by now are
    /// forgotten.
    pub(super) fn read(&mut self, most: usize, now: Micros) -> Vec<FilledBudget> {
        let second = now.unix_seconds_ceil();
        self.0.retain(|_, budget| budget.reset > second);
        let mut all: Vec<&FilledBudget> = self.0.values().collect();
        all.sort_by(|a, b| {
            let by_share = b.per_mille().cmp(&a.per_mille());
            by_share.then_with(|| (&a.limit, &a.bucket).cmp(&(&b.limit, &b.bucket)))
        });
        all.into_iter().take(most).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use palisade_core::policy::QuotaUnit;

    use super::*;

    fn reading(bucket: u128, used: u64) -> LimitReading {
        LimitReading {
            name: "tokens".into(),
            scope: "org",
            class: "llm".into(),
            limit: 1_000,
            remaining: 1_000 - used,
            reset: 100,
            retry_after: None,
            window_seconds: 60,
            unit: QuotaUnit::Named("tokens".into()),
            partition: Digest(bucket),
            shadow: false,
        }
    }

    #[test]
    fn b_unit_the_fullest_budgets_come_first_until_they_are_empty_again() {
        let mut budgets = Budgets::default();
        budgets.saw(&reading(1, 200), Some(("org", Digest(7))));
        budgets.saw(&reading(2, 900), None);
        budgets.saw(&reading(1, 300), Some(("org", Digest(7))));
        let read = budgets.read(9, Micros(0));
        let shown: Vec<_> = read.iter().map(|one| (one.used, &*one.pseudonym)).collect();
        assert_eq!(shown, [(900, "000000000000"), (300, "000000000000")]);
        assert_eq!(read[1].bucket, Digest(1).hex());
        assert_eq!(budgets.read(1, Micros(0)).len(), 1);
        assert_eq!(budgets.read(9, Micros(100_000_000)), []);
    }

    #[test]
    fn b_unit_the_fullest_of_many_budgets_stay() {
        let mut budgets = Budgets::default();
        for bucket in 0..1_000 {
            budgets.saw(&reading(bucket, 500), None);
        }
        assert_eq!(budgets.0.len(), BUCKETS_MAX);
        budgets.saw(&reading(5_000, 999), None);
        assert_eq!(budgets.read(1, Micros(0))[0].used, 999);
    }
}
