//! Sends that a success verifies.

use std::pin::pin;

use palisade_core::facts::GuardFacts;
use palisade_core::failure::Policy;
use palisade_core::guard::KeyPair;
use palisade_core::key::{Digest, DigestPair};
use palisade_core::policy::PolicySet;
use palisade_core::record::RecordKind;
use palisade_core::rule::Rule;
use palisade_core::send::signals::{destination_digest, shard_key, shard_of};
use palisade_core::send::{SendDestination, verify};

use super::super::super::Engine;
use super::super::super::link::For;
use super::super::command::Unusable;
use super::super::commit::{JudgedRecords, Unreadable, commit_judged};
use super::super::records::{CommandRecords, load, unreadable};
use super::{DESTINATION, RANGE_TRIES, RANGES, decoded, one_of, range_writes};
use crate::deadline::until;

impl Engine {
    /// Counts a success for the sends of its destination: the one that it names, or the one that
    /// its account was last sent a code to.
    ///
    /// The success itself is decided and recorded. That its send cannot be found or written changes
    /// no answer to it, and is told by the breaker like any call.
    pub(in crate::engine::guard) async fn verify_sends(
        &self,
        policy: &PolicySet,
        facts: &GuardFacts,
        sent_to: Option<Digest>,
    ) {
        if !policy.settings.guard.send.enabled {
            return;
        }
        let named = facts.destination.as_ref();
        let named = named.map(|destination| destination_digest(&self.keyring, destination));
        let last = sent_to.map(|current| DigestPair {
            current,
            previous: None,
        });
        if let Some(destination) = named.or(last) {
            let _ = self.verify_destination(policy, destination).await;
        }
    }

    async fn verify_destination(
        &self,
        policy: &PolicySet,
        destination: DigestPair,
    ) -> Result<(), Unusable> {
        let calls = self.link.calls(For::Decision(Policy::Otp));
        let key = KeyPair::new(RecordKind::SendDestination, destination);
        let found = load(calls, &one_of(DESTINATION, key)).await?;
        let record = match found.record(DESTINATION, SendDestination::decode) {
            Ok(record) => record,
            Err(failed) => return Err(unreadable(calls, failed).await),
        };
        if !record.was_sent_to() {
            return Ok(());
        }
        let mut pairs = one_of(DESTINATION, key);
        for (slot, current) in RANGES.into_iter().zip(record.ranges()) {
            let range = DigestPair {
                current: *current,
                previous: None,
            };
            pairs[slot] = Some(shard_key(range, shard_of(destination.current)));
        }
        let turn = self.guard.turns.turn(&pairs);
        let Ok(mut turn) = until(calls.turn_ends(), pin!(turn)).await else {
            return Err(Unusable::Record(Rule::F_CONFLICT));
        };
        let judge = |loaded: &CommandRecords, lost| verified(policy, loaded, lost);
        commit_judged(calls, &pairs, &mut turn, judge).await?;
        Ok(())
    }
}

fn verified(
    policy: &PolicySet,
    loaded: &CommandRecords,
    lost: usize,
) -> Result<JudgedRecords<()>, Unreadable> {
    let send = &policy.settings.guard.send;
    let before = decoded(loaded)?;
    let mut after = before.clone();
    let mut writes = Vec::new();
    if verify(send, &mut after.destination, &mut after.ranges, loaded.now) {
        let until = after.destination.expires_at(send.range.exempt_for);
        writes.extend(loaded.writes(DESTINATION, after.destination.encode(), until));
        if lost < RANGE_TRIES {
            writes.extend(range_writes(policy, loaded, &before.ranges, &after.ranges));
        }
    }
    Ok(JudgedRecords {
        writes,
        is_refused: false,
        outcome: (),
    })
}
