//! Explains in words why a subject is refused now.

use palisade_core::Decision;
use palisade_core::decision::{Level, LimitReading, Outcome, Reason};
use palisade_core::facts::{GuardFacts, NO_ADDRESS, RequestFacts};
use palisade_core::rule::Rule;
use palisade_store::StoreError;
use serde::Serialize;

use super::super::Engine;
use super::explain_call::CalledBucket;
use super::{BlockView, BucketView, LookedUp};

/// Explanation of the decision that a subject would get now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Explained))]
pub struct Explanation {
    /// Outcome of the strictest finding.
    pub decision: &'static str,
    /// Findings, the strictest first.
    pub findings: Vec<Finding>,
    /// Spellings of the account that were looked up.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub looked_up: Vec<LookedUp>,
}

/// One block or limit that concerns the subject.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Finding {
    /// Outcome of this finding alone.
    pub decision: &'static str,
    /// Id of the rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<&'static str>,
    /// The finding in words.
    pub words: String,
    /// Ladder level of a block.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub level: Option<Level>,
    /// Whole seconds to wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<u64>,
    /// Command with which an operator ends the refusal early.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
    /// The bucket that the finding is about; only for a call of Envoy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bucket: Option<CalledBucket>,
    #[serde(skip)]
    strictness: Outcome,
}

impl Finding {
    pub(super) const fn strictness(&self) -> Outcome {
        self.strictness
    }

    /// A finding about something that refuses nothing.
    pub(super) const fn harmless(words: String) -> Self {
        Self {
            decision: Outcome::Allow.name(),
            rule: None,
            words,
            level: None,
            retry_after: None,
            help: None,
            bucket: None,
            strictness: Outcome::Allow,
        }
    }

    /// A finding about a limit that refuses.
    pub(super) fn denial(rule: Rule, words: &str, retry_after: Option<u64>) -> Self {
        Self {
            decision: Outcome::Deny.name(),
            rule: Some(rule.id()),
            words: format!("{}: {words}", meaning(rule)),
            retry_after,
            strictness: Outcome::Deny,
            ..Self::harmless(String::new())
        }
    }
}

impl Engine {
    /// Explains what a request and a guard command with these facts would meet. A command
    /// without an address ([`NO_ADDRESS`]) is explained by its account alone. Nothing is counted.
    ///
    /// # Errors
    /// An error of the store.
    pub async fn explain(
        &self,
        request: Option<&RequestFacts>,
        guard: Option<&GuardFacts>,
    ) -> Result<Explanation, StoreError> {
        let mut findings = Vec::new();
        if let Some(facts) = guard {
            let blocks = self.blocks_of(facts).await?;
            findings.extend(blocks.iter().map(of_block));
            if facts.ip == NO_ADDRESS {
                findings.push(Finding::harmless(WITHOUT_ADDRESS.to_owned()));
            }
        }
        if let Some(facts) = request {
            findings.extend(of_decision(&self.peek(facts).await.decision));
        }
        let account = guard.and_then(|facts| facts.account.as_ref());
        Ok(Explanation {
            looked_up: self.looked_up(account),
            ..Explanation::of(findings)
        })
    }
}

const WITHOUT_ADDRESS: &str = "blocks of an address, and lockouts, which are of a name at an \
    address, were not looked up: name the address (`--ip`) to see them";

impl Explanation {
    pub(super) fn of(mut findings: Vec<Finding>) -> Self {
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.strictness));
        let strictest = findings.first().map_or(Outcome::Allow, |f| f.strictness);
        Self {
            decision: strictest.name(),
            findings,
            looked_up: Vec::new(),
        }
    }

    /// Both explanations as one.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            looked_up: [self.looked_up, other.looked_up].concat(),
            ..Self::of([self.findings, other.findings].concat())
        }
    }
}

pub(super) fn of_block(block: &BlockView) -> Finding {
    Finding {
        decision: block.decision.name(),
        rule: Some(block.rule.id()),
        words: format!(
            "{}; the block on {} ends at {}",
            meaning(block.rule),
            block.record,
            block.until
        ),
        level: block.level,
        retry_after: Some(block.retry_after),
        help: Some(lift_command(block)),
        bucket: None,
        strictness: block.decision,
    }
}

/// A bucket that is used up.
pub(super) fn of_bucket(rule: Rule, bucket: &BucketView) -> Finding {
    let BucketView {
        name, used, limit, ..
    } = bucket;
    let words = format!("`{name}` is used up, {used} of {limit}");
    Finding::denial(rule, &words, bucket.retry_after)
}

fn lift_command(block: &BlockView) -> String {
    let member = match &block.member {
        Some(member) => format!(" --key {} --member {member}", block.key.code()),
        None => String::new(),
    };
    format!(
        "palisade blocks lift {} {}{member} --reason \"…\"",
        block.record, block.id
    )
}

pub(super) fn of_reason(reason: &Reason) -> Finding {
    Finding {
        decision: reason.decision.name(),
        rule: Some(reason.rule.id()),
        level: reason.level,
        retry_after: reason.retry_after,
        strictness: reason.decision,
        ..Finding::harmless(match &reason.limit {
            Some(limit) => format!("{}: `{limit}` is used up", meaning(reason.rule)),
            None => meaning(reason.rule).to_owned(),
        })
    }
}

fn of_decision(decision: &Decision) -> Vec<Finding> {
    let mut findings: Vec<Finding> = decision.reasons.iter().map(of_reason).collect();
    let free = decision.limits.iter().filter(|l| l.retry_after.is_none());
    findings.extend(free.map(of_reading));
    findings
}

fn of_reading(reading: &LimitReading) -> Finding {
    Finding::harmless(format!(
        "`{}` has {} of {} left",
        reading.name, reading.remaining, reading.limit
    ))
}

/// The meaning of a rule, for people.
#[must_use]
pub fn meaning(rule: Rule) -> &'static str {
    let found = MEANINGS.iter().find(|(known, _)| *known == rule);
    found.map_or("a rule decided", |(_, words)| words)
}

const MEANINGS: &[(Rule, &str)] = &[
    (Rule::L_IP, "too many requests from this address"),
    (
        Rule::L_SHARED,
        "all callers together have used up a shared limit",
    ),
    (Rule::L_USER, "too many requests of this user"),
    (Rule::L_CLIENT, "too many requests of this OAuth client"),
    (
        Rule::L_GLOBAL,
        "the service is shedding load for all callers",
    ),
    (
        Rule::AD_LOAD,
        "the application has as many requests in progress as it can answer in good time",
    ),
    (
        Rule::L_DEFAULT_DENY,
        "no limit is configured for this request, so it is refused",
    ),
    (Rule::L_COST, "the request costs more than its limit allows"),
    (
        Rule::B_EXPIRE,
        "the budget holds as many unsettled reservations as it can remember",
    ),
    (
        Rule::B_SHARE,
        "the caller holds as much of a shared budget reserved as one caller may",
    ),
    (
        Rule::L_CONCURRENT,
        "the most requests allowed at a time are in progress",
    ),
    (
        Rule::T_ORG,
        "too many requests of this organisation or token",
    ),
    (Rule::T_SCOPE, "the token lacks the scope of this route"),
    (Rule::Q_QUOTA, "the API key has used up its monthly quota"),
    (
        Rule::I_APIKEY,
        "the API key is missing, unknown or not for this route",
    ),
    (
        Rule::I_BOT,
        "the request looks like a bot's, and bots have lower limits",
    ),
    (
        Rule::R_DOMAIN,
        "too many hits of this descriptor in its Envoy domain",
    ),
    (Rule::R_ZERO, "a limit of its Envoy domain admits nothing"),
    (Rule::W_BYPASS, "an allowlist entry lets it pass"),
    (
        Rule::A_WINDOW,
        "five failures of this name from this address within 15 minutes",
    ),
    (
        Rule::A_HARD,
        "ten failures of this name from this address within a day: the name is locked",
    ),
    (
        Rule::A_BACKOFF,
        "each consecutive failure is answered with a longer delay",
    ),
    (
        Rule::A_CAPTCHA,
        "three lockouts within a day: a challenge must be passed",
    ),
    (Rule::G_SCORE_KNOWN, "a known device failed"),
    (
        Rule::G_SCORE_NEW,
        "a device that the account does not know failed",
    ),
    (Rule::G_SCORE_MISSING, "an attempt without a device failed"),
    (
        Rule::G_SCORE_REPEAT_MISSING,
        "attempts without a device fail again and again",
    ),
    (Rule::G_SCORE_SPRAY, "the address tries many accounts"),
    (Rule::G_THRESHOLD, "failures came too close together"),
    (
        Rule::G_BUDGET,
        "the account has used up its failures for the day",
    ),
    (
        Rule::G_RECOVERY,
        "the account has nearly used up its one-time codes for the day",
    ),
    (
        Rule::G_EQUILIBRIUM,
        "repeated soft blocks on the account lead to a hard one",
    ),
    (
        Rule::G_PENDING,
        "attempts in progress on the account leave no room for another",
    ),
    (Rule::G_SPRAY, "one address tried many accounts"),
    (Rule::G_ROTATION, "many new devices tried one account"),
    (
        Rule::G_ROTATION_REPEAT,
        "new devices keep trying one account",
    ),
    (
        Rule::P_GUARD,
        "the account has never logged in from this country",
    ),
    (
        Rule::G_SPRAY_WIDE,
        "many accounts failed from this /24 or /48",
    ),
    (
        Rule::G_CHURN,
        "one browser at one address keeps changing its device",
    ),
    (Rule::G_DILUTION, "one device tried from many addresses"),
    (Rule::G_FLOOD, "a flood of new devices tries one account"),
    (Rule::G_WATCH, "attempts stay just below a threshold"),
    (Rule::G_API, "a heavy endpoint is called too often"),
    (
        Rule::S_PAUSE,
        "a code was sent to this destination a moment ago",
    ),
    (Rule::S_DEST, "too many codes were sent to this destination"),
    (Rule::S_ACCOUNT, "too many codes were sent for this account"),
    (
        Rule::S_IP,
        "this address has codes sent too often, or to too many destinations",
    ),
    (
        Rule::S_RANGE,
        "too few of the codes sent to this range are entered: it is probably pumped",
    ),
    (Rule::S_SPEND, "the money for messages is used up"),
    (
        Rule::F_CLOSED,
        "the store does not answer, and requests of this kind are then refused",
    ),
    (
        Rule::F_DEGRADED,
        "the store does not answer, and the local cap is reached",
    ),
    (
        Rule::F_REENTRY,
        "the store fails again and again: requests of this kind are refused for a while",
    ),
    (
        Rule::F_FALLBACK,
        "the store does not answer: local counters decide",
    ),
    (
        Rule::F_CORRUPT,
        "the record could not be read and was set aside",
    ),
    (Rule::F_VERSION, "the record was written by a newer version"),
    (Rule::F_CONFLICT, "the record changed too often to be saved"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explain_has_words_of_its_own_for_every_rule() {
        for rule in Rule::ALL {
            assert_ne!(meaning(*rule), "a rule decided", "{}", rule.id());
        }
        let mut words: Vec<&str> = MEANINGS.iter().map(|(_, words)| *words).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), Rule::ALL.len());
    }
}
