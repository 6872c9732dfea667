//! Combines the candidates of all rules into one answer (G-AGGREGATE).

use crate::decision::{Challenge, Decision, ErrorCode, KeyKind, Level, Outcome, Reason};
use crate::rule::Rule;
use crate::time::{Micros, retry_after_seconds};

use super::ladder::Block;

/// Most candidates that an answer lists; no request can have more.
pub const REASONS_MAX: usize = 16;

/// The answer that one rule asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The rule.
    pub rule: Rule,
    /// The key it is about.
    pub key: KeyKind,
    /// SOFT, HARD or (lockout) deny.
    pub outcome: Outcome,
    /// The level of a block.
    pub level: Option<Level>,
    /// Whole seconds to wait.
    pub retry_after: u64,
}

impl Candidate {
    /// A running block, with what remains of it.
    #[must_use]
    pub fn running(key: KeyKind, block: &Block, now: Micros) -> Self {
        Self {
            rule: block.rule,
            key,
            outcome: block.class.outcome(),
            level: Some(block.level),
            retry_after: retry_after_seconds(block.until.since(now)),
        }
    }

    fn strength(&self) -> (Option<Level>, u64) {
        (self.level, self.retry_after)
    }

    /// True if the candidate locks a name out for some time. A challenge is no lockout: waiting
    /// does not help against it.
    fn is_lockout(&self) -> bool {
        matches!(self.rule, Rule::A_WINDOW | Rule::A_HARD)
    }
}

/// The longest wait among the candidates of the strictest outcome.
fn longest_of_strictest(candidates: &[&Candidate]) -> Option<u64> {
    let strictest = candidates.iter().map(|c| c.outcome).max();
    let winners = candidates.iter().filter(|c| Some(c.outcome) == strictest);
    winners.map(|c| c.retry_after).max()
}

impl From<&Candidate> for Reason {
    fn from(candidate: &Candidate) -> Self {
        Self {
            rule: candidate.rule,
            key: Some(candidate.key),
            limit: None,
            decision: candidate.outcome,
            level: candidate.level,
            retry_after: Some(candidate.retry_after),
        }
    }
}

/// The guard's and the lockout's answer to one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The outcome.
    pub outcome: Outcome,
    /// The level of a block.
    pub level: Option<Level>,
    /// Whole seconds to wait.
    pub retry_after: Option<u64>,
    /// The rule that decided; `None` for allow.
    pub rule: Option<Rule>,
    /// All candidates.
    pub reasons: Vec<Candidate>,
    /// Progressive delay (A-BACKOFF).
    pub delay_ms: Option<u32>,
    /// Challenge to offer (A-CAPTCHA).
    pub challenge: Option<Challenge>,
}

impl Answer {
    /// The answer that allows.
    #[must_use]
    pub const fn allow() -> Self {
        Self {
            outcome: Outcome::Allow,
            level: None,
            retry_after: None,
            rule: None,
            reasons: Vec::new(),
            delay_ms: None,
            challenge: None,
        }
    }

    /// Chooses the answer: the strictest outcome wins; within it the highest level and the longest
    /// time, which need not come from one candidate. Where the lockout refuses too, the wait is
    /// the longer of both: a client that came back earlier would be refused again.
    #[must_use]
    pub fn of(mut candidates: Vec<Candidate>) -> Self {
        candidates.truncate(REASONS_MAX);
        let Some(outcome) = candidates.iter().map(|c| c.outcome).max() else {
            return Self::allow();
        };
        let winners = || candidates.iter().filter(|c| c.outcome == outcome);
        // `max_by_key` returns the last of several maxima: in reverse, that is the first
        // candidate.
        let leader = winners().rev().max_by_key(|c| c.strength());
        // Apart, because the strictest outcome of one must not hide the wait of the other.
        let (locks, others): (Vec<_>, Vec<_>) = candidates.iter().partition(|c| c.is_lockout());
        Self {
            outcome,
            level: leader.and_then(|c| c.level),
            retry_after: longest_of_strictest(&locks).max(longest_of_strictest(&others)),
            rule: leader.map(|c| c.rule),
            reasons: candidates,
            ..Self::allow()
        }
    }

    /// The machine-readable error of a refusal.
    #[must_use]
    pub fn error(&self) -> Option<ErrorCode> {
        match self.outcome {
            Outcome::Allow => None,
            _ if self.reasons.iter().any(Candidate::is_lockout) => Some(ErrorCode::AccountLocked),
            Outcome::Deny if self.rule == Some(Rule::A_CAPTCHA) => {
                Some(ErrorCode::ChallengeRequired)
            }
            Outcome::Deny => Some(ErrorCode::AccountLocked),
            Outcome::SoftBlock | Outcome::HardBlock => Some(ErrorCode::RateLimitExceeded),
        }
    }

    /// Turns the answer into a decision, with its error and status.
    #[must_use]
    pub fn decision(&self, at: Micros) -> Decision {
        Decision {
            outcome: self.outcome,
            level: self.level,
            retry_after: self.retry_after,
            rule: self.rule,
            reasons: self.reasons.iter().map(Reason::from).collect(),
            error: self.error(),
            status: self.error().map_or(200, ErrorCode::status),
            delay_ms: self.delay_ms,
            challenge: self.challenge,
            ..Decision::allow(at)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(rule: Rule, outcome: Outcome, level: Level, retry_after: u64) -> Candidate {
        Candidate {
            rule,
            key: KeyKind::Account,
            outcome,
            level: Some(level),
            retry_after,
        }
    }

    #[test]
    fn g_aggregate_class_first_then_highest_level_and_longest_time() {
        let answer = Answer::of(vec![
            candidate(Rule::G_BUDGET, Outcome::SoftBlock, Level::L4, 1800),
            candidate(Rule::G_THRESHOLD, Outcome::HardBlock, Level::L2, 60),
            candidate(Rule::G_SPRAY, Outcome::HardBlock, Level::L3, 12),
        ]);
        assert_eq!(answer.outcome, Outcome::HardBlock);
        assert_eq!(answer.level, Some(Level::L3));
        assert_eq!(answer.retry_after, Some(60));
        assert_eq!(answer.rule, Some(Rule::G_SPRAY));
        assert_eq!(answer.reasons.len(), 3);
    }

    #[test]
    fn g_aggregate_a_tie_names_the_rule_that_came_first() {
        let answer = Answer::of(vec![
            candidate(Rule::G_THRESHOLD, Outcome::HardBlock, Level::L2, 60),
            candidate(Rule::G_EQUILIBRIUM, Outcome::HardBlock, Level::L2, 60),
        ]);
        assert_eq!(answer.rule, Some(Rule::G_THRESHOLD));
    }

    #[test]
    fn an_allowed_answer_names_no_rule_and_a_refused_one_its_error() {
        let decision = Answer::allow().decision(Micros(5));
        assert_eq!(
            (decision.status, decision.rule, decision.error),
            (200, None, None)
        );
        let hard = Answer::of(vec![candidate(
            Rule::G_SPRAY,
            Outcome::HardBlock,
            Level::L2,
            60,
        )]);
        let decision = hard.decision(Micros(5));
        assert_eq!(decision.status, 429);
        assert_eq!(decision.error, Some(ErrorCode::RateLimitExceeded));
    }

    #[test]
    fn m7_the_wait_is_the_longest_of_guard_and_lockout_and_the_error_names_the_lockout() {
        let deny = |rule, retry_after| Candidate {
            key: KeyKind::Lockout,
            level: None,
            ..candidate(rule, Outcome::Deny, Level::L1, retry_after)
        };
        let hard = candidate(Rule::G_THRESHOLD, Outcome::HardBlock, Level::L2, 36);
        let soft = candidate(Rule::G_BUDGET, Outcome::SoftBlock, Level::L3, 300);
        let (window, captcha) = (deny(Rule::A_WINDOW, 900), deny(Rule::A_CAPTCHA, 1));
        let short = deny(Rule::A_HARD, 5);
        for (candidates, outcome, rule, wait, error) in [
            (
                vec![hard, window],
                Outcome::HardBlock,
                Rule::G_THRESHOLD,
                900,
                ErrorCode::AccountLocked,
            ),
            (
                vec![hard, soft, short],
                Outcome::HardBlock,
                Rule::G_THRESHOLD,
                36,
                ErrorCode::AccountLocked,
            ),
            (
                vec![soft, window],
                Outcome::Deny,
                Rule::A_WINDOW,
                900,
                ErrorCode::AccountLocked,
            ),
            (
                vec![soft, short],
                Outcome::Deny,
                Rule::A_HARD,
                300,
                ErrorCode::AccountLocked,
            ),
            (
                vec![window, captcha],
                Outcome::Deny,
                Rule::A_WINDOW,
                900,
                ErrorCode::AccountLocked,
            ),
            // A client that passes the challenge need not wait for the soft block either.
            (
                vec![soft, captcha],
                Outcome::Deny,
                Rule::A_CAPTCHA,
                1,
                ErrorCode::ChallengeRequired,
            ),
            (
                vec![hard, captcha],
                Outcome::HardBlock,
                Rule::G_THRESHOLD,
                36,
                ErrorCode::RateLimitExceeded,
            ),
        ] {
            let reasons = candidates.len();
            let answer = Answer::of(candidates);
            let said = (answer.outcome, answer.rule, answer.retry_after);
            assert_eq!(said, (outcome, Some(rule), Some(wait)));
            assert_eq!(answer.error(), Some(error));
            assert_eq!(answer.reasons.len(), reasons);
        }
    }

    crate::scenarios::scenarios! {
        #[test]
        fn g_aggregate_names_the_longest_wait_of_guard_and_lockout() proves "G-AGGREGATE" {"
            0 x5/1s fail d=d1+known user=ann => *
            10s    check d=d1+known user=ann => hard L2 890s G-THRESHOLD +A-WINDOW
        "}

        #[test]
        fn g_aggregate_takes_the_highest_level_of_the_winning_class() proves "G-AGGREGATE" {"
            0      fail                => allow
            1s     fail                => soft L2 60s
            2s     check               => soft L2 59s
            3s     check d=d1          => soft L1 13s
        "}
    }
}
