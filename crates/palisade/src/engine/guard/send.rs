//! Sends of one-time codes: load the records, apply the rules, commit; and what a success verifies.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use palisade_core::Id;
use palisade_core::budget::Costs;
use palisade_core::decision::{
    Decision, ErrorCode, KeyKind, Mode, Outcome, Readings, ThresholdWarning,
};
use palisade_core::facts::{GuardFacts, GuardOp, NO_ADDRESS, RequestFacts, Surface};
use palisade_core::failure::{DegradedKeys, Policy};
use palisade_core::guard::policy::GuardMode;
use palisade_core::guard::{Account, Answer, Candidate, KeyPair, Signals};
use palisade_core::key::{Digest, DigestPair};
use palisade_core::policy::PolicySet;
use palisade_core::record::{Flow, RecordKind, RecordWrite};
use palisade_core::rule::Rule;
use palisade_core::send::policy::{HARD_LEVEL, SpendPolicy};
use palisade_core::send::records::range::minute_of;
use palisade_core::send::signals::{destination_digest, shard_key, shard_of};
use palisade_core::send::{
    RangeCounts, SendAccount, SendCommand, SendDestination, SendEvaluation, SendKeys, SendNetwork,
    SendRange, SendRecords, SendSignals, evaluate, range_shards, verify,
};
use parking_lot::Mutex;

use super::super::link::{Calls, For, NoAnswer};
use super::super::{Engine, Hold};
use super::command::{GuardNotes, Unusable, degraded_keys};
use super::commit::{JudgedRecords, Unreadable, commit_judged};
use super::records::{CommandRecords, load, unreadable};
use super::turns::{Pairs, RECORDS};
use crate::deadline::until;

const ACCOUNT: usize = 0;
const NETWORK: usize = 1;
const DESTINATION: usize = 2;
const RANGES: [usize; 2] = [3, 4];

/// Lost swaps after which the count of a range is left out. It is the one record that strangers
/// write too, and a statistic: it must not fail a send.
const RANGE_TRIES: usize = 3;

/// Path of the request that stands for a send among the limits.
const PATH: &str = "/v1/guard/otp/send";

/// Most ranges whose counts are remembered.
const RANGES_MAX: usize = 4096;

/// Counts of ranges as this node last read them, with the minute of the store's clock in which it
/// did. Minutes that are judged do not change any more.
#[derive(Default)]
pub(super) struct Ranges(Mutex<HashMap<Digest, (u64, Arc<RangeCounts>)>>);

impl Ranges {
    fn known(&self, range: Digest, minute: u64) -> Option<Arc<RangeCounts>> {
        let ranges = self.0.lock();
        let (read, counts) = ranges.get(&range)?;
        (*read == minute).then(|| Arc::clone(counts))
    }

    fn remember(&self, range: Digest, minute: u64, counts: &Arc<RangeCounts>) {
        let mut ranges = self.0.lock();
        if ranges.len() >= RANGES_MAX {
            ranges.retain(|_, (read, _)| *read == minute);
        }
        if ranges.len() < RANGES_MAX {
            ranges.insert(range, (minute, Arc::clone(counts)));
        }
    }
}

/// A send with everything it needs on its way to a decision.
struct Send<'e> {
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
    ) -> (Decision, GuardNotes) {
        let guard = &policy.settings.guard;
        let Some(destination) = facts.destination.as_ref().filter(|_| guard.send.enabled) else {
            return (Decision::allow(self.now()), GuardNotes::default());
        };
        let signals = Signals::resolve(&self.keyring, GuardOp::OtpSend, facts);
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
        let mut send = Send {
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
        send: &mut Send<'_>,
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

    /// Reserves what a send may cost (S-SPEND).
    async fn reserve_money(
        &self,
        policy: &Arc<PolicySet>,
        spend: &SpendPolicy,
        facts: &GuardFacts,
    ) -> Result<SpendOutcome, Unusable> {
        let unavailable = || Unusable::Store(NoAnswer::NotAsked);
        let asked = facts.destination.as_ref().and_then(|to| {
            let price = facts.price.unwrap_or_else(|| spend.price_of(to).into());
            let costs = Costs::new([(&*spend.unit, price)]).ok()?;
            let class = Id::new("class", &spend.class_of(to)).ok()?;
            // Of nobody: whoever asks is exempt from no budget.
            Some(RequestFacts {
                class: Some(class),
                costs: Some(costs.into()),
                request_id: facts.request_id.clone(),
                correlation_id: facts.correlation_id.clone(),
                surface: Surface::Guard,
                ..RequestFacts::new(NO_ADDRESS, "POST", PATH)
            })
        });
        let asked = asked.ok_or_else(unavailable)?;
        let longest = policy.settings.reservations.max_hold_us;
        let hold = Hold {
            hold: Duration::from_micros(spend.settle_within.min(longest)),
            ..Hold::default()
        };
        let reserving = Box::pin(self.reserve(&asked, hold)).await;
        let reserved = reserving.map_err(|_| unavailable())?;
        let decision = *reserved.answer.decision;
        if decision.mode != Mode::Normal {
            return Err(unavailable());
        }
        match reserved.held {
            Some(held) => Ok(SpendOutcome::Held(ReservedMoney {
                reservation: Some(held.token),
                warnings: decision.warnings,
                limits: decision.limits,
            })),
            None if decision.error.is_some_and(ErrorCode::is_exceeded)
                || decision.error == Some(ErrorCode::CostExceedsLimit) =>
            {
                Ok(SpendOutcome::Denied(Candidate {
                    rule: Rule::S_SPEND,
                    key: KeyKind::Range,
                    outcome: Outcome::HardBlock,
                    level: Some(HARD_LEVEL),
                    retry_after: decision.retry_after.unwrap_or(1).max(1),
                }))
            }
            None => Err(unavailable()),
        }
    }

    async fn commit_send(&self, send: &Send<'_>) -> Result<(Decision, SendEvaluation), Unusable> {
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

    /// The counts of each range of a send, read from all shards once in a minute.
    async fn range_counts(&self, send: &Send<'_>) -> Result<Vec<RangeCounts>, Unusable> {
        let mut all = Vec::with_capacity(send.signals.ranges.len());
        for range in &send.signals.ranges {
            let minute = minute_of(self.now());
            let known = match self.guard.ranges.known(range.digest.current, minute) {
                Some(known) => known,
                None => Arc::new(read_counts(send.calls, range.digest).await?),
            };
            self.guard
                .ranges
                .remember(range.digest.current, minute, &known);
            all.push((*known).clone());
        }
        Ok(all)
    }

    /// Whether the account's record of the OTP flow knows the device.
    async fn knows_device(&self, send: &Send<'_>, signals: &Signals) -> Result<bool, Unusable> {
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

    /// Counts a success for the sends of its destination: the one that it names, or the one that
    /// its account was last sent a code to.
    ///
    /// The success itself is decided and recorded. That its send cannot be found or written changes
    /// no answer to it, and is told by the breaker like any call.
    pub(super) async fn verify_sends(
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

/// Answer of the budgets to a send.
enum SpendOutcome {
    Held(ReservedMoney),
    Denied(Candidate),
}

/// Money that is reserved for a send.
struct ReservedMoney {
    reservation: Option<Box<str>>,
    warnings: Option<Box<[ThresholdWarning]>>,
    limits: Readings,
}

fn noted((decision, found): (Decision, SendEvaluation)) -> (Decision, GuardNotes) {
    let notes = GuardNotes {
        issued: found.answer.reasons,
        locked: false,
        replayed: found.replayed,
    };
    (decision, notes)
}

impl Send<'_> {
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

/// The counts of a range over all of its shards.
async fn read_counts(calls: Calls<'_>, range: DigestPair) -> Result<RangeCounts, Unusable> {
    let shards = range_shards(range).map(Some);
    let loaded = load(calls, &shards).await?;
    let mut counts = RangeCounts::default();
    for slot in 0..shards.len() {
        match loaded.record(slot, SendRange::decode) {
            Ok(shard) => counts.add(shard.counts()),
            Err(failed) => return Err(unreadable(calls, failed).await),
        }
    }
    Ok(counts)
}

fn one_of(slot: usize, key: KeyPair) -> Pairs {
    let mut pairs: Pairs = [None; RECORDS];
    pairs[slot] = Some(key);
    pairs
}
