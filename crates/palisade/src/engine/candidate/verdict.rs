//! Compares two decisions on the same facts.

use std::fmt;
use std::sync::Arc;

use palisade_core::decision::{Decision, Outcome};
use palisade_core::headers::Header;
use palisade_core::rule::Rule;
use serde::Serialize;

/// Result of comparing the decisions of two policies on the same facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Comparison {
    /// Both allow, or both refuse for the same cause.
    Agrees,
    /// Allowed by the first policy, refused by the other.
    NewlyDenied,
    /// Refused by the first policy, allowed by the other.
    NewlyAllowed,
    /// Refused by both, in another way or by another rule or limit.
    Otherwise,
    /// One of them was reached without the store, which says nothing about the policies.
    NotCompared,
}

impl Comparison {
    /// Every comparison, in the order of declaration.
    pub const ALL: [Self; 5] = [
        Self::Agrees,
        Self::NewlyDenied,
        Self::NewlyAllowed,
        Self::Otherwise,
        Self::NotCompared,
    ];

    /// Compares the live policy's decision with that of another policy.
    #[must_use]
    pub fn of(live: &Decision, other: &Decision) -> Self {
        if live.mode.is_of_outage() || other.mode.is_of_outage() {
            return Self::NotCompared;
        }
        match (live.is_allowed(), other.is_allowed()) {
            (true, true) => Self::Agrees,
            (true, false) => Self::NewlyDenied,
            (false, true) => Self::NewlyAllowed,
            (false, false) => match refused_alike(live, other) {
                true => Self::Agrees,
                false => Self::Otherwise,
            },
        }
    }

    /// Whether the policies would have answered differently. Not true of [`Self::NotCompared`].
    #[must_use]
    pub const fn differs(self) -> bool {
        matches!(
            self,
            Self::NewlyDenied | Self::NewlyAllowed | Self::Otherwise
        )
    }

    /// Name in metric labels, audit events and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Agrees => "agrees",
            Self::NewlyDenied => "newly_denied",
            Self::NewlyAllowed => "newly_allowed",
            Self::Otherwise => "otherwise",
            Self::NotCompared => "not_compared",
        }
    }
}

/// Whether two refusals are the same. Their waits are not compared, because the two policies decide
/// at slightly different instants.
fn refused_alike(live: &Decision, other: &Decision) -> bool {
    live.outcome == other.outcome
        && live.level == other.level
        && live.rule == other.rule
        && denying_limit(live) == denying_limit(other)
}

fn denying_limit(decision: &Decision) -> Option<&Arc<str>> {
    let mut denying = decision
        .reasons
        .iter()
        .filter(|reason| reason.decision != Outcome::Allow);
    denying.find_map(|reason| reason.limit.as_ref())
}

/// The rule and limit that refused a request. Both are names from the policy, so they may be shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cause {
    /// The rule that decided.
    pub rule: Option<Rule>,
    /// The limit that denied; `None` for the guard and for refusals without a limit.
    pub limit: Option<Arc<str>>,
}

impl Cause {
    /// The cause of a refusal by `decision`.
    #[must_use]
    pub fn of(decision: &Decision) -> Self {
        Self {
            rule: decision.rule,
            limit: denying_limit(decision).cloned(),
        }
    }

    /// The limit's name, else the rule's id.
    #[must_use]
    pub fn name(&self) -> &str {
        match (&self.limit, self.rule) {
            (Some(limit), _) => limit,
            (None, Some(rule)) => rule.id(),
            (None, None) => "none",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.rule.map_or("no rule", Rule::id))?;
        match &self.limit {
            Some(limit) => write!(f, " {limit}"),
            None => Ok(()),
        }
    }
}

/// The candidate's answer where it differs from the live one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CandidateAnswer {
    /// The kind of difference.
    pub verdict: Comparison,
    /// The candidate's outcome.
    pub decision: Outcome,
    /// The cause of the refusal: in the candidate or, if it newly allows, in the live policy.
    pub cause: Cause,
    /// Whether the answer carries this in a header.
    pub is_shown: bool,
}

impl CandidateAnswer {
    /// The opt-in header: a structured field with the verdict, the rule and the limit.
    #[must_use]
    pub fn header(&self) -> Option<Header> {
        if !self.is_shown {
            return None;
        }
        let mut value = self.verdict.name().replace('_', "-");
        if let Some(rule) = self.cause.rule {
            value.push_str(&format!(";rule=\"{}\"", rule.id()));
        }
        if let Some(limit) = &self.cause.limit {
            value.push_str(&format!(";limit=\"{limit}\""));
        }
        Some(("X-RateLimit-Candidate", value))
    }
}

#[cfg(test)]
mod tests {
    use palisade_core::decision::{ErrorCode, Mode, Reason};
    use palisade_core::time::Micros;

    use super::*;

    fn denied(limit: &str) -> Decision {
        let reason = Reason {
            rule: Rule::L_IP,
            key: None,
            limit: Some(limit.into()),
            decision: Outcome::Deny,
            level: None,
            retry_after: Some(1),
        };
        let (outcome, error) = (Outcome::Deny, ErrorCode::RateLimitExceeded);
        Decision {
            reasons: vec![reason],
            ..Decision::refuse(Micros(0), outcome, Rule::L_IP, error)
        }
    }

    #[test]
    fn l_candidate_verdicts_have_a_direction() {
        let allowed = Decision::allow(Micros(0));
        let degraded = Decision {
            mode: Mode::Degraded,
            ..allowed.clone()
        };
        let later = Decision {
            retry_after: Some(9),
            ..denied("a")
        };
        let cases = [
            (&allowed, &allowed, Comparison::Agrees),
            (&allowed, &denied("a"), Comparison::NewlyDenied),
            (&denied("a"), &allowed, Comparison::NewlyAllowed),
            (&denied("a"), &denied("b"), Comparison::Otherwise),
            (&denied("a"), &later, Comparison::Agrees),
            (&degraded, &denied("a"), Comparison::NotCompared),
        ];
        for (live, other, verdict) in cases {
            assert_eq!(Comparison::of(live, other), verdict);
        }
    }

    #[test]
    fn the_header_names_rule_and_limit_only_if_it_is_asked_for() {
        let mut answer = CandidateAnswer {
            verdict: Comparison::NewlyDenied,
            decision: Outcome::Deny,
            cause: Cause::of(&denied("reports")),
            is_shown: false,
        };
        assert_eq!(answer.header(), None);
        answer.is_shown = true;
        let (name, value) = answer.header().unwrap();
        assert_eq!(name, "X-RateLimit-Candidate");
        assert_eq!(value, "newly-denied;rule=\"L-IP\";limit=\"reports\"");
    }
}
