//! The OWASP lockout of one (username, prefix), shared by every authentication
//! endpoint.

use crate::decision::{Challenge, KeyKind, Outcome};
use crate::facts::{Attempt, FieldError};
use crate::guard::aggregate::Candidate;
use crate::guard::records::codec::{DecodeError, Reader, Writer};
use crate::rule::Rule;
use crate::time::{DAY, MINUTE, Micros, retry_after_seconds};

const VERSION: u8 = 1;

/// Largest number of failures that `window_failures` may be.
pub const WINDOW_MAX: usize = 16;
/// Largest number of failures that `hard_failures` may be.
pub const HARD_MAX: usize = 32;
/// Largest number of lockouts that `captcha_lockouts` may be.
pub const LOCKOUTS_MAX: usize = 8;

/// Whether an attempt comes with a passed challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptchaProof {
    /// It does not come with one.
    Missing,
    /// Of ours: the attempt goes on, and the next one is asked again (C-BUYS).
    ForThisAttempt,
    /// Of the host, which vouches for it: the captcha is withdrawn.
    ByHost,
}

/// Effect of an outstanding challenge on a check (A-CAPTCHA).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChallengeMode {
    /// The check is denied until the challenge is passed.
    #[default]
    Require,
    /// The answer only advises the application to present a challenge.
    Advise,
}

/// The identifier that the lockout counts, together with the address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LockoutKey {
    /// The name as typed; an attempt without one is not counted.
    #[default]
    Username,
    /// The account, for applications that pass no name.
    Account,
}

/// Settings of the lockout.
#[derive(Clone, Debug, PartialEq)]
pub struct LockoutPolicy {
    /// If off, nothing is counted and nothing is denied.
    pub enabled: bool,
    /// The identifier that is counted.
    pub key: LockoutKey,
    /// Failures in `window` after which the next attempt is denied (A-WINDOW).
    pub window_failures: u32,
    /// The sliding window, in microseconds.
    pub window: u64,
    /// Failures in `hard_window` that start a lock, again each time this number is reached
    /// (A-HARD).
    pub hard_failures: u32,
    /// Window of `hard_failures`: a day, in microseconds.
    pub hard_window: u64,
    /// Duration of a lock, in microseconds.
    pub lock: u64,
    /// Delay after one, two, and three or more consecutive failures (A-BACKOFF).
    pub delays_ms: [u32; 3],
    /// Lockouts in `captcha_window` after which a challenge is required (A-CAPTCHA).
    pub captcha_lockouts: u32,
    /// Window of `captcha_lockouts`, in microseconds.
    pub captcha_window: u64,
    /// Effect of an outstanding challenge on a check.
    pub challenge_mode: ChallengeMode,
    /// The challenge to present.
    pub challenge: Challenge,
    /// Time for which an unanswered challenge is outstanding, in microseconds.
    pub challenge_for: u64,
}

impl Default for LockoutPolicy {
    fn default() -> Self {
        Self {
            enabled: true,
            key: LockoutKey::Username,
            window_failures: 5,
            window: 15 * MINUTE,
            hard_failures: 10,
            hard_window: DAY,
            lock: 15 * MINUTE,
            delays_ms: [250, 500, 1000],
            captcha_lockouts: 3,
            captcha_window: DAY,
            challenge_mode: ChallengeMode::Require,
            challenge: Challenge::Captcha,
            challenge_for: 20 * DAY,
        }
    }
}

impl LockoutPolicy {
    /// Refuses settings that do not fit in the record.
    ///
    /// # Errors
    /// The field that is out of bounds, and its bounds.
    pub fn validate(&self) -> Result<(), FieldError> {
        let bounded = [
            (self.window_failures, WINDOW_MAX, "lockout.window_failures"),
            (self.hard_failures, HARD_MAX, "lockout.hard_failures"),
            (
                self.captcha_lockouts,
                LOCKOUTS_MAX,
                "lockout.captcha_lockouts",
            ),
        ];
        for (count, max, field) in bounded {
            if count == 0 || count as usize > max {
                return Err(FieldError::new(
                    field,
                    "must be at least 1 and at most 16 (window), 32 (day) or 8 (lockouts)",
                ));
            }
        }
        let times = [
            self.window,
            self.hard_window,
            self.lock,
            self.captcha_window,
            self.challenge_for,
        ];
        if times.iter().any(|time| !(1..=20 * DAY).contains(time)) {
            return Err(FieldError::new(
                "lockout.window",
                "times must be above zero and at most 20 days",
            ));
        }
        Ok(())
    }

    fn delay_ms(&self, streak: u8) -> Option<u32> {
        let step = usize::from(streak.checked_sub(1)?).min(self.delays_ms.len() - 1);
        self.delays_ms.get(step).copied()
    }
}

/// The record of one (username, prefix).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lockout {
    touched: Micros,
    /// Last failures, at most as many as the window allows; oldest first.
    window: Vec<Micros>,
    /// Failures of the day since the last lock; oldest first.
    day: Vec<Micros>,
    /// Instants of the last lockouts; oldest first.
    locks: Vec<Micros>,
    /// End of the running lock.
    locked_until: Micros,
    /// Consecutive failures.
    streak: u8,
    /// The last failure.
    failed: Micros,
    /// The instant since which a challenge is outstanding.
    challenged: Option<Micros>,
}

/// The lockout's verdict on one attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockoutVerdict {
    /// Denials of the attempt.
    pub candidates: Vec<Candidate>,
    /// Progressive delay.
    pub delay_ms: Option<u32>,
    /// Challenge to offer.
    pub challenge: Option<Challenge>,
    /// True if this failure has started a lock.
    pub locked: bool,
    /// True if the record must be written.
    pub changed: bool,
}

/// Denials that follow from a record, with their remaining time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Remaining time of a lock, in microseconds (A-HARD).
    pub lock_us: u64,
    /// Time until the window is no longer full, in microseconds (A-WINDOW).
    pub window_us: u64,
    /// The required challenge, and for how long it is outstanding (A-CAPTCHA).
    pub challenge: Option<(Challenge, u64)>,
}

impl Lockout {
    /// Returns the denials in force, with their remaining time.
    #[must_use]
    pub fn standing(&self, policy: &LockoutPolicy, now: Micros) -> Standing {
        let left = |until: Micros| until.since(now);
        let required = policy.challenge_mode == ChallengeMode::Require;
        let challenge = self.challenged_until(policy).filter(|_| required);
        Standing {
            lock_us: left(self.locked_until),
            window_us: left(self.window_frees_at(policy)),
            challenge: challenge.map(|until| (policy.challenge, left(until))),
        }
    }

    /// True if an attempt would be denied now.
    #[must_use]
    pub fn is_denying(&self, policy: &LockoutPolicy, now: Micros) -> bool {
        !self.denials(policy, now).is_empty()
    }

    /// Denials by a running lock, and by a window that is full.
    #[must_use]
    pub fn denials(&self, policy: &LockoutPolicy, now: Micros) -> Vec<Candidate> {
        let until = [
            (Rule::A_HARD, self.locked_until),
            (Rule::A_WINDOW, self.window_frees_at(policy)),
        ];
        until
            .into_iter()
            .filter(|(_, until)| *until > now)
            .map(|(rule, until)| Candidate {
                rule,
                key: KeyKind::Lockout,
                outcome: Outcome::Deny,
                level: None,
                retry_after: retry_after_seconds(until.since(now)),
            })
            .collect()
    }

    /// When the window has room for another failure.
    fn window_frees_at(&self, policy: &LockoutPolicy) -> Micros {
        let allowed = policy.window_failures as usize;
        // The failure that has to leave; there are more than allowed if the policy was tightened.
        let index = self.window.len().checked_sub(allowed);
        index
            .and_then(|index| self.window.get(index))
            .map_or(Micros(0), |at| at.plus(policy.window))
    }

    /// The verdict on an attempt that something else refuses; nothing changes.
    #[must_use]
    pub fn look(&self, policy: &LockoutPolicy, now: Micros) -> LockoutVerdict {
        LockoutVerdict {
            candidates: self.denials(policy, now),
            challenge: self.challenge(policy, now),
            ..LockoutVerdict::default()
        }
    }

    /// Judges one attempt on any of the endpoints that share the record (A-SHARED).
    pub fn apply(
        &mut self,
        policy: &LockoutPolicy,
        attempt: Attempt,
        passed: CaptchaProof,
        now: Micros,
    ) -> LockoutVerdict {
        let mut verdict = LockoutVerdict::default();
        if passed == CaptchaProof::ByHost && self.challenged.take().is_some() {
            verdict.changed = true;
        }
        if !self.streak_lasts(policy, now) {
            self.streak = 0;
        }
        verdict.candidates = self.denials(policy, now);
        match attempt {
            Attempt::Check => {
                verdict.delay_ms = policy.delay_ms(self.streak);
                let unpassed = self.unpassed(policy, now);
                let unpassed = unpassed.filter(|_| passed == CaptchaProof::Missing);
                verdict.candidates.extend(unpassed);
            }
            Attempt::Failure => self.fail(policy, &mut verdict, now),
            Attempt::Success => verdict.changed |= self.succeed(),
            Attempt::Unknown => {}
        }
        verdict.challenge = self.challenge(policy, now);
        if verdict.changed {
            self.touched = now;
        }
        verdict
    }

    fn fail(&mut self, policy: &LockoutPolicy, verdict: &mut LockoutVerdict, now: Micros) {
        verdict.changed = true;
        self.failed = now;
        self.streak = self.streak.saturating_add(1);
        verdict.delay_ms = policy.delay_ms(self.streak);
        self.window.push(now);
        self.day.push(now);
        self.prune(policy, now);
        if self.day.len() >= policy.hard_failures as usize {
            self.lock(policy, now);
            verdict.locked = true;
            // The new lock may end later than the one that the verdict already names: replace it.
            let fresh = self.denials(policy, now);
            let lock = fresh
                .into_iter()
                .filter(|denial| denial.rule == Rule::A_HARD);
            verdict
                .candidates
                .retain(|denial| denial.rule != Rule::A_HARD);
            verdict.candidates.extend(lock);
        }
    }

    fn lock(&mut self, policy: &LockoutPolicy, now: Micros) {
        // The next lock needs as many new failures.
        self.day.clear();
        self.locked_until = self.locked_until.max(now.plus(policy.lock));
        self.locks.push(now);
        let asked = policy.captcha_lockouts as usize;
        keep(&mut self.locks, policy.captcha_window, asked, now);
        if self.locks.len() >= asked {
            self.challenged = Some(now);
        }
    }

    /// Ends the streak, empties the window, forgets the lockouts and withdraws a challenge; the
    /// day's count of failures stays.
    fn succeed(&mut self) -> bool {
        let changed = self.streak > 0
            || !self.window.is_empty()
            || !self.locks.is_empty()
            || self.challenged.is_some();
        self.streak = 0;
        self.window.clear();
        self.locks.clear();
        self.challenged = None;
        changed
    }

    fn streak_lasts(&self, policy: &LockoutPolicy, now: Micros) -> bool {
        now.since(self.failed) < policy.hard_window
    }

    fn challenge(&self, policy: &LockoutPolicy, now: Micros) -> Option<Challenge> {
        self.challenged_until(policy)
            .filter(|until| *until > now)
            .map(|_| policy.challenge)
    }

    /// When an unanswered challenge is forgotten.
    #[must_use]
    pub fn challenged_until(&self, policy: &LockoutPolicy) -> Option<Micros> {
        Some(self.challenged?.plus(policy.challenge_for))
    }

    /// Returns the denial that holds until a required challenge is passed. Its wait is nominal,
    /// the shortest that an answer can carry: waiting does not help, and a client that passes the
    /// challenge need not wait.
    #[must_use]
    pub fn unpassed(&self, policy: &LockoutPolicy, now: Micros) -> Option<Candidate> {
        let required = policy.challenge_mode == ChallengeMode::Require;
        self.challenge(policy, now)
            .filter(|_| required)
            .map(|_| Candidate {
                rule: Rule::A_CAPTCHA,
                key: KeyKind::Lockout,
                outcome: Outcome::Deny,
                level: None,
                retry_after: 1,
            })
    }

    /// Lifts a lock, frees the window and withdraws a challenge; false if nothing was denied.
    pub fn lift(&mut self, policy: &LockoutPolicy, now: Micros) -> bool {
        let denying = self.is_denying(policy, now) || self.unpassed(policy, now).is_some();
        self.locked_until = Micros(0);
        self.window.clear();
        self.challenged = None;
        self.touched = now;
        denying
    }

    /// Forgets every failure: the next one counts as the first.
    pub fn forgive(&mut self) {
        *self = Self {
            touched: self.touched,
            ..Self::default()
        };
    }

    /// Drops state that has expired.
    pub(crate) fn prune(&mut self, policy: &LockoutPolicy, now: Micros) {
        let full = (policy.window_failures as usize).min(WINDOW_MAX);
        keep(&mut self.window, policy.window, full, now);
        let day = (policy.hard_failures as usize).min(HARD_MAX);
        keep(&mut self.day, policy.hard_window, day, now);
        let locks = (policy.captcha_lockouts as usize).min(LOCKOUTS_MAX);
        keep(&mut self.locks, policy.captcha_window, locks, now);
        self.challenged = self
            .challenged
            .filter(|since| now.since(*since) < policy.challenge_for);
        if !self.streak_lasts(policy, now) {
            self.streak = 0;
        }
        if self.streak == 0 {
            self.failed = Micros(0);
        }
        if self.locked_until <= now {
            self.locked_until = Micros(0);
        }
    }

    /// The instant from which nothing in the record matters any more.
    #[must_use]
    pub fn expires_at(&self, policy: &LockoutPolicy) -> Micros {
        let after = |at: Option<&Micros>, time: u64| at.map_or(Micros(0), |at| at.plus(time));
        [
            after(self.window.last(), policy.window),
            after(self.day.last(), policy.hard_window),
            after(self.locks.last(), policy.captcha_window),
            after(self.challenged.as_ref(), policy.challenge_for),
            after(
                Some(&self.failed).filter(|_| self.streak > 0),
                policy.hard_window,
            ),
            self.locked_until,
        ]
        .into_iter()
        .max()
        .unwrap_or_default()
    }

    /// The record's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new(VERSION, self.touched);
        writer.byte(self.streak);
        writer.near_option(Some(self.failed).filter(|_| self.streak > 0));
        writer.times(&self.window);
        writer.times(&self.day);
        writer.times(&self.locks);
        writer.near_option(Some(self.locked_until).filter(|until| *until > Micros(0)));
        writer.near_option(self.challenged);
        writer.finish()
    }

    /// Reads what [`Lockout::encode`] wrote.
    ///
    /// # Errors
    /// Bytes that make no sense, or of a newer version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes, VERSION)?;
        let lockout = Self {
            touched: reader.base(),
            streak: reader.byte()?,
            failed: reader.instant_option()?.unwrap_or_default(),
            window: reader.times(WINDOW_MAX)?,
            day: reader.times(HARD_MAX)?,
            locks: reader.times(LOCKOUTS_MAX)?,
            locked_until: reader.instant_option()?.unwrap_or_default(),
            challenged: reader.instant_option()?,
        };
        reader.finish()?;
        Ok(lockout)
    }
}

/// Keeps the newest `max` times that are less than `window` old.
fn keep(times: &mut Vec<Micros>, window: u64, max: usize, now: Micros) {
    times.retain(|at| now.since(*at) < window);
    let surplus = times.len().saturating_sub(max);
    times.drain(..surplus);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::HOUR;

    #[test]
    fn the_largest_lockout_record_fits_half_a_kibibyte() {
        let far = Micros(u64::MAX);
        let lockout = Lockout {
            touched: Micros(0),
            window: vec![far; WINDOW_MAX],
            day: vec![far; HARD_MAX],
            locks: vec![far; LOCKOUTS_MAX],
            locked_until: far,
            streak: u8::MAX,
            failed: far,
            challenged: Some(far),
        };
        let bytes = lockout.encode();
        assert!(bytes.len() <= 512, "{} bytes", bytes.len());
        assert!(Lockout::decode(&bytes).is_ok());
    }

    #[test]
    fn figures_that_the_record_cannot_hold_are_refused() {
        assert_eq!(LockoutPolicy::default().validate(), Ok(()));
        let policy = LockoutPolicy {
            hard_failures: 33,
            ..LockoutPolicy::default()
        };
        assert_eq!(
            policy.validate().unwrap_err().field,
            "lockout.hard_failures"
        );
    }

    fn challenged(policy: &LockoutPolicy, now: Micros) -> Lockout {
        let mut lockout = Lockout::default();
        for _ in 0..30 {
            lockout.apply(policy, Attempt::Failure, CaptchaProof::Missing, now);
        }
        lockout
    }

    #[test]
    fn a_captcha_advice_denies_nobody() {
        let policy = LockoutPolicy {
            challenge_mode: ChallengeMode::Advise,
            ..LockoutPolicy::default()
        };
        let mut lockout = challenged(&policy, Micros(DAY));
        let later = Micros(DAY).plus(HOUR);
        let verdict = lockout.apply(&policy, Attempt::Check, CaptchaProof::Missing, later);
        assert!(verdict.candidates.is_empty());
        assert_eq!(verdict.challenge, Some(Challenge::Captcha));
    }

    #[test]
    fn a_captcha_is_lifted_with_its_lock() {
        let policy = LockoutPolicy::default();
        let mut lockout = challenged(&policy, Micros(DAY));
        let later = Micros(DAY).plus(HOUR);
        assert!(!lockout.is_denying(&policy, later));
        assert!(lockout.lift(&policy, later), "the challenge was denied for");
        let verdict = lockout.apply(&policy, Attempt::Check, CaptchaProof::Missing, later);
        assert!(verdict.candidates.is_empty() && verdict.challenge.is_none());
        assert!(!lockout.lift(&policy, later));
    }

    #[test]
    fn a_captcha_lockouts_count_only_if_no_success_lies_between_them() {
        let policy = LockoutPolicy::default();
        let mut lockout = Lockout::default();
        let mut now = Micros(DAY);
        let mut lock = |lockout: &mut Lockout| {
            let mut challenge = None;
            for _ in 0..10 {
                now = now.plus(HOUR / 4);
                challenge = lockout
                    .apply(&policy, Attempt::Failure, CaptchaProof::Missing, now)
                    .challenge;
            }
            challenge
        };
        let succeed = |lockout: &mut Lockout| {
            let verdict = lockout.apply(
                &policy,
                Attempt::Success,
                CaptchaProof::Missing,
                Micros(2 * DAY),
            );
            assert!(verdict.changed);
        };
        assert_eq!([lock(&mut lockout), lock(&mut lockout)], [None, None]);
        succeed(&mut lockout);
        assert_eq!([lock(&mut lockout), lock(&mut lockout)], [None, None]);
        assert_eq!(lock(&mut lockout), Some(Challenge::Captcha));
        succeed(&mut lockout);
        assert_eq!(lock(&mut lockout), None, "the first since the success");
    }

    #[test]
    fn a_lifted_lock_denies_no_more() {
        let policy = LockoutPolicy::default();
        let mut lockout = Lockout::default();
        let now = Micros(DAY);
        for _ in 0..10 {
            lockout.apply(&policy, Attempt::Failure, CaptchaProof::Missing, now);
        }
        assert!(lockout.is_denying(&policy, now));
        assert!(lockout.lift(&policy, now));
        assert!(!lockout.is_denying(&policy, now));
        assert!(!lockout.lift(&policy, now));
    }

    crate::scenarios::scenarios! {
        #[test]
        fn a_window_five_failures_deny_the_next_attempt() proves "A-WINDOW" {"
            0 x5/1s fail a=a# d=d#+known user=bob => allow
            5s     check a=b d=e+known user=bob => deny 895s A-WINDOW
            6s     check a=b d=e+known user=eve => allow
            6s     check a=b d=e+known user=bob ip=2 => allow
            7s     ok a=b d=e+known user=bob => deny 893s nothing
            15m    check a=b d=e+known user=bob => allow
        "}

        #[test]
        fn a_hard_every_tenth_failure_locks() proves "A-HARD" {"
            0 x9/4m fail a=a# d=d#+known user=bob => allow
            36m    fail a=b d=e+known user=bob => deny 900s A-HARD locked
            37m    check a=b d=e+known user=bob => deny 840s A-HARD
            51m    check a=b d=e+known user=bob => allow
            55m x9/4m fail a=c# d=f#+known user=bob => allow
            91m    fail a=b d=e+known user=bob => deny 900s A-HARD locked
        "}

        #[test]
        fn a_backoff_grows_with_consecutive_failures() proves "A-BACKOFF" {"
            0      check a=b d=e+known user=bob => allow delay=0
            1s     fail a=b d=e+known user=bob => allow delay=250
            2s     check a=c d=f+known user=bob => allow delay=250
            3s     fail a=c d=f+known user=bob => allow delay=500
            4s     fail a=d d=g+known user=bob => allow delay=1000
            5s     fail a=h d=h+known user=bob => allow delay=1000
            6s     ok a=h d=h+known user=bob => allow delay=0
            7s     check a=h d=h+known user=bob => allow delay=0
            8s     fail a=i d=i+known user=bob => allow delay=250
        "}

        #[test]
        fn a_captcha_three_lockouts_ask_for_a_challenge() proves "A-CAPTCHA" {"
            0 x29/4m fail a=a# d=d#+known user=bob => nocaptcha
            116m   fail a=b d=e+known user=bob => deny captcha locked
            117m   check a=b d=e+known user=bob => deny 840s A-HARD captcha
            140m   check a=b d=e+known user=bob => deny 1s A-CAPTCHA captcha
            140m   check a=b d=e+known user=eve => allow nocaptcha
            141m   check a=b d=e+known user=bob pass => allow nocaptcha
            142m   check a=b d=e+known user=bob => allow nocaptcha
            143m x10/4m fail a=c# d=f#+known user=bob => *
            200m   check a=b d=e+known user=bob => deny 1s A-CAPTCHA captcha
            201m   fail a=b d=e+known user=bob => allow captcha
            202m   ok a=b d=e+known user=bob => allow nocaptcha
            203m   check a=b d=e+known user=bob => allow nocaptcha
        "}

        #[test]
        fn a_shared_failures_of_every_endpoint_count_together() proves "A-SHARED" {"
            0 x3/1s fail a=a# d=d#+known user=Bob => allow
            3s     otp.fail a=b d=e+known user=bob => soft
            4s     otp.fail a=c d=f+known user=bob => soft
            5s     check a=h d=h+known user=bob => deny 895s A-WINDOW
        "}

        #[test]
        fn a_shared_a_success_clears_the_window_but_not_the_day() proves "A-HARD" {"
            0 x4/1s fail a=a# d=d#+known user=bob => allow
            4s     ok a=b d=e+known user=bob => allow
            10s x4/1s fail a=b# d=e#+known user=bob => allow
            14s    ok a=b d=e+known user=bob => allow
            20s    fail a=c1 d=f1+known user=bob => allow
            21s    fail a=c2 d=f2+known user=bob => deny 900s A-HARD
        "}

        #[test]
        fn a_uniform_a_new_account_is_delayed_like_any_other() proves "A-UNIFORM" {"
            0      ok a=old d=own      => allow
            1s     fail a=old d=x user=bob => allow delay=250
            2s     fail a=new d=y user=eve => allow delay=250
        "}
    }
}
