//! An answer → the response's message.

use std::collections::BTreeMap;

use palisade::engine::{DescriptorAnswer, DescriptorStatus, Figure, Verdict};
use palisade_core::Decision;
use palisade_core::bodies::body;
use palisade_core::limit::Window;
use palisade_core::time::{DAY, HOUR, MINUTE, SECOND};
use prost_types::value::Kind;
use prost_types::{Duration, ListValue, Struct, Value};

use super::messages::{Code, Header, Limit, Response, Status, Unit};

/// The response to a call.
pub(super) fn response(answer: &DescriptorAnswer, request_id: &str) -> Response {
    let decision = &answer.decision;
    let settings = &answer.policy.settings;
    let body = body(decision, &settings.urls, request_id);
    let body = body.and_then(|body| serde_json::to_vec(&body).ok());
    Response {
        overall_code: overall(decision) as i32,
        statuses: answer.statuses.iter().map(status).collect(),
        response_headers_to_add: response_headers(answer, body.is_some()),
        request_headers_to_add: Vec::new(),
        raw_body: body.unwrap_or_default(),
        dynamic_metadata: settings.rls.metadata.then(|| metadata(answer)),
    }
}

const fn overall(decision: &Decision) -> Code {
    match decision.is_allowed() {
        true => Code::Ok,
        false => Code::OverLimit,
    }
}

/// R-HEADERS: the families of the policy, for the limit that denied or stands closest.
fn response_headers(answer: &DescriptorAnswer, has_body: bool) -> Vec<Header> {
    let of_body = has_body.then(|| ("Content-Type", "application/json".to_owned()));
    answer
        .headers()
        .into_iter()
        .chain(of_body)
        .map(|(key, value)| Header {
            key: key.to_owned(),
            value,
        })
        .collect()
}

/// R-STATUS.
fn status(found: &DescriptorStatus) -> Status {
    let code = match found.verdict {
        Verdict::Admitted | Verdict::WouldDeny | Verdict::NotRefunded => Code::Ok,
        Verdict::Denied => Code::OverLimit,
    };
    let current_limit = found.limit.as_ref().zip(found.figure);
    Status {
        code: code as i32,
        current_limit: current_limit.map(|(name, figure)| {
            let (requests_per_unit, unit) = in_units(figure);
            Limit {
                requests_per_unit,
                unit: unit as i32,
                name: name.as_ref().to_owned(),
            }
        }),
        limit_remaining: found.remaining,
        duration_until_reset: found.reset_us.map(duration),
    }
}

fn duration(us: u64) -> Duration {
    let nanos = us % SECOND * 1_000;
    Duration {
        seconds: i64::try_from(us / SECOND).unwrap_or(i64::MAX),
        nanos: i32::try_from(nanos).unwrap_or_default(),
    }
}

/// A figure by the nearest unit that is no longer than its window, scaled down. Where there
/// is none, by the second.
fn in_units(figure: Figure) -> (u32, Unit) {
    const UNITS: [(u64, Unit); 5] = [
        (7 * DAY, Unit::Week),
        (DAY, Unit::Day),
        (HOUR, Unit::Hour),
        (MINUTE, Unit::Minute),
        (SECOND, Unit::Second),
    ];
    let span = match figure.window {
        Window::Span(span) => span,
        Window::Month => return (figure.amount, Unit::Month),
        Window::Year => return (figure.amount, Unit::Year),
    };
    let below = UNITS.iter().find(|(unit, _)| *unit <= span);
    let (unit_us, unit) = below.copied().unwrap_or((SECOND, Unit::Second));
    if figure.amount == 0 {
        return (0, unit);
    }
    let scaled = u128::from(figure.amount) * u128::from(unit_us) / u128::from(span.max(1));
    (u32::try_from(scaled).unwrap_or(u32::MAX).max(1), unit)
}

/// R-META: names of the policy and ids of rules, never a descriptor's value.
fn metadata(answer: &DescriptorAnswer) -> Struct {
    let decision = &answer.decision;
    let rules = decision.reasons.iter().map(|reason| text(reason.rule.id()));
    let mut fields = BTreeMap::from([
        ("mode".to_owned(), text(decision.mode.name())),
        ("policy_revision".to_owned(), revision(answer)),
        ("status".to_owned(), number(f64::from(decision.status))),
        ("rules".to_owned(), list(rules.collect())),
        (
            "limits".to_owned(),
            list(answer.statuses.iter().map(about).collect()),
        ),
    ]);
    if let Some(rule) = decision.rule {
        fields.insert("rule".to_owned(), text(rule.id()));
    }
    Struct { fields }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a revision counts reloads: it is far below what a double holds exactly"
)]
fn revision(answer: &DescriptorAnswer) -> Value {
    number(answer.policy.revision as f64)
}

/// One descriptor's limit with its exact figure; `null` if none counts it.
fn about(found: &DescriptorStatus) -> Value {
    let Some(name) = &found.limit else {
        return value(Kind::NullValue(0));
    };
    let verdict = match found.verdict {
        Verdict::Admitted => "ok",
        Verdict::Denied => "over_limit",
        Verdict::WouldDeny => "shadow_over_limit",
        Verdict::NotRefunded => "not_refunded",
    };
    let mut fields = BTreeMap::from([
        ("name".to_owned(), text(name)),
        ("verdict".to_owned(), text(verdict)),
    ]);
    match found.figure {
        Some(figure) => {
            fields.insert("limit".to_owned(), number(f64::from(figure.amount)));
            fields.insert("window".to_owned(), text(&figure.window.label()[1..]));
            if found.used.is_none() {
                fields.insert("unread".to_owned(), value(Kind::BoolValue(true)));
            }
        }
        None => {
            fields.insert("unlimited".to_owned(), value(Kind::BoolValue(true)));
        }
    }
    value(Kind::StructValue(Struct { fields }))
}

const fn value(kind: Kind) -> Value {
    Value { kind: Some(kind) }
}

fn text(text: &str) -> Value {
    value(Kind::StringValue(text.to_owned()))
}

const fn number(number: f64) -> Value {
    value(Kind::NumberValue(number))
}

const fn list(values: Vec<Value>) -> Value {
    value(Kind::ListValue(ListValue { values }))
}
