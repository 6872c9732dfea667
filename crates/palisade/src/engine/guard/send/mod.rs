//! Sends of one-time codes: load the records, apply the rules, commit; and what a success verifies.

mod money;
mod ranges;
mod verify;

use std::pin::pin;
use std::sync::Arc;

use palisade_core::decision::{Decision, Outcome};
use palisade_core::facts::{GuardFacts, GuardOp};
use palisade_core::failure::{DegradedKeys, Policy};
use palisade_core::guard::policy::GuardMode;
use palisade_core::guard::{Account, Answer, KeyPair, Signals};
use palisade_core::policy::PolicySet;
use palisade_core::record::{Flow, RecordKind, RecordWrite};
use palisade_core::rule::Rule;
use palisade_core::send::{
    RangeCounts, SendAccount, SendCommand, SendDestination, SendEvaluation, SendKeys, SendNetwork,
    SendRange, SendRecords, SendSignals, evaluate,
};

use super::super::Engine;
use super::super::link::{Calls, For};
use super::command::{GuardNotes, Unusable, degraded_keys};
use super::commit::{JudgedRecords, Unreadable, commit_judged};
use super::records::{CommandRecords, load};
use super::turns::{Pairs, RECORDS};
use crate::deadline::until;
use money::SpendOutcome;
pub(super) use ranges::Ranges;

const ACCOUNT: usize = 0;
const NETWORK: usize = 1;
const DESTINATION: usize = 2;
const RANGES: [usize; 2] = [3, 4];

/// Lost swaps after which the count of a range is left out. It is the one record that strangers
/// write too, and a statistic: it must not fail a send.
const RANGE_TRIES: usize = 3;

/// A send with everything it needs on its way to a decision.
struct SendInProgress<'e> {
    calls: Calls<'e>,
    policy: &'e PolicySet,
    signals: SendSignals,
    keys: SendKeys,
    /// Whether it is known by now if the account knows the device.
    is_device_asked: bool,
    /// False for a look: the send is judged and not counted.
    counts: bool,
}

impl Engine {
    /// Decides a send.
    pub(super) async fn judge_send(
        &self,
        policy: &Arc<PolicySet>,
        facts: &GuardFacts,
        passed: bool,
    ) -> (Decision, GuardNotes) {
        let guard = &policy.settings.guard;
        let Some(destination) = facts.destination.as_ref().filter(|_| guard.send.enabled) else {
            return (Decision::allow(self.now()), GuardNotes::default());
        };
        let mut signals = Signals::resolve(&self.keyring, GuardOp::OtpSend, facts);
        signals.challenge_passed |= passed;
        let send = SendSignals::resolve(&self.keyring, &guard.send, &signals, destination);
        let keys = DegradedKeys {
            account: Some(send.account.unwrap_or(send.destination).current),
            ..degraded_keys(policy, Flow::Otp, &signals)
        };
        match self.send_on_store(policy, facts, &signals, send).await {
            Ok((decision, notes)) if guard.send_mode() == GuardMode::Shadow => {
                (decision.in_shadow(), notes)
            }
            Ok(decided) => decided,
            Err(unusable) => {
                let alone = match unusable {
                    Unusable::Record(rule) => Some(rule),
                    Unusable::Store(_) => None,
                };
                let mut modes = self.link.modes();
                let decision = modes.answer_send(alone, &keys, self.now());
                (decision, GuardNotes::default())
            }
        }
    }

    async fn send_on_store(
        &self,
        policy: &Arc<PolicySet>,
        facts: &GuardFacts,
        signals: &Signals,
        send: SendSignals,
    ) -> Result<(Decision, GuardNotes), Unusable> {
        let guard = &policy.settings.guard;
        let mut send = SendInProgress {
            calls: self.link.calls(For::Decision(Policy::Otp)),
            policy,
            keys: send.keys(),
            signals: send,
            is_device_asked: false,
            counts: guard.send.spend.is_none(),
        };
        let mut decided = self.decide_send(&mut send, signals).await?;
        let Some(spend) = &guard.send.spend else {
            return Ok(noted(decided));
        };
        let goes_out =
            |decision: &Decision| decision.is_allowed() || guard.send_mode() == GuardMode::Shadow;
        if !goes_out(&decided.0) {
            return Ok(noted(decided));
        }
        // Money is asked last, and only for a send that every other rule admits.
        let money = match self.reserve_money(policy, spend, facts).await? {
            SpendOutcome::Held(money) => money,
            SpendOutcome::Denied(candidate) => {
                decided.1.answer.reasons.push(candidate);
                decided.1.answer = Answer::of(decided.1.answer.reasons);
                decided.0 = decided.1.answer.decision(decided.0.at);
                return Ok(noted(decided));
            }
        };
        send.counts = true;
        send.calls = send.calls.anew();
        let counted = self.commit_send(&send).await;
        let is_sent = counted
            .as_ref()
            .is_ok_and(|(decision, _)| goes_out(decision));
        if !is_sent && let Some(token) = &money.reservation {
            // The token was made a moment ago, and what is not released here ends by itself.
            let _ = self.release(token).await;
        }
        let (mut decision, found) = counted?;
        if is_sent {
            decision.reservation = money.reservation;
            decision.warnings = money.warnings;
            decision.limits = money.limits;
        }
        Ok(noted((decision, found)))
    }

    /// Judges a send, and counts it if that is not only a look.
    async fn decide_send(
        &self,
        send: &mut SendInProgress<'_>,
        signals: &Signals,
    ) -> Result<(Decision, SendEvaluation), Unusable> {
        let decided = self.commit_send(send).await?;
        if !decided.1.depends_on_device {
            return Ok(decided);
        }
        // Only near the limit of a destination it matters who asks: other sends are spared the
        // read.
        send.signals.known = self.knows_device(send, signals).await?;
        send.is_device_asked = true;
        self.commit_send(send).await
    }

    async fn commit_send(
        &self,
        send: &SendInProgress<'_>,
    ) -> Result<(Decision, SendEvaluation), Unusable> {
        let pairs = send.pairs();
        let counts = self.range_counts(send).await?;
        let turn = self.guard.turns.turn(&pairs);
        let Ok(mut turn) = until(send.calls.turn_ends(), pin!(turn)).await else {
            return Err(Unusable::Record(Rule::F_CONFLICT));
        };
        let judge = |loaded: &CommandRecords, lost| send.judged(loaded, &counts, lost);
        let committed = commit_judged(send.calls, &pairs, &mut turn, judge).await?;
        let found = committed.outcome;
        let mut decision = found.answer.decision(committed.before.now);
        decision.revisions = committed.before.revisions(&committed.written);
        Ok((decision, found))
    }

    /// Whether the account's record of the OTP flow knows the device.
    async fn knows_device(
        &self,
        send: &SendInProgress<'_>,
        signals: &Signals,
    ) -> Result<bool, Unusable> {
        let has_device = signals.fingerprint.is_some() || signals.session.is_some();
        let account = signals.keys(Flow::Otp).account.filter(|_| has_device);
        let Some(account) = account else {
            return Ok(false);
        };
        let loaded = load(send.calls, &one_of(ACCOUNT, account)).await?;
        // A record that cannot be read makes no device known; the next check reports it.
        let record = loaded.record(ACCOUNT, Account::decode).unwrap_or_default();
        let guard = &send.policy.settings.guard;
        Ok(signals.is_known_to(guard, &record, loaded.now))
    }
}

fn noted((decision, found): (Decision, SendEvaluation)) -> (Decision, GuardNotes) {
    let notes = GuardNotes {
        issued: found.answer.reasons,
        locked: false,
        replayed: found.replayed,
    };
    (decision, notes)
}

impl SendInProgress<'_> {
    fn pairs(&self) -> Pairs {
        let SendKeys {
            account,
            network,
            destination,
            ranges: [first, second],
        } = self.keys;
        [account, Some(network), Some(destination), first, second]
    }

    fn judged(
        &self,
        loaded: &CommandRecords,
        counts: &[RangeCounts],
        lost: usize,
    ) -> Result<JudgedRecords<SendEvaluation>, Unreadable> {
        let guard = &self.policy.settings.guard;
        let records = decoded(loaded)?;
        let command = SendCommand {
            policy: &guard.send,
            once_window: guard.once_window,
            signals: &self.signals,
            records: &records,
            counts,
            now: loaded.now,
        };
        let found = evaluate(&command, guard.send_mode() == GuardMode::Shadow);
        let after = found.records.as_deref();
        let mut writes = after.map_or_else(Vec::new, |after| self.writes(loaded, &records, after));
        if !self.counts || (found.depends_on_device && !self.is_device_asked) {
            writes.clear();
        }
        if lost >= RANGE_TRIES {
            writes.retain(|write| write.key.kind != RecordKind::SendRange);
        }
        Ok(JudgedRecords {
            writes,
            is_refused: found.answer.outcome != Outcome::Allow,
            outcome: found,
        })
    }

    fn writes(
        &self,
        loaded: &CommandRecords,
        before: &SendRecords,
        after: &SendRecords,
    ) -> Vec<RecordWrite> {
        let policy = &self.policy.settings.guard.send;
        let account = &after.account;
        let mut writes = loaded.writes(ACCOUNT, account.encode(), account.expires_at());
        let network = &after.network;
        writes.extend(loaded.writes(NETWORK, network.encode(), network.expires_at()));
        let until = after.destination.expires_at(policy.range.exempt_for);
        writes.extend(loaded.writes(DESTINATION, after.destination.encode(), until));
        writes.extend(range_writes(
            self.policy,
            loaded,
            &before.ranges,
            &after.ranges,
        ));
        writes
    }
}

/// The writes of the shards that have changed.
fn range_writes(
    policy: &PolicySet,
    loaded: &CommandRecords,
    before: &[SendRange],
    after: &[SendRange],
) -> Vec<RecordWrite> {
    let range = &policy.settings.guard.send.range;
    let slots = RANGES.into_iter().zip(before.iter().zip(after));
    let changed = slots.filter(|(_, (before, after))| before != after);
    changed
        .flat_map(|(slot, (_, after))| loaded.writes(slot, after.encode(), after.expires_at(range)))
        .collect()
}

fn decoded(loaded: &CommandRecords) -> Result<SendRecords, Unreadable> {
    let [first, second] = RANGES;
    Ok(SendRecords {
        account: loaded.record(ACCOUNT, SendAccount::decode)?,
        network: loaded.record(NETWORK, SendNetwork::decode)?,
        destination: loaded.record(DESTINATION, SendDestination::decode)?,
        ranges: [
            loaded.record(first, SendRange::decode)?,
            loaded.record(second, SendRange::decode)?,
        ],
    })
}

fn one_of(slot: usize, key: KeyPair) -> Pairs {
    let mut pairs: Pairs = [None; RECORDS];
    pairs[slot] = Some(key);
    pairs
}
