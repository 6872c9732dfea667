//! Builds facts from a request's message.

use std::num::NonZeroU64;

use palisade_core::FieldError;
use palisade_core::facts::{Descriptor, DescriptorEntry, DescriptorFacts, Hits, OwnFigure};
use palisade_core::limit::Window;
use palisade_core::time::{DAY, HOUR, MINUTE, SECOND};

use super::messages::{self, Unit};

/// Returns the facts of a call, within their bounds.
pub(super) fn facts(request: &messages::Request) -> Result<DescriptorFacts<'_>, FieldError> {
    let descriptors: Result<Vec<Descriptor<'_>>, FieldError> =
        request.descriptors.iter().map(descriptor).collect();
    let mut facts = DescriptorFacts::new(&request.domain, descriptors?)?;
    facts.hits = NonZeroU64::new(request.hits_addend.into()).unwrap_or(NonZeroU64::MIN);
    Ok(facts)
}

fn descriptor(message: &messages::Descriptor) -> Result<Descriptor<'_>, FieldError> {
    let entries = message.entries.iter().map(|entry| DescriptorEntry {
        key: &entry.key,
        value: &entry.value,
    });
    Ok(Descriptor {
        entries: entries.collect(),
        hits: hits(message),
        figure: message.limit.as_ref().map(figure).transpose()?,
    })
}

/// R-HITS. The plan cuts off what is too large to count at a value that no limit admits.
fn hits(message: &messages::Descriptor) -> Option<Hits> {
    let hits = message.hits_addend?;
    Some(match (NonZeroU64::new(hits), message.is_negative_hits) {
        (None, _) => Hits::Look,
        (Some(hits), true) => Hits::Refund(hits),
        (Some(hits), false) => Hits::Charge(hits),
    })
}

fn figure(own: &messages::Override) -> Result<OwnFigure, FieldError> {
    let unit = Unit::try_from(own.unit).unwrap_or(Unit::Unknown);
    let window = match unit {
        Unit::Second => Window::Span(SECOND),
        Unit::Minute => Window::Span(MINUTE),
        Unit::Hour => Window::Span(HOUR),
        Unit::Day => Window::Span(DAY),
        Unit::Week => Window::Span(7 * DAY),
        Unit::Month => Window::Month,
        Unit::Year => Window::Year,
        Unit::Unknown => {
            return Err(FieldError::new("descriptors.limit.unit", "is not known"));
        }
    };
    Ok(OwnFigure {
        amount: own.requests_per_unit.into(),
        window,
    })
}
