//! Fast parser for the most common lines of a recording, requests without remarks or expectations:
//! one pass, no copies. It leaves all other lines to the general parser.

use std::borrow::Cow;

use palisade_core::facts::{Layers, RequestKind};
use palisade_core::path::EncodedSlash;
use palisade_core::time::Micros;
use serde::Deserialize;

use super::event::{Event, Operation};
use crate::wire::{RawClient, RawRequest, Text, text};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlainRequest<'a> {
    #[serde(borrow)]
    at: Cow<'a, str>,
    op: RequestKind,
    #[serde(default)]
    layers: Option<Layers>,
    #[serde(borrow, default, deserialize_with = "text")]
    ip: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "text")]
    method: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "text")]
    path: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "text")]
    host: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "text")]
    class: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "text")]
    user_agent: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "text")]
    org: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "text")]
    user: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "text")]
    token: Option<Text<'a>>,
    #[serde(borrow, default)]
    scopes: Option<Vec<Text<'a>>>,
    #[serde(borrow, default)]
    client: Option<RawClient<'a>>,
    #[serde(borrow, default, deserialize_with = "text")]
    api_key: Option<Text<'a>>,
    #[serde(default)]
    cost: Option<u64>,
    #[serde(borrow, default, deserialize_with = "text")]
    country: Option<Text<'a>>,
    #[serde(default)]
    asn: Option<u64>,
    #[serde(borrow, default, deserialize_with = "text")]
    request_id: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "text")]
    correlation_id: Option<Text<'a>>,
}

/// The event of a plain request; `None` for anything else, including lines that are not valid.
pub(super) fn request(line: &str, slash: EncodedSlash) -> Option<Event> {
    // serde would read the struct from an array, too.
    if !line.trim_start().starts_with('{') {
        return None;
    }
    let plain: PlainRequest<'_> = serde_json::from_str(line).ok()?;
    let at = Micros::parse_rfc3339(&plain.at)?;
    let raw = RawRequest {
        op: Some(plain.op),
        layers: plain.layers,
        receipt: None,
        report: None,
        ip: plain.ip,
        method: plain.method,
        path: plain.path,
        host: plain.host,
        class: plain.class,
        user_agent: plain.user_agent,
        org: plain.org,
        user: plain.user,
        token: plain.token,
        scopes: plain.scopes,
        client: plain.client,
        api_key: plain.api_key,
        cost: plain.cost,
        costs: None,
        challenge_token: None,
        country: plain.country,
        asn: plain.asn,
        known_device: None,
        request_id: plain.request_id,
        correlation_id: plain.correlation_id,
    };
    let facts = raw.into_facts_of(slash).ok()?;
    Some(Event {
        at,
        operation: Operation::Request(Box::new(facts)),
        challenge: None,
        expect: None,
    })
}
