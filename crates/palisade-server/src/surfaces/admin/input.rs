//! Field-by-field reading of operators' bodies, so that all errors are reported at once.

use std::collections::BTreeMap;
use std::net::IpAddr;

use axum::extract::{FromRequest, Request};
use palisade_core::facts::{ID_BYTES_MAX, bounded};
use palisade_core::{Id, Micros};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::refusal::Refusal;
use super::{BODY_BYTES_MAX, Operations};
use crate::surfaces::exchange::body;

/// A body of the expected shape. Its fields are not validated yet.
pub(super) struct Body<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Operations> for Body<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, operations: &Operations) -> Result<Self, Refusal> {
        let body = request.into_body();
        let bytes = body::read(body, BODY_BYTES_MAX, operations.read_timeout)
            .await
            .map_err(|problem| Refusal::body(&problem))?;
        palisade::wire::parse(&bytes)
            .map(Self)
            .map_err(|error| match error.field() {
                None => unreadable(),
                Some(_) => Refusal::invalid_field(
                    "Invalid request",
                    "body",
                    "must be an object with the documented fields only",
                ),
            })
    }
}

fn unreadable() -> Refusal {
    Refusal::invalid_field("Invalid request", "body", "must be valid JSON")
}

/// Whether a text has the form of an API key's hash, as it is stored. A raw key has not.
pub(super) fn is_key_hash(text: &str) -> bool {
    let is_lower_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.len() == 64 && text.bytes().all(is_lower_hex)
}

/// Collects the errors of fields.
pub(super) struct Fields {
    message: &'static str,
    problems: BTreeMap<&'static str, &'static str>,
}

impl Fields {
    pub(super) const fn new(message: &'static str) -> Self {
        Self {
            message,
            problems: BTreeMap::new(),
        }
    }

    pub(super) fn wrong(&mut self, field: &'static str, problem: &'static str) {
        self.problems.entry(field).or_insert(problem);
    }

    /// Reads a text that may be absent.
    pub(super) fn optional(&mut self, field: &'static str, value: Option<Value>) -> Option<String> {
        match value {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => match bounded(field, &text, ID_BYTES_MAX) {
                Ok(()) => Some(text),
                Err(error) => {
                    self.wrong(field, error.problem);
                    None
                }
            },
            Some(_) => {
                self.wrong(field, "must be text");
                None
            }
        }
    }

    /// Reads a text that must be present.
    pub(super) fn required(&mut self, field: &'static str, value: Option<Value>) -> String {
        let text = self.optional(field, value);
        if text.is_none() {
            self.wrong(field, "is required");
        }
        text.unwrap_or_default()
    }

    /// Reads an IP address that may be absent.
    pub(super) fn address(&mut self, field: &'static str, value: Option<Value>) -> Option<IpAddr> {
        let text = self.optional(field, value)?;
        let address = text.parse().ok();
        if address.is_none() {
            self.wrong(field, "is not an IP address");
        }
        address
    }

    /// Reads an identifier that may be absent.
    pub(super) fn id(&mut self, field: &'static str, value: Option<Value>) -> Option<Id> {
        let text = self.optional(field, value)?;
        Id::new(field, &text).ok()
    }

    /// Reads an instant that may be absent.
    pub(super) fn instant(&mut self, field: &'static str, value: Option<Value>) -> Option<Micros> {
        let text = self.optional(field, value)?;
        let at = Micros::parse_rfc3339(&text);
        if at.is_none() {
            self.wrong(field, "must be a time such as 2027-01-31T12:00:00Z");
        }
        at
    }

    /// Returns an error with all problems, if there are any.
    pub(super) fn finish(self) -> Result<(), Refusal> {
        if self.problems.is_empty() {
            Ok(())
        } else {
            Err(Refusal::invalid(self.message, self.problems))
        }
    }
}
