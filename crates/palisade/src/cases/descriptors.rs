//! `"op":"rls"`: a call of an Envoy rate-limit service as a line, and its answer as JSON.

use std::num::NonZeroU64;

use palisade_core::FieldError;
use palisade_core::facts::{Descriptor, DescriptorEntry, DescriptorFacts, Hits, OwnFigure};
use palisade_core::limit::Window;
use palisade_core::time::SECOND;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::engine::{DescriptorAnswer, DescriptorStatus, DescriptorVerdict};

/// A call as a line spells it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DescriptorCall {
    domain: String,
    descriptors: Vec<WrittenDescriptor>,
    /// Hits of every descriptor that does not state its own; one if left out.
    #[serde(default)]
    hits: u32,
}

/// A descriptor: its entries alone, or an object with more members.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
enum WrittenDescriptor {
    Entries(Vec<WrittenEntry>),
    Full(Full),
}

impl std::fmt::Debug for WrittenDescriptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WrittenDescriptor(…)")
    }
}

#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Full {
    entries: Vec<WrittenEntry>,
    /// Hits of this descriptor: 0 only reads, and a negative number refunds.
    hits: Option<i64>,
    /// A limit that the caller sets for this descriptor, such as `"10/min"`.
    limit: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenEntry {
    key: String,
    #[serde(default)]
    value: String,
}

impl DescriptorCall {
    /// The facts of the call.
    ///
    /// # Errors
    /// A field that is out of its bounds.
    pub fn facts(&self) -> Result<DescriptorFacts<'_>, FieldError> {
        let descriptors: Result<Vec<_>, _> = self.descriptors.iter().map(descriptor).collect();
        let mut facts = DescriptorFacts::new(&self.domain, descriptors?)?;
        facts.hits = NonZeroU64::new(self.hits.into()).unwrap_or(NonZeroU64::MIN);
        Ok(facts)
    }

    /// Returns the domain of the call.
    #[must_use]
    pub fn domain(&self) -> &str {
        &self.domain
    }
}

fn descriptor(written: &WrittenDescriptor) -> Result<Descriptor<'_>, FieldError> {
    let (entries, hits, limit) = match written {
        WrittenDescriptor::Entries(entries) => (entries, None, None),
        WrittenDescriptor::Full(full) => (&full.entries, full.hits, full.limit.as_deref()),
    };
    Ok(Descriptor {
        entries: entries
            .iter()
            .map(|entry| DescriptorEntry {
                key: entry.key.as_bytes(),
                value: entry.value.as_bytes(),
            })
            .collect(),
        hits: hits.map(asked),
        figure: limit.map(figure).transpose()?,
    })
}

fn asked(hits: i64) -> Hits {
    match NonZeroU64::new(hits.unsigned_abs()) {
        None => Hits::Look,
        Some(amount) if hits < 0 => Hits::Refund(amount),
        Some(amount) => Hits::Charge(amount),
    }
}

fn figure(written: &str) -> Result<OwnFigure, FieldError> {
    let rate = palisade_policy::Rate::parse(written)
        .map_err(|_| FieldError::new("descriptors.limit", "must be `N/unit`, as in \"10/min\""))?;
    Ok(OwnFigure {
        amount: rate.limit.get(),
        window: rate.window,
    })
}

/// Adds the members that only an answer to Envoy has: the code that Envoy receives, and one status
/// for each descriptor, in order.
pub(super) fn add_statuses(answer: &DescriptorAnswer, to: &mut Map<String, Value>) {
    let code = if answer.decision.is_allowed() {
        "OK"
    } else {
        "OVER_LIMIT"
    };
    to.insert("code".to_owned(), code.into());
    let statuses = answer.statuses.iter().map(status);
    to.insert("statuses".to_owned(), statuses.collect());
}

fn status(found: &DescriptorStatus) -> Value {
    let code = match found.verdict {
        DescriptorVerdict::Admitted
        | DescriptorVerdict::WouldDeny
        | DescriptorVerdict::NotRefunded => "OK",
        DescriptorVerdict::Denied => "OVER_LIMIT",
    };
    let window = found.figure.map(|figure| window(figure.window));
    json!({
        "code": code,
        "limit": found.limit,
        "requests": found.figure.map(|figure| figure.amount),
        "window": window,
        "remaining": found.remaining,
        "reset_seconds": found.reset_us.map(|us| us.div_ceil(SECOND)),
        "shadow": found.verdict == DescriptorVerdict::WouldDeny,
    })
}

/// Returns a window as keys spell it: `60s`, `1d`, `1mo`.
fn window(window: Window) -> String {
    window.label().trim_start_matches('w').to_owned()
}
