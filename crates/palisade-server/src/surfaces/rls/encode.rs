//! Encodes an answer as the response's message, ready to be sent.

use std::collections::BTreeMap;

use bytes::Bytes;
use palisade::engine::{DescriptorAnswer, DescriptorStatus, DescriptorVerdict, Figure};
use palisade_core::Decision;
use palisade_core::bodies::body;
use palisade_core::headers::{Field, TakeHeaders, each_header};
use palisade_core::limit::Window;
use palisade_core::time::{DAY, HOUR, MINUTE, SECOND};
use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};

use super::fields::Fields;
use super::grpc;
use super::messages::{Code, Unit};

/// Field numbers, the same as in [`messages`](super::messages).
mod number {
    pub(super) mod response {
        pub(crate) const OVERALL_CODE: u8 = 1;
        pub(crate) const STATUSES: u8 = 2;
        pub(crate) const RESPONSE_HEADERS_TO_ADD: u8 = 3;
        pub(crate) const RAW_BODY: u8 = 5;
        pub(crate) const DYNAMIC_METADATA: u8 = 6;
    }
    pub(super) mod status {
        pub(crate) const CODE: u8 = 1;
        pub(crate) const CURRENT_LIMIT: u8 = 2;
        pub(crate) const LIMIT_REMAINING: u8 = 3;
        pub(crate) const DURATION_UNTIL_RESET: u8 = 4;
    }
    pub(super) mod limit {
        pub(crate) const REQUESTS_PER_UNIT: u8 = 1;
        pub(crate) const UNIT: u8 = 2;
        pub(crate) const NAME: u8 = 3;
    }
    pub(super) mod header {
        pub(crate) const KEY: u8 = 1;
        pub(crate) const VALUE: u8 = 2;
    }
    pub(super) mod duration {
        pub(crate) const SECONDS: u8 = 1;
        pub(crate) const NANOS: u8 = 2;
    }
}
use number::{duration, header, limit, response, status};

/// The response to a call, with its gRPC prefix.
pub(super) fn framed(answer: &DescriptorAnswer, request_id: &str) -> Bytes {
    grpc::framed_as(USUAL_BYTES, |bytes| write(answer, request_id, bytes))
}

/// Usual length of a response about one descriptor, in bytes.
const USUAL_BYTES: usize = 384;

/// Writes the fields in the order of their numbers.
fn write(answer: &DescriptorAnswer, request_id: &str, bytes: &mut Vec<u8>) {
    let decision = &answer.decision;
    let settings = &answer.policy.settings;
    let body = body(decision, &settings.urls, request_id);
    let body = body.and_then(|body| serde_json::to_vec(&body).ok());
    let mut fields = Fields::new(bytes);
    fields.number(response::OVERALL_CODE, overall(decision) as u64);
    for found in &answer.statuses {
        fields.message(response::STATUSES, |fields| write_status(found, fields));
    }
    // The client sees the answer to a refusal, so that its header carries the id that the body
    // names.
    let id = body.is_some().then_some(request_id);
    write_headers(answer, id, &mut fields);
    fields.bytes(response::RAW_BODY, &body.unwrap_or_default());
    if settings.rls.metadata {
        let metadata = metadata(answer);
        fields.message(response::DYNAMIC_METADATA, |fields| {
            fields.all_of(&metadata)
        });
    }
}

const fn overall(decision: &Decision) -> Code {
    match decision.is_allowed() {
        true => Code::Ok,
        false => Code::OverLimit,
    }
}

/// R-HEADERS: writes the header families of the policy, for the limit that denied or is closest to
/// denying.
fn write_headers(answer: &DescriptorAnswer, refused: Option<&str>, fields: &mut Fields<'_>) {
    let families = answer.policy.settings.headers;
    let mut headers = Headers {
        fields,
        text: String::with_capacity(64),
    };
    each_header(&answer.decision, families, &mut headers);
    if let Some((key, value)) = answer.candidate.as_ref().and_then(|one| one.header()) {
        write_header(key, &value, fields);
    }
    if let Some(request_id) = refused {
        write_header("Content-Type", "application/json", fields);
        write_header("X-Request-Id", request_id, fields);
    }
}

fn write_header(key: &str, value: &str, fields: &mut Fields<'_>) {
    fields.message(response::RESPONSE_HEADERS_TO_ADD, |fields| {
        fields.bytes(header::KEY, key.as_bytes());
        fields.bytes(header::VALUE, value.as_bytes());
    });
}

/// Writes the headers of an answer into its message.
struct Headers<'a, 'b> {
    fields: &'a mut Fields<'b>,
    /// Buffer for values, reused for each header.
    text: String,
}

impl TakeHeaders for Headers<'_, '_> {
    fn take(&mut self, field: Field, write: impl FnOnce(&mut String)) {
        self.text.clear();
        write(&mut self.text);
        write_header(field.name(), &self.text, self.fields);
    }
}

/// R-STATUS: writes the status of one descriptor.
fn write_status(found: &DescriptorStatus, fields: &mut Fields<'_>) {
    let code = match found.verdict {
        DescriptorVerdict::Admitted
        | DescriptorVerdict::WouldDeny
        | DescriptorVerdict::NotRefunded => Code::Ok,
        DescriptorVerdict::Denied => Code::OverLimit,
    };
    fields.number(status::CODE, code as u64);
    if let Some((name, figure)) = found.limit.as_ref().zip(found.figure) {
        let (requests_per_unit, unit) = in_units(figure);
        fields.message(status::CURRENT_LIMIT, |fields| {
            fields.number(limit::REQUESTS_PER_UNIT, requests_per_unit.into());
            fields.number(limit::UNIT, unit as u64);
            fields.bytes(limit::NAME, name.as_bytes());
        });
    }
    fields.number(status::LIMIT_REMAINING, in_field(found.remaining).into());
    if let Some(us) = found.reset_us {
        fields.message(status::DURATION_UNTIL_RESET, |fields| {
            fields.number(duration::SECONDS, us / SECOND);
            fields.number(duration::NANOS, us % SECOND * 1_000);
        });
    }
}

/// Converts a limit to the longest protocol unit that is no longer than its window, or to seconds
/// if there is none. The amount is rounded down, but not below one.
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
        Window::Month => return (in_field(figure.amount), Unit::Month),
        Window::Year => return (in_field(figure.amount), Unit::Year),
    };
    let below = UNITS.iter().find(|(unit, _)| *unit <= span);
    let (unit_us, unit) = below.copied().unwrap_or((SECOND, Unit::Second));
    if figure.amount == 0 {
        return (0, unit);
    }
    let scaled = u128::from(figure.amount) * u128::from(unit_us) / u128::from(span.max(1));
    (in_field(scaled).max(1), unit)
}

/// An amount in a field of 32 bits: at most the largest that it holds.
fn in_field(amount: impl TryInto<u32>) -> u32 {
    amount.try_into().unwrap_or(u32::MAX)
}

/// R-META: builds the metadata from names of the policy and ids of rules, never a descriptor's
/// value.
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

/// A revision, which counts reloads, or a limit's amount.
#[expect(
    clippy::cast_precision_loss,
    reason = "both are below what a double holds exactly"
)]
const fn exact(number: u64) -> f64 {
    number as f64
}

fn revision(answer: &DescriptorAnswer) -> Value {
    number(exact(answer.policy.revision))
}

/// Describes the limit of one descriptor with its exact amount and window; `null` if no limit
/// counts it.
fn about(found: &DescriptorStatus) -> Value {
    let Some(name) = &found.limit else {
        return value(Kind::NullValue(0));
    };
    let verdict = match found.verdict {
        DescriptorVerdict::Admitted => "ok",
        DescriptorVerdict::Denied => "over_limit",
        DescriptorVerdict::WouldDeny => "shadow_over_limit",
        DescriptorVerdict::NotRefunded => "not_refunded",
    };
    let mut fields = BTreeMap::from([
        ("name".to_owned(), text(name)),
        ("verdict".to_owned(), text(verdict)),
    ]);
    match found.figure {
        Some(figure) => {
            fields.insert("limit".to_owned(), number(exact(figure.amount)));
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

#[cfg(test)]
mod tests;
