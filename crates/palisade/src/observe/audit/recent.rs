//! The newest events of this process, for operators who look a subject up.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use palisade_core::Id;
use palisade_core::decision::Level;
use palisade_core::key::Keyring;
use parking_lot::Mutex;
use serde::Serialize;

use super::event::{Actor, Event, Network};
use crate::extract::login::counted;
use crate::observe::who::log_digest;

/// Most events that are kept.
const EVENTS_KEPT: usize = 5_000;

/// The newest events, the oldest first.
#[derive(Default)]
pub(super) struct Recent(Mutex<VecDeque<Arc<Event>>>);

/// The subject of which events are wanted.
#[derive(Clone, Copy, Debug)]
pub enum Whose<'a> {
    /// An address: the events of its network, since the audit knows no address.
    Ip(IpAddr),
    /// An account of the guard, as typed and as the proxy counts it.
    Account(&'a Id),
    /// A user.
    User(&'a Id),
    /// An organisation.
    Org(&'a Id),
    /// An OAuth client.
    Client(&'a Id),
    /// An API key as it is sent.
    ApiKey(&'a Id),
}

/// One audit event, without identifiers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = PastEvent))]
pub struct Past {
    /// Time of the event, RFC 3339.
    pub at: String,
    /// Name of the event in the audit.
    pub event: &'static str,
    /// Class of the request, or flow of the guard.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub class: Option<Arc<str>>,
    /// The limit that refused.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub limit: Option<Arc<str>>,
    /// The rule that decided.
    pub rule: Option<&'static str>,
    /// Command of the guard.
    pub op: Option<&'static str>,
    /// Outcome of the decision.
    pub decision: Option<&'static str>,
    /// Ladder level of a block.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub level: Option<Level>,
    /// Whole seconds to wait.
    pub retry_after: Option<u64>,
}

impl Recent {
    pub(super) fn push(&self, event: &Event) {
        let event = Arc::new(event.clone());
        let mut events = self.0.lock();
        if events.len() >= EVENTS_KEPT {
            events.pop_front();
        }
        events.push_back(event);
    }

    /// Returns at most `most` events about `whose`, the newest first.
    pub(super) fn of(&self, keyring: &Keyring, whose: Whose<'_>, most: usize) -> Vec<Past> {
        let is_theirs = matching(keyring, whose);
        let events = self.0.lock();
        let theirs = events.iter().rev().filter(|event| is_theirs(event));
        theirs.take(most).map(|event| Past::of(event)).collect()
    }
}

fn matching<'a>(keyring: &Keyring, whose: Whose<'a>) -> impl Fn(&Event) -> bool + use<'a> {
    let (kind, id) = match whose {
        Whose::Ip(_) => ("ip", None),
        Whose::Account(id) => ("account", Some(id)),
        Whose::User(id) => ("user", Some(id)),
        Whose::Org(id) => ("org", Some(id)),
        Whose::Client(id) => ("client", Some(id)),
        Whose::ApiKey(id) => ("api_key", Some(id)),
    };
    let digest_of = |id: &Id| log_digest(keyring, kind, id.as_bytes());
    let digest = id.map(digest_of);
    // The proxy normalises a name before it becomes an account.
    let folded = match whose {
        Whose::Account(id) => counted(id.as_str()).ok().map(|id| digest_of(&id)),
        _ => None,
    };
    move |event| match whose {
        Whose::Ip(ip) => event.ip_prefix == Some(Network::of(ip)),
        Whose::Org(_) => event.org_id.map(|hex| hex.0) == digest,
        Whose::Client(_) => event.client.map(|hex| hex.0) == digest,
        Whose::Account(_) | Whose::User(_) | Whose::ApiKey(_) => {
            matches!(event.actor, Some(Actor::Digest(hex)) if [digest, folded].contains(&Some(hex.0)))
        }
    }
}

impl Past {
    fn of(event: &Event) -> Self {
        Self {
            at: event.at.to_rfc3339(),
            event: event.kind.name(),
            class: event.class.clone(),
            limit: event.bucket.clone(),
            rule: event.rule.map(palisade_core::rule::Rule::id),
            op: event.op,
            decision: event.decision,
            level: event.level,
            retry_after: event.retry_after,
        }
    }
}
