//! Turns a decision into a response body. No body ever contains an address or an identifier of a
//! client.

use serde::Serialize;

use crate::decision::{Decision, Enforcement, ErrorCode, LimitReading, Mode, ShownChallenge};
use crate::rule::Rule;

/// Links that bodies carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Urls {
    /// Where a locked-out person finds help.
    pub support: Box<str>,
    /// Where a partner upgrades a plan.
    pub upgrade: Box<str>,
}

impl Default for Urls {
    fn default() -> Self {
        Self {
            support: "https://example.com/support".into(),
            upgrade: "https://example.com/plans".into(),
        }
    }
}

/// The JSON body of a refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Refused))]
pub struct Body<'a> {
    /// Machine-readable cause of the refusal.
    #[cfg_attr(feature = "openapi", schema(value_type = crate::decision::ErrorCode))]
    pub error: &'static str,
    /// Message for people.
    pub message: &'static str,
    /// Machine-readable cause in dotted form, for example `throttling.rate_limit_exceeded`.
    pub code: &'static str,
    /// Problem type (RFC 9457), if the IETF RateLimit draft registers one for this refusal.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub problem: Option<&'static str>,
    /// Names of the limits that the request exceeded, as in the RateLimit headers.
    #[serde(rename = "violated-policies", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<String>>))]
    pub violated_policies: Option<Vec<std::sync::Arc<str>>>,
    /// Whole seconds to wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub retry_after: Option<u64>,
    /// Size of the user's limit, or monthly quota of the API key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota_limit: Option<u64>,
    /// Used part of `quota_limit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota_used: Option<u64>,
    /// Remaining part of `quota_limit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota_remaining: Option<u64>,
    /// Unix time in seconds at which all of `quota_limit` is available again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota_reset: Option<u64>,
    /// URL at which a plan can be upgraded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upgrade_url: Option<&'a str>,
    /// URL of a page with help.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub support_url: Option<&'a str>,
    /// Challenge to offer to the client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub challenge: Option<ShownChallenge<'a>>,
    /// The request's id.
    pub request_id: &'a str,
    /// Time of the decision, RFC 3339.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub timestamp: String,
}

/// The body of a refusal; `None` for an answer that lets the request through.
#[must_use]
pub fn body<'a>(decision: &'a Decision, urls: &'a Urls, request_id: &'a str) -> Option<Body<'a>> {
    let error = decision.error?;
    let mut body = Body {
        error: error.name(),
        message: message(decision, error),
        code: code(decision, error),
        problem: problem(decision, error),
        violated_policies: problem(decision, error).map(|_| violated(decision)),
        retry_after: decision.wait(),
        quota_limit: None,
        quota_used: None,
        quota_remaining: None,
        quota_reset: None,
        upgrade_url: None,
        support_url: None,
        challenge: decision.shown_challenge(),
        request_id,
        timestamp: decision.at.to_rfc3339(),
    };
    match error {
        ErrorCode::UserRateLimitExceeded => {
            let reading = decision.limits.first();
            body.quota_limit = reading.map(|r| r.limit);
            body.quota_remaining = reading.map(|r| r.remaining);
            body.quota_reset = reading.map(|r| r.reset);
        }
        ErrorCode::QuotaExceeded => {
            body.quota_limit = decision.quota.and_then(|quota| quota.limit);
            body.quota_used = decision.quota.map(|quota| quota.used);
            body.quota_reset = decision.quota.map(|quota| quota.reset);
            body.upgrade_url = Some(&urls.upgrade);
        }
        ErrorCode::AccountLocked | ErrorCode::ChallengeRequired => {
            body.support_url = Some(&urls.support);
        }
        _ => {}
    }
    Some(body)
}

fn message(decision: &Decision, error: ErrorCode) -> &'static str {
    match error {
        ErrorCode::RateLimitExceeded if decision.enforcement == Enforcement::Degraded => {
            "Requests are limited more tightly for the moment. Try again later."
        }
        ErrorCode::RateLimitExceeded => match decision.limits.first().map(|r| r.scope) {
            Some("ip") => "Too many requests from this address. Try again later.",
            Some("org") => "Your organisation has used up its request limit. Try again later.",
            Some("token") => "This token has used up its request limit. Try again later.",
            _ => "Too many requests. Try again later.",
        },
        ErrorCode::UserRateLimitExceeded => "You have used up your requests. Try again later.",
        ErrorCode::ClientRateLimitExceeded => {
            "This OAuth client has used up its requests. Try again later."
        }
        ErrorCode::QuotaExceeded => {
            "The monthly quota of this API key is used up. A larger plan allows more requests."
        }
        ErrorCode::AccountLocked => {
            "Too many failed attempts. Sign-in is locked for a while: try again later or reset the password."
        }
        ErrorCode::ChallengeRequired if !decision.limits.is_empty() => {
            "Too many requests. Pass the challenge to go on."
        }
        ErrorCode::ChallengeRequired => {
            "Too many failed attempts. Pass the challenge before you try again."
        }
        ErrorCode::ServiceUnavailable if decision.rule.is_some_and(Rule::sheds_load) => {
            "The service is overloaded. Try again later."
        }
        ErrorCode::ServiceUnavailable => {
            "The service cannot take this request now. Try again later."
        }
        ErrorCode::InvalidApiKey => "The API key is missing or not valid.",
        ErrorCode::Forbidden => "The credentials do not give access to this resource.",
        ErrorCode::CostExceedsLimit => {
            "The cost of this request is larger than its limit: it can never be admitted."
        }
    }
}

/// The problem type (RFC 9457) that the RateLimit draft registers for this refusal, if it has one.
fn problem(decision: &Decision, error: ErrorCode) -> Option<&'static str> {
    const QUOTA: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
    const CAPACITY: &str =
        "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
    const ABNORMAL: &str =
        "https://iana.org/assignments/http-problem-types#abnormal-usage-detected";
    match error {
        ErrorCode::InvalidApiKey | ErrorCode::Forbidden | ErrorCode::CostExceedsLimit => None,
        ErrorCode::ServiceUnavailable => Some(CAPACITY),
        _ if decision.enforcement == Enforcement::Degraded => Some(CAPACITY),
        ErrorCode::AccountLocked => Some(ABNORMAL),
        ErrorCode::ChallengeRequired if decision.limits.is_empty() => Some(ABNORMAL),
        // A block of the guard answers behaviour; no limit was exceeded.
        _ if decision.limits.is_empty() && decision.quota.is_none() => Some(ABNORMAL),
        _ => Some(QUOTA),
    }
}

/// Names of the limits that refused the request: those with a wait that are not in shadow.
fn violated(decision: &Decision) -> Vec<std::sync::Arc<str>> {
    let denying = |reading: &&LimitReading| reading.retry_after.is_some() && !reading.shadow;
    let over = decision.limits.iter().filter(denying);
    over.map(|reading| std::sync::Arc::clone(&reading.name))
        .collect()
}

fn code(decision: &Decision, error: ErrorCode) -> &'static str {
    let impaired = decision.enforcement == Enforcement::Degraded
        || decision.mode != Mode::Normal
        || decision.rule == Some(Rule::L_DEFAULT_DENY);
    match error {
        ErrorCode::InvalidApiKey => "throttling.invalid_api_key",
        ErrorCode::Forbidden => "throttling.forbidden",
        ErrorCode::CostExceedsLimit => "throttling.cost_exceeds_limit",
        _ if impaired => "throttling.enforcement_degraded",
        _ => "throttling.rate_limit_exceeded",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::{Outcome, QuotaReading};
    use crate::time::Micros;

    #[test]
    fn a_quota_body_names_the_quota_and_where_to_upgrade() {
        let mut decision = Decision::refuse(
            Micros::parse_rfc3339("2026-01-31T12:00:00Z").unwrap(),
            Outcome::Deny,
            Rule::Q_QUOTA,
            ErrorCode::QuotaExceeded,
        );
        decision.quota = Some(QuotaReading {
            limit: Some(1000),
            used: 1000,
            reset: 1_769_904_000,
        });
        let urls = Urls::default();
        let json = serde_json::to_value(body(&decision, &urls, "r-1").unwrap()).unwrap();
        assert_eq!(json["error"], "quota_exceeded");
        assert_eq!(json["quota_limit"], 1000);
        assert_eq!(json["quota_used"], 1000);
        assert_eq!(json["quota_reset"], 1_769_904_000);
        assert_eq!(json["code"], "throttling.rate_limit_exceeded");
        assert_eq!(json["request_id"], "r-1");
        assert_eq!(json["timestamp"], "2026-01-31T12:00:00.000Z");
        assert!(json["upgrade_url"].is_string());
    }

    const fn refused(rule: Rule, error: ErrorCode) -> Decision {
        Decision::refuse(Micros(0), Outcome::Deny, rule, error)
    }

    fn reading(name: &str, retry_after: Option<u64>) -> LimitReading {
        LimitReading {
            name: name.into(),
            scope: "ip",
            class: "auth".into(),
            limit: 10,
            remaining: 0,
            reset: 60,
            retry_after,
            window_seconds: 60,
            unit: crate::policy::QuotaUnit::Requests,
            partition: crate::key::Digest(1),
            shadow: false,
        }
    }

    fn kind(decision: &Decision) -> (Option<String>, serde_json::Value) {
        let urls = Urls::default();
        let json = serde_json::to_value(body(decision, &urls, "r").unwrap()).unwrap();
        let kind = json["type"].as_str().map(|uri| {
            let (registry, kind) = uri.split_once('#').unwrap();
            assert_eq!(registry, "https://iana.org/assignments/http-problem-types");
            kind.to_owned()
        });
        (kind, json["violated-policies"].clone())
    }

    #[test]
    fn refusals_have_the_problem_types_of_the_draft_and_name_the_limits_that_denied() {
        let mut over = refused(Rule::L_IP, ErrorCode::RateLimitExceeded);
        let mut trial = reading("trial", Some(5));
        trial.shadow = true;
        over.limits = vec![reading("ip-auth", Some(45)), reading("ip-all", None), trial].into();
        let quota = (
            Some("quota-exceeded".to_owned()),
            serde_json::json!(["ip-auth"]),
        );
        assert_eq!(kind(&over), quota);
        over.enforcement = Enforcement::Degraded;
        assert_eq!(kind(&over).0.as_deref(), Some("temporary-reduced-capacity"));

        let shed = refused(Rule::L_GLOBAL, ErrorCode::ServiceUnavailable);
        assert_eq!(kind(&shed).0.as_deref(), Some("temporary-reduced-capacity"));
        for (rule, error) in [
            (Rule::A_HARD, ErrorCode::AccountLocked),
            (Rule::G_THRESHOLD, ErrorCode::RateLimitExceeded),
        ] {
            let found = kind(&refused(rule, error));
            assert_eq!(found.0.as_deref(), Some("abnormal-usage-detected"));
            assert_eq!(found.1, serde_json::json!([]));
        }
        let unknown = refused(Rule::I_APIKEY, ErrorCode::InvalidApiKey);
        assert_eq!(kind(&unknown), (None, serde_json::Value::Null));
    }

    #[test]
    fn an_allowed_request_has_no_body() {
        assert!(body(&Decision::allow(Micros(0)), &Urls::default(), "r").is_none());
    }
}
