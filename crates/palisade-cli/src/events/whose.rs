//! Whose an event is: a keyed hash that tells subjects apart and names nobody.

use std::hash::{BuildHasher, RandomState};

use palisade::cases::{Event, Operation};
use palisade_core::Id;

/// One key for all events of a run.
#[derive(Default)]
pub(super) struct Whose(RandomState);

impl Whose {
    /// The subject of an event; `None` if it has none that is known.
    pub(super) fn of(&self, event: &Event) -> Option<u64> {
        Some(match &event.operation {
            Operation::Request(facts) => {
                let org = facts.org.as_ref().map(Id::as_bytes);
                self.0.hash_one((facts.ip, org))
            }
            Operation::Guard(_, facts) => match &facts.account {
                Some(account) => self.0.hash_one(("account", account.as_bytes())),
                None => self.0.hash_one((facts.ip, None::<&[u8]>)),
            },
            // Which entry of a descriptor names somebody is not known.
            Operation::Descriptors(_) | Operation::Fault(_) | Operation::FollowUp(_) => {
                return None;
            }
            Operation::Reserve(asked) => {
                let org = asked.facts.org.as_ref().map(Id::as_bytes);
                self.0.hash_one((asked.facts.ip, org))
            }
        })
    }
}
