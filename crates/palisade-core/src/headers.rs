//! Decision → response headers, in the families a configuration chooses.

use crate::decision::{Decision, Enforcement, LimitReading};

/// A family of rate-limit headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HeaderFamily {
    /// `X-RateLimit-Limit`, `-Remaining`, `-Reset`.
    XRateLimit,
    /// `RateLimit-Policy` and `RateLimit`, structured fields of the IETF draft.
    Ietf,
    /// `RateLimit-Limit` with its window, `-Remaining`, `-Reset`.
    Org,
}

/// The families a configuration chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderFamilies {
    /// `X-RateLimit-*`.
    pub x_ratelimit: bool,
    /// The IETF draft.
    pub ietf: bool,
    /// The third family.
    pub org: bool,
}

impl Default for HeaderFamilies {
    fn default() -> Self {
        Self {
            x_ratelimit: true,
            ietf: true,
            org: false,
        }
    }
}

/// Most policies that `RateLimit-Policy` lists.
const POLICIES_MAX: usize = 8;

/// One header: its name in canonical case and an ASCII value.
pub type Header = (&'static str, String);

/// The headers of an answer. They describe the most constraining bucket
/// (L-CONSTRAINT), which is the first of [`Decision::limits`].
#[must_use]
pub fn headers(decision: &Decision, families: HeaderFamilies) -> Vec<Header> {
    let mut headers = Vec::with_capacity(8);
    if let Some(reading) = decision.limits.first() {
        if families.x_ratelimit {
            headers.push(("X-RateLimit-Limit", reading.limit.to_string()));
            headers.push(("X-RateLimit-Remaining", reading.remaining.to_string()));
            headers.push(("X-RateLimit-Reset", reading.reset.to_string()));
        }
        if families.ietf {
            headers.push(("RateLimit-Policy", policies(&decision.limits)));
            headers.push(("RateLimit", current(reading, decision)));
        }
        if families.org {
            let limit = format!("{};w={}", reading.limit, reading.window_seconds);
            headers.push(("RateLimit-Limit", limit));
            headers.push(("RateLimit-Remaining", reading.remaining.to_string()));
            headers.push(("RateLimit-Reset", reading.reset.to_string()));
        }
    }
    push_retry_after(decision, &mut headers);
    push_quota(decision, &mut headers);
    push_status(decision, &mut headers);
    headers
}

/// What an entry of the IETF fields takes beside the limit's name, as a rule.
const ENTRY_BYTES: usize = 32;

fn policies(readings: &[LimitReading]) -> String {
    let listed = &readings[..readings.len().min(POLICIES_MAX)];
    let names: usize = listed.iter().map(|reading| reading.name.len()).sum();
    let mut list = String::with_capacity(names + listed.len() * ENTRY_BYTES);
    for reading in listed {
        if !list.is_empty() {
            list.push_str(", ");
        }
        push_entry(
            &mut list,
            reading,
            [";q=", ";w="],
            [reading.limit, reading.window_seconds],
        );
    }
    list
}

/// An entry of a structured list: the limit's name and two figures about it. Written
/// piece by piece because it is part of every answer and formatting machinery is not
/// free.
fn push_entry(list: &mut String, reading: &LimitReading, keys: [&str; 2], figures: [u64; 2]) {
    list.push('"');
    list.push_str(&reading.name);
    list.push('"');
    for (key, figure) in keys.into_iter().zip(figures) {
        list.push_str(key);
        list.push_str(itoa::Buffer::new().format(figure));
    }
}

fn current(reading: &LimitReading, decision: &Decision) -> String {
    let until_reset = reading
        .reset
        .saturating_sub(decision.at.0 / crate::time::SECOND);
    let mut text = String::with_capacity(reading.name.len() + ENTRY_BYTES);
    let figures = [reading.remaining, until_reset];
    push_entry(&mut text, reading, [";r=", ";t="], figures);
    text
}

fn push_retry_after(decision: &Decision, headers: &mut Vec<Header>) {
    if let Some(seconds) = decision.wait() {
        headers.push(("Retry-After", seconds.to_string()));
    }
}

fn push_quota(decision: &Decision, headers: &mut Vec<Header>) {
    let Some(quota) = decision.quota else { return };
    let show = |amount: Option<u64>| amount.map_or("unlimited".to_owned(), |n| n.to_string());
    headers.push(("X-Quota-Limit", show(quota.limit)));
    headers.push(("X-Quota-Remaining", show(quota.remaining())));
    headers.push(("X-Quota-Reset", quota.reset.to_string()));
}

fn push_status(decision: &Decision, headers: &mut Vec<Header>) {
    match decision.enforcement {
        Enforcement::Full => {}
        Enforcement::Degraded => headers.push(("X-RateLimit-Status", "degraded".to_owned())),
        Enforcement::Disabled => headers.push(("X-RateLimit-Status", "disabled".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::{ErrorCode, Outcome, QuotaReading};
    use crate::rule::Rule;
    use crate::time::{Micros, SECOND};

    fn denied() -> Decision {
        let at = Micros(1_735_934_355 * SECOND);
        let mut decision = Decision::refuse(
            at,
            Outcome::Deny,
            Rule::L_IP,
            ErrorCode::RateLimitExceeded,
            429,
        );
        decision.retry_after = Some(45);
        decision.limits = vec![LimitReading {
            name: "ip-auth".into(),
            scope: "ip",
            class: "auth".into(),
            limit: 10,
            remaining: 0,
            reset: 1_735_934_400,
            retry_after: Some(45),
            window_seconds: 60,
            shadow: false,
        }];
        decision
    }

    fn lines(decision: &Decision, families: HeaderFamilies) -> Vec<String> {
        headers(decision, families)
            .into_iter()
            .map(|(name, value)| format!("{name}: {value}"))
            .collect()
    }

    #[test]
    fn all_three_families_describe_the_most_constraining_bucket() {
        let all = HeaderFamilies {
            x_ratelimit: true,
            ietf: true,
            org: true,
        };
        assert_eq!(
            lines(&denied(), all),
            [
                "X-RateLimit-Limit: 10",
                "X-RateLimit-Remaining: 0",
                "X-RateLimit-Reset: 1735934400",
                "RateLimit-Policy: \"ip-auth\";q=10;w=60",
                "RateLimit: \"ip-auth\";r=0;t=45",
                "RateLimit-Limit: 10;w=60",
                "RateLimit-Remaining: 0",
                "RateLimit-Reset: 1735934400",
                "Retry-After: 45",
            ]
        );
    }

    #[test]
    fn the_ietf_fields_are_structured_fields() {
        let decision = denied();
        for (name, value) in headers(&decision, HeaderFamilies::default()) {
            if name.starts_with("RateLimit") {
                let parsed = sfv::Parser::new(&value).parse::<sfv::List>().unwrap();
                assert_eq!(parsed.len(), 1, "{name}");
            }
        }
    }

    #[test]
    fn an_unlimited_quota_says_so() {
        let mut decision = Decision::allow(Micros(0));
        decision.quota = Some(QuotaReading {
            limit: None,
            used: 5,
            reset: 60,
        });
        let shown = lines(&decision, HeaderFamilies::default());
        assert_eq!(
            shown,
            [
                "X-Quota-Limit: unlimited",
                "X-Quota-Remaining: unlimited",
                "X-Quota-Reset: 60"
            ]
        );
    }

    #[test]
    fn a_refusal_without_a_wait_still_says_retry_after_one() {
        let mut decision = denied();
        decision.retry_after = None;
        decision.limits.clear();
        assert_eq!(
            lines(&decision, HeaderFamilies::default()),
            ["Retry-After: 1"]
        );
    }
}
