//! Session devices: ids that Palisade issues and binds to an account.

use std::pin::pin;

use palisade_core::facts::{GuardFacts, GuardOp, Id};
use palisade_core::guard::signals::session_digest;
use palisade_core::guard::{Account, DecodeError, KeyPair, Signals};
use palisade_core::record::{Flow, RecordKey, RecordWrite};
use palisade_core::time::Micros;
use palisade_store::{Commit, StoreError};
use rand::Rng;

use super::super::Engine;
use super::super::link::{Calls, For};
use super::command::{RETRIES_MAX, Unusable};
use super::records::{CommandRecords, load, unreadable};
use crate::deadline::until;

/// Sessions are recorded in both flows, so that a device trusted at login is also trusted at the
/// one-time code.
const FLOWS: [Flow; 2] = [Flow::Login, Flow::Otp];

impl Engine {
    /// Issues a session id for an account: 256 random bits, of which only a keyed digest is stored.
    /// An account has at most 20 sessions; a further one ends the oldest.
    ///
    /// # Errors
    /// An error of the store.
    pub async fn issue_session(&self, account: &Id) -> Result<String, StoreError> {
        let mut bytes = [0; 32];
        rand::rng().fill_bytes(&mut bytes);
        let id: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        self.add_session(account, &id).await?;
        if let Some(candidate) = self.beside() {
            candidate.add_session(account, &id).await;
        }
        Ok(id)
    }

    pub(in crate::engine) async fn add_session(
        &self,
        account: &Id,
        id: &str,
    ) -> Result<usize, StoreError> {
        let digest = session_digest(&self.keyring, account.as_bytes(), id.as_bytes());
        self.change_sessions(account, |record, now| {
            record.add_session(&digest, now);
            1
        })
        .await
    }

    /// Revokes one session of an account, or all of them, and returns how many there were.
    ///
    /// # Errors
    /// An error of the store.
    pub async fn revoke_sessions(
        &self,
        account: &Id,
        session: Option<&Id>,
    ) -> Result<usize, StoreError> {
        let revoked = self.remove_sessions(account, session).await?;
        if let Some(candidate) = self.beside() {
            candidate.remove_sessions(account, session).await;
        }
        Ok(revoked)
    }

    pub(in crate::engine) async fn remove_sessions(
        &self,
        account: &Id,
        session: Option<&Id>,
    ) -> Result<usize, StoreError> {
        let digest =
            session.map(|id| session_digest(&self.keyring, account.as_bytes(), id.as_bytes()));
        self.change_sessions(account, |record, _| match &digest {
            Some(digest) => usize::from(record.revoke_session(digest)),
            None => record.revoke_all_sessions(),
        })
        .await
    }

    async fn change_sessions(
        &self,
        account: &Id,
        change: impl Fn(&mut Account, Micros) -> usize,
    ) -> Result<usize, StoreError> {
        let pairs = self.account_records(account);
        let calls = self.link.calls(For::Operator);
        let turns = &self.guard.turns;
        let pairs = [pairs[0], pairs[1], None, None, None];
        let turn = turns.turn(&pairs);
        let Ok(_turn) = until(calls.turn_ends(), pin!(turn)).await else {
            return Err(too_busy());
        };
        for _ in 0..=RETRIES_MAX {
            let loaded = load(calls, &pairs).await?;
            let (count, writes) = self.changed_sessions(calls, &loaded, &change).await?;
            // Futures are lazy: without a change nothing is sent.
            let commit = calls.make(|store| store.commit(&writes));
            if count == 0 || commit.await? == Commit::Done {
                return Ok(count);
            }
        }
        Err(too_busy())
    }

    async fn changed_sessions(
        &self,
        calls: Calls<'_>,
        loaded: &CommandRecords,
        change: &impl Fn(&mut Account, Micros) -> usize,
    ) -> Result<(usize, Vec<RecordWrite>), StoreError> {
        let policy = self.policy.load();
        let guard = &policy.settings.guard;
        let (mut most, mut writes) = (0, Vec::new());
        for (slot, flow) in FLOWS.into_iter().enumerate() {
            let mut record = match loaded.record(slot, Account::decode) {
                Ok(record) => record,
                Err(failed) => return Err(cannot_read(calls, failed).await),
            };
            // A session is recorded in both flows, and counts once.
            most = change(&mut record, loaded.now).max(most);
            if let Some(flow) = guard.flow(flow) {
                let until = record.expires_at(guard, flow);
                writes.extend(loaded.writes(slot, record.encode(), until));
            }
        }
        Ok((most, writes))
    }

    fn account_records(&self, account: &Id) -> [Option<KeyPair>; 2] {
        // An account's keys do not depend on the address.
        let mut facts = GuardFacts::new(std::net::IpAddr::from([0, 0, 0, 0]));
        facts.account = Some(account.clone());
        let signals = Signals::resolve(&self.keyring, GuardOp::LoginCheck, &facts);
        FLOWS.map(|flow| signals.keys(flow).account)
    }
}

async fn cannot_read(calls: Calls<'_>, failed: (RecordKey, DecodeError)) -> StoreError {
    match unreadable(calls, failed).await {
        Unusable::Store(no_answer) => no_answer.into(),
        Unusable::Record(rule) => StoreError::Corrupt(rule.id().to_owned()),
    }
}

fn too_busy() -> StoreError {
    StoreError::Exhausted("the account is too busy".to_owned())
}
