//! The daily failure budget of an account: a fixed epoch that nothing extends.

use crate::time::Micros;

use super::codec::{DecodeError, Reader, Writer};
use super::sets::keep_recent;
use crate::guard::policy::{BUDGET_MAX, BudgetPolicy};

/// The effect of a counted failure on the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetEffect {
    /// The failure needs no answer but that of an active budget.
    Plain,
    /// The failure met the threshold, and activation was put off once (G-RECOVERY).
    Recovered,
}

/// Eligible failures and the epoch they led to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// Eligible failures while no epoch is fixed, oldest first.
    times: Vec<Micros>,
    /// Start of the epoch, once the threshold has been met.
    epoch: Option<Micros>,
    /// True if activation was put off once (G-RECOVERY): the next eligible failure activates the
    /// budget.
    held: bool,
    /// When the budget last answered.
    answered: Option<Micros>,
}

impl Budget {
    /// True from activation to the end of the epoch.
    #[must_use]
    pub fn is_active(&self, policy: &BudgetPolicy, now: Micros) -> bool {
        self.epoch
            .is_some_and(|start| now < start.plus(policy.epoch))
    }

    /// When the epoch under way ends.
    #[must_use]
    pub fn ends_at(&self, policy: &BudgetPolicy) -> Option<Micros> {
        self.epoch.map(|start| start.plus(policy.epoch))
    }

    /// Number of eligible failures that are kept.
    #[must_use]
    pub fn count(&self) -> usize {
        self.times.len()
    }

    /// True if the budget is active and its cooldown is over.
    #[must_use]
    pub fn may_answer(&self, policy: &BudgetPolicy, now: Micros) -> bool {
        let cool = self
            .answered
            .is_none_or(|at| now.since(at) >= policy.cooldown);
        cool && self.is_active(policy, now)
    }

    /// Starts the cooldown.
    pub(in crate::guard) fn answer(&mut self, now: Micros) {
        self.answered = Some(now);
    }

    /// Counts an eligible failure. With `recovers`, the device may put activation off once.
    pub(in crate::guard) fn add(
        &mut self,
        policy: &BudgetPolicy,
        recovers: bool,
        now: Micros,
    ) -> BudgetEffect {
        // The epoch is fixed: failures during it neither extend nor restart it.
        if self.is_active(policy, now) {
            return BudgetEffect::Plain;
        }
        self.prune(policy, now);
        let threshold = policy.threshold as usize;
        if self.times.len() < threshold {
            // The count has fallen since activation was put off: it may be put off again.
            self.held = false;
            self.times.push(now);
        }
        if self.times.len() < threshold {
            return BudgetEffect::Plain;
        }
        if recovers && !self.held {
            self.held = true;
            return BudgetEffect::Recovered;
        }
        // The day began with the first failure counted, not with the one that met the threshold.
        self.epoch = self.times.first().copied();
        self.times.clear();
        self.held = false;
        BudgetEffect::Plain
    }

    /// Removes an epoch that has ended, with everything in it, and failures older than an epoch.
    pub(in crate::guard) fn prune(&mut self, policy: &BudgetPolicy, now: Micros) {
        if self.epoch.is_some() && !self.is_active(policy, now) {
            self.epoch = None;
            self.times.clear();
            self.held = false;
        }
        keep_recent(
            &mut self.times,
            policy.epoch,
            policy.threshold as usize,
            now,
        );
        self.held &= !self.times.is_empty();
        self.answered = self.answered.filter(|at| now.since(*at) < policy.cooldown);
    }

    pub(in crate::guard) fn expires_at(&self, policy: &BudgetPolicy) -> Micros {
        let counting = self
            .times
            .last()
            .map_or(Micros(0), |at| at.plus(policy.epoch));
        let cooling = self
            .answered
            .map_or(Micros(0), |at| at.plus(policy.cooldown));
        self.ends_at(policy)
            .unwrap_or_default()
            .max(counting)
            .max(cooling)
    }

    pub(in crate::guard) fn encode(&self, writer: &mut Writer) {
        writer.byte(u8::from(self.held));
        writer.times(&self.times);
        writer.near_option(self.epoch);
        writer.near_option(self.answered);
    }

    pub(in crate::guard) fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            held: reader.byte()? == 1,
            times: reader.times(BUDGET_MAX)?,
            epoch: reader.instant_option()?,
            answered: reader.instant_option()?,
        })
    }
}

#[cfg(test)]
impl Budget {
    pub(in crate::guard) fn full() -> Self {
        use super::bounds::FAR_OFF;
        Self {
            times: vec![FAR_OFF; BUDGET_MAX],
            epoch: Some(FAR_OFF),
            held: true,
            answered: Some(FAR_OFF),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::{DAY, HOUR};

    fn after(hours: u64) -> Micros {
        Micros(30 * DAY + hours * HOUR)
    }

    fn failing(policy: &BudgetPolicy, at: &[u64], recovers: bool) -> (Budget, BudgetEffect) {
        let mut budget = Budget::default();
        let mut last = BudgetEffect::Plain;
        for hours in at {
            last = budget.add(policy, recovers, after(*hours));
        }
        (budget, last)
    }

    #[test]
    fn g_budget_epoch_starts_at_the_oldest_failure_and_nothing_extends_it() {
        let policy = BudgetPolicy {
            threshold: 3,
            ..BudgetPolicy::login()
        };
        let (mut budget, _) = failing(&policy, &[0, 5, 10], false);
        assert_eq!(budget.ends_at(&policy), Some(after(24)));
        for hour in 11..24 {
            budget.add(&policy, false, after(hour));
            assert_eq!(budget.ends_at(&policy), Some(after(24)));
        }
        assert!(!budget.is_active(&policy, after(24)));
        budget.add(&policy, false, after(24));
        assert_eq!(budget.count(), 1, "counting starts anew");
    }

    #[test]
    fn g_budget_epoch_a_failure_a_day_old_no_longer_counts() {
        let policy = BudgetPolicy {
            threshold: 3,
            ..BudgetPolicy::login()
        };
        let (budget, _) = failing(&policy, &[0, 5, 24], false);
        assert_eq!((budget.count(), budget.epoch), (2, None));
    }

    #[test]
    fn g_recovery_puts_the_crossing_off_once() {
        let policy = BudgetPolicy::otp();
        let hours: Vec<u64> = (0..10).collect();
        let (mut budget, last) = failing(&policy, &hours, true);
        assert_eq!(last, BudgetEffect::Recovered);
        assert!(!budget.is_active(&policy, after(9)));
        let next = budget.add(&policy, true, after(10));
        assert_eq!(next, BudgetEffect::Plain);
        assert_eq!(
            budget.ends_at(&policy),
            Some(after(24)),
            "from the first failure"
        );
    }

    #[test]
    fn g_recovery_is_given_again_once_the_count_has_fallen() {
        let policy = BudgetPolicy::otp();
        let hours: Vec<u64> = (0..10).collect();
        let (mut budget, _) = failing(&policy, &hours, true);
        let again = budget.add(&policy, true, after(24));
        assert_eq!(again, BudgetEffect::Recovered, "nine were left of the day");
        assert!(!budget.is_active(&policy, after(24)));
        budget.add(&policy, true, Micros(after(24).0 + 1));
        assert_eq!(budget.ends_at(&policy), Some(after(25)));
    }
}
