//! Bounds of the guard's settings: values that fit in the records and that can take effect at all.

use crate::decision::Level;
use crate::facts::FieldError;
use crate::time::{DAY, HOUR, MINUTE, SECOND};

use super::policy::{
    ApiPolicy, BUDGET_MAX, BudgetPolicy, CHANGES_MAX, CorrelationPolicy, FINGERPRINTS_MAX,
    FlowPolicy, GuardMode, GuardPolicy, HISTORY_MAX, MICRO_CAP_MAX, NEW_DEVICES_MAX, SCORE_MAX,
    SET_MAX,
};

impl GuardPolicy {
    /// Refuses settings that do not fit in the records or that could never take effect.
    ///
    /// # Errors
    /// The field that is out of bounds, and its bounds.
    pub fn validate(&self) -> Result<(), FieldError> {
        self.login.validate()?;
        self.otp.validate()?;
        self.api.validate()?;
        self.send.validate()?;
        let decay = [self.decay.account, self.decay.device, self.decay.network];
        require(
            decay
                .iter()
                .all(|interval| (SECOND..=6 * HOUR).contains(interval)),
            "decay",
            "intervals must be between 1 second and 6 hours",
        )?;
        require(
            self.decay.pause <= DAY && self.decay.pause_window <= 7 * DAY,
            "decay.pause",
            "must be at most 1 day, within at most 7 days",
        )?;
        require(
            self.ladder.durations.is_sorted() && self.ladder.durations[0] >= SECOND,
            "ladder.durations",
            "must rise from at least 1 second",
        )?;
        require(
            self.ladder.durations[5] <= 7 * DAY
                && (SECOND..=6 * HOUR).contains(&self.ladder.forget),
            "ladder",
            "levels last at most 7 days and `forget` at most 6 hours",
        )?;
        require(
            self.once_window <= DAY && self.familiar_for <= 5 * 365 * DAY,
            "once_window",
            "must be at most 1 day, and `familiar_for` at most 5 years",
        )
    }
}

impl GuardPolicy {
    /// Names of the OTP flow's settings that are laxer than the login flow's: a short code is
    /// easier to guess than a password.
    #[must_use]
    pub fn laxer_otp_figures(&self) -> Vec<&'static str> {
        let (login, otp) = (&self.login, &self.otp);
        let (scores, usual) = (&otp.scores, &login.scores);
        let (bands, usual_bands) = (&otp.thresholds, &login.thresholds);
        let figures = [
            ("enabled", !otp.enabled && login.enabled),
            (
                "mode",
                otp.mode != login.mode && otp.mode == GuardMode::Shadow,
            ),
            ("pending", !otp.pending && login.pending),
            ("scores.known", scores.known < usual.known),
            ("scores.new", scores.new < usual.new),
            ("scores.missing", scores.missing < usual.missing),
            (
                "scores.repeat_missing",
                scores.repeat_missing < usual.repeat_missing,
            ),
            ("thresholds.soft", bands.soft > usual_bands.soft),
            ("thresholds.hard", bands.hard > usual_bands.hard),
            ("thresholds.severe", bands.severe > usual_bands.severe),
            (
                "budget.threshold",
                otp.budget.threshold > login.budget.threshold,
            ),
            ("budget.level", otp.budget.level < login.budget.level),
            (
                "budget.cooldown",
                otp.budget.cooldown < login.budget.cooldown,
            ),
        ];
        let laxer = figures.into_iter().filter(|(_, laxer)| *laxer);
        laxer.map(|(name, _)| name).collect()
    }
}

impl FlowPolicy {
    fn validate(&self) -> Result<(), FieldError> {
        let bands = &self.thresholds;
        require(
            0 < bands.soft && bands.soft < bands.hard && bands.hard < bands.severe,
            "thresholds",
            "must rise: soft < hard < severe",
        )?;
        require(
            bands.severe <= SCORE_MAX,
            "thresholds.severe",
            "must be at most 24: a score never exceeds that",
        )?;
        self.budget.validate()?;
        require(
            (SECOND..=HOUR).contains(&self.pending_ttl),
            "pending_ttl",
            "must be between 1 second and 1 hour",
        )?;
        require(
            within(self.equilibrium.soft_blocks, HISTORY_MAX) && self.equilibrium.window <= DAY,
            "equilibrium",
            "counts 1 to 8 soft blocks within at most 1 day",
        )?;
        self.correlation.validate()
    }
}

impl BudgetPolicy {
    fn validate(&self) -> Result<(), FieldError> {
        require(
            within(self.threshold, BUDGET_MAX),
            "budget.threshold",
            "must be 1 to 64",
        )?;
        require(
            within(self.micro_cap, MICRO_CAP_MAX),
            "budget.micro_cap",
            "must be 1 to 10",
        )?;
        require(
            (MINUTE..=DAY).contains(&self.epoch),
            "budget.epoch",
            "must be between 1 minute and 1 day: a budget never lasts longer",
        )
    }
}

impl CorrelationPolicy {
    fn validate(&self) -> Result<(), FieldError> {
        let sets = [&self.spray, &self.rotation, &self.dilution, &self.churn];
        require(
            within(self.churn.threshold, CHANGES_MAX),
            "correlation.churn",
            "must be 2 to 6",
        )?;
        require(
            sets.iter()
                .all(|p| p.threshold >= 2 && within(p.threshold, SET_MAX)),
            "correlation",
            "thresholds must be 2 to 16: a set holds 16 members",
        )?;
        require(
            within(self.new_per_account, NEW_DEVICES_MAX)
                && (2..=self.new_per_account).contains(&self.flood.threshold),
            "correlation.flood",
            "must be 2 to `new_per_account`, which is at most 10",
        )?;
        require(
            within(self.new_per_prefix, FINGERPRINTS_MAX),
            "correlation.new_per_prefix",
            "must be 1 to 50",
        )?;
        require(
            within(self.rotation_repeat.threshold, HISTORY_MAX)
                && self.rotation_repeat.window <= DAY,
            "correlation.rotation_repeat",
            "must be 1 to 8 within at most 1 day",
        )?;
        let windows = sets.iter().map(|p| p.window);
        require(
            windows
                .chain([self.flood.window, self.new_window, self.watch_window])
                .all(|window| (SECOND..=DAY).contains(&window)),
            "correlation",
            "windows must be between 1 second and 1 day",
        )
    }
}

impl ApiPolicy {
    fn validate(&self) -> Result<(), FieldError> {
        let limits = [&self.minor, &self.moderate, &self.severe];
        require(
            limits.iter().all(|l| l.limit > 0 && l.level <= Level::L3),
            "api",
            "limits must be at least 1 and levels at most L3",
        )?;
        require(
            (SECOND..=DAY).contains(&self.window),
            "api.window",
            "must be between 1 second and 1 day",
        )
    }
}

const fn within(count: u32, max: usize) -> bool {
    1 <= count && count as usize <= max
}

fn require(holds: bool, field: &'static str, problem: &'static str) -> Result<(), FieldError> {
    if holds {
        Ok(())
    } else {
        Err(FieldError::new(field, problem))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid() {
        assert_eq!(GuardPolicy::default().validate(), Ok(()));
    }

    #[test]
    fn otp_figures_laxer_than_those_of_logins_are_named() {
        let mut policy = GuardPolicy::default();
        assert_eq!(policy.laxer_otp_figures(), Vec::<&str>::new());
        policy.otp.scores.new = 2;
        policy.otp.thresholds.severe = 20;
        policy.otp.budget.threshold = 40;
        assert_eq!(
            policy.laxer_otp_figures(),
            ["scores.new", "thresholds.severe", "budget.threshold"]
        );
    }

    #[test]
    fn figures_that_a_record_cannot_hold_are_refused() {
        let mut policy = GuardPolicy::default();
        policy.login.budget.threshold = 65;
        assert_eq!(policy.validate().unwrap_err().field, "budget.threshold");
        let mut policy = GuardPolicy::default();
        policy.otp.correlation.spray.threshold = 17;
        assert_eq!(policy.validate().unwrap_err().field, "correlation");
        let mut policy = GuardPolicy::default();
        policy.login.budget.epoch = 2 * DAY;
        assert_eq!(policy.validate().unwrap_err().field, "budget.epoch");
    }
}
