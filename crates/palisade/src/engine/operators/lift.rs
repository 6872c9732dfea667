//! Lifting of blocks before they end.

use std::net::IpAddr;

use palisade_core::decision::KeyKind;
use palisade_core::failure::{DegradedKeys, Trust};
use palisade_core::guard::{Lift, username_digest};
use palisade_core::key::{Domain, Prefix};
use palisade_core::policy::Settings;
use palisade_core::record::{Flow, RecordKey, RecordKind, RecordWrite};
use palisade_core::time::Micros;
use palisade_core::{Digest, Id};
use palisade_store::{Commit, Record, StoreError};

use super::super::Engine;
use super::super::guard::RETRIES_MAX;
use super::super::link::For;
use super::aggregate::Aggregate;
use super::{LookedUp, spellings};

/// A block to lift, or all blocks of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiftTarget {
    /// The record that contains the block.
    pub record: RecordKey,
    /// Only the block on this key and member; `None` lifts all of the record.
    pub only: Option<(KeyKind, Option<String>)>,
    /// Treatment of the score that led to the block.
    pub score: Score,
}

/// Whether lifting a block also forgives what led to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Score {
    /// The score stays, and the next failure adds to it.
    #[default]
    Keep,
    /// An account's or a name's score is forgotten: the next failure is a first one.
    Forget,
}

/// Subject whose blocks to lift, as an operator names it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiftSubject {
    /// The account: its login and OTP records, as typed and as the proxy counts it. Together with
    /// an address also its lockout there.
    pub account: Option<Id>,
    /// The address: its network records. Together with a username it only says which lockout is
    /// meant.
    pub ip: Option<IpAddr>,
    /// Name or email as typed. Together with the address it names a lockout.
    pub username: Option<Id>,
}

/// Result of lifting blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiftSummary {
    /// Records of the subject that exist.
    pub records: usize,
    /// Blocks that were active.
    pub blocks: usize,
    /// Digest of the first record that had a block, otherwise of the first that exists.
    pub first: Option<Digest>,
}

impl LiftSummary {
    fn and(self, other: Self) -> Self {
        let other_is_first = self.blocks == 0 && other.blocks > 0;
        let (first, second) = match other_is_first {
            true => (other.first, self.first),
            false => (self.first, other.first),
        };
        Self {
            records: self.records + other.records,
            blocks: self.blocks + other.blocks,
            first: first.or(second),
        }
    }
}

impl Engine {
    /// Lifts the blocks on all records of a subject.
    ///
    /// # Errors
    /// An error of the store.
    pub async fn lift_of(
        &self,
        subject: &LiftSubject,
        score: Score,
    ) -> Result<LiftSummary, StoreError> {
        let mut lifted = LiftSummary::default();
        for record in self.records_named(subject) {
            let target = LiftTarget {
                record,
                only: None,
                score,
            };
            lifted = lifted.and(self.lift(&target).await?);
        }
        Ok(lifted)
    }

    /// The spellings under which an account is looked up.
    #[must_use]
    pub fn looked_up(&self, account: Option<&Id>) -> Vec<LookedUp> {
        spellings::looked_up(&self.keyring, account)
    }

    /// The digest by which the audit names a subject: that of its first record.
    pub(in crate::engine) fn digest_of(&self, subject: &LiftSubject) -> Option<Digest> {
        let records = self.records_named(subject);
        records.first().map(|record| record.digest)
    }

    pub(super) fn records_named(&self, subject: &LiftSubject) -> Vec<RecordKey> {
        let account = subject.account.as_ref();
        let prefix = subject.ip.map(Prefix::of);
        // Behind the proxy the account is the name that was typed.
        let name = subject.username.as_ref().or(account);
        let lockout = name.zip(prefix).map(|(name, prefix)| {
            let digest = username_digest(&self.keyring, name.as_str(), prefix);
            (vec![RecordKind::Lockout], digest)
        });
        let network = prefix.filter(|_| subject.username.is_none()).map(|prefix| {
            let digest = self.keyring.hmac(Domain::Prefix, &[prefix.bytes()]);
            let flows = [Flow::Login, Flow::Otp, Flow::Api];
            (flows.map(RecordKind::Network).to_vec(), digest)
        });
        let mut records = account.map_or_else(Vec::new, |account| {
            spellings::account_records(&self.keyring, account)
        });
        for (kinds, digest) in [lockout, network].into_iter().flatten() {
            for kind in kinds {
                let digests = std::iter::once(digest.current).chain(digest.previous);
                records.extend(digests.map(|digest| RecordKey { kind, digest }));
            }
        }
        records
    }

    /// Lifts blocks of one record and returns how many were active. Other nodes see the change with
    /// their next command.
    ///
    /// # Errors
    /// An error of the store.
    pub async fn lift(&self, target: &LiftTarget) -> Result<LiftSummary, StoreError> {
        let policy = self.policy.load_full();
        let which = match &target.only {
            None => Lift::All,
            Some((key, member)) => Lift::One(*key, member.as_deref()),
        };
        let calls = self.link.calls(For::Operator);
        for _ in 0..=RETRIES_MAX {
            let keys = [target.record];
            let loaded = calls.make(|store| store.load(&keys)).await?;
            let Some(Some(record)) = loaded.records.into_iter().next() else {
                return Ok(LiftSummary::default());
            };
            let Some((blocks, write)) =
                lifted(&policy.settings, target, &record, which, loaded.now)
            else {
                return Ok(LiftSummary::default());
            };
            let writes = [write];
            // A record without a block need not be written again.
            let nothing_to_write = blocks == 0 && target.score == Score::Keep;
            let commit = calls.make(|store| store.commit(&writes));
            if nothing_to_write || commit.await? == Commit::Done {
                self.forget_block(target);
                return Ok(LiftSummary {
                    records: 1,
                    blocks,
                    first: Some(target.record.digest),
                });
            }
        }
        Err(StoreError::Exhausted("the record is too busy".to_owned()))
    }

    /// Forgets lifted blocks that this node remembers for outages, so that they do not bind again
    /// in one.
    fn forget_block(&self, target: &LiftTarget) {
        let id = target.record.digest;
        let member = target
            .only
            .as_ref()
            .and_then(|(_, member)| Digest::from_hex(member.as_deref()?));
        let (flow, kinds): (Flow, &[KeyKind]) = match target.record.kind {
            RecordKind::Account(flow) => (flow, &[KeyKind::Account, KeyKind::AccountDevice]),
            RecordKind::Network(flow) => (
                flow,
                &[KeyKind::Prefix, KeyKind::PrefixAgent, KeyKind::PrefixDevice],
            ),
            RecordKind::Device(flow) => (flow, &[KeyKind::Device]),
            RecordKind::Lockout => return self.link.modes().lift_lockout(id),
            RecordKind::Reservation
            | RecordKind::SendAccount
            | RecordKind::SendNetwork
            | RecordKind::SendDestination
            | RecordKind::SendRange => return,
        };
        // Each kind of block reads only the digests that it is keyed by, so one set of keys serves
        // them all.
        let keys = DegradedKeys {
            prefix: id,
            user_agent: member.unwrap_or_default(),
            account: Some(id),
            fingerprint: member.or(Some(id)),
            lockout: None,
            challenge_passed: false,
            trust: Trust::Untrusted,
        };
        let mut modes = self.link.modes();
        for kind in kinds {
            modes.guard(flow).blocks().lift(*kind, &keys);
        }
    }
}

fn lifted(
    settings: &Settings,
    target: &LiftTarget,
    record: &Record,
    which: Lift<'_>,
    now: Micros,
) -> Option<(usize, RecordWrite)> {
    let key = target.record;
    let mut aggregate = Aggregate::decode(key.kind, &record.bytes)?;
    let lifted = aggregate.lift(settings, which, now);
    if target.score == Score::Forget {
        aggregate.forgive();
    }
    let (bytes, expires_at) = aggregate.encode(settings)?;
    let write = RecordWrite {
        key,
        expect: record.revision,
        bytes: Some(bytes),
        expires_at,
    };
    Some((lifted, write))
}
