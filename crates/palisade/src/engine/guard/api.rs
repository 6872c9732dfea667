//! Heavy-API hits: three sliding counters in the store, and the block in the network record.

use palisade_core::decision::Outcome;
use palisade_core::guard::{
    Account, ApiCounters, ApiEvaluation, ApiReadings, Network, Signals, evaluate_hit, replayed_hit,
};
use palisade_core::key::{Digest, Segment, SegmentKind};
use palisade_core::limit::CountsFrom;
use palisade_core::plan::{BucketName, Charge, OnExceed};
use palisade_core::policy::{Limit, PolicySet};
use palisade_core::record::{Flow, RecordWrite};
use palisade_core::rule::Rule;
use palisade_store::{Commit, Take};

use super::super::counters::both_names;
use super::super::link::{Calls, NoAnswer};
use super::command::{CommittedCommand, GuardCommand, GuardNotes, RETRIES_MAX, Unusable};
use super::login::seen_hard;
use super::records::{CommandRecords, load, unreadable};

const ACCOUNT: usize = 0;
const NETWORK: usize = 1;

impl GuardCommand<'_> {
    pub(super) async fn hit(&self) -> Result<CommittedCommand, Unusable> {
        let Self {
            calls,
            policy,
            signals,
            keys,
            ..
        } = *self;
        let guard = &policy.settings.guard;
        // Sessions are in the account's login record, which is loaded only for requests that have a
        // session.
        let session = signals.session.and(signals.keys(Flow::Login).account);
        let mut readings = None;
        for _ in 0..=RETRIES_MAX {
            let calls = calls.anew();
            let loaded = load(calls, &[session, Some(keys.network), None, None, None]).await?;
            // A record that cannot be read gives no trust; the login itself reports it.
            let account = loaded.record(ACCOUNT, Account::decode).unwrap_or_default();
            let signals = &signals.recognised(guard, &account, loaded.now);
            let network = match loaded.record(NETWORK, Network::decode) {
                Ok(network) => network,
                Err(failed) => return Err(unreadable(calls, failed).await),
            };
            if let Some(answer) = replayed_hit(guard, signals, &network, loaded.now) {
                return Ok(replayed(&loaded, &answer));
            }
            // A lost swap repeats the write of the record, not the count of the hit.
            let counted = match readings {
                Some(counted) => counted,
                None => self.count_hit(calls, signals).await?,
            };
            readings = Some(counted);
            let found = evaluate_hit(guard, signals, network, counted, loaded.now);
            let writes = writes(policy, &loaded, &found);
            // Futures are lazy: without a write nothing is sent.
            let commit = calls.make(|store| store.commit(&writes));
            if writes.is_empty() || commit.await? == Commit::Done {
                return Ok(applied(signals, &loaded, &writes, found));
            }
        }
        Err(Unusable::Record(Rule::F_CONFLICT))
    }

    async fn count_hit(
        &self,
        calls: Calls<'_>,
        signals: &Signals,
    ) -> Result<ApiReadings, NoAnswer> {
        let policy = self.policy;
        if !policy.settings.guard.api.enabled {
            return Ok(ApiReadings::default());
        }
        let counters = signals.counters(self.keyring);
        let Some([minor, moderate, severe]) = policy.api_limits() else {
            return Ok(ApiReadings::default());
        };
        let previous = signals.previous_counters(self.keyring);
        let of = |limit, pick: fn(&ApiCounters) -> Option<Digest>| {
            let previous = previous.as_ref().and_then(|old| name(limit, old, pick));
            Some(charge(limit, name(limit, &counters, pick)?, previous))
        };
        // In the order of the readings below. The moderate counter comes last because it may be
        // missing.
        let charges: Vec<Charge<'_>> = [
            of(minor, |names| Some(names.minor)),
            of(severe, |names| Some(names.severe)),
            of(moderate, |names| names.moderate),
        ]
        .into_iter()
        .flatten()
        .collect();
        let charge = calls.make(|store| both_names::charge(store, &charges, Take::Consume));
        let charged = charge.await?;
        let exceeded = |index: usize| {
            charged
                .readings
                .get(index)
                .is_some_and(|reading| reading.retry_at.is_some())
        };
        Ok(ApiReadings {
            minor_exceeded: exceeded(0),
            severe_exceeded: exceeded(1),
            moderate_exceeded: exceeded(2),
        })
    }
}

/// A charge that counts a hit even if the counter is full, because the rules decide what follows
/// from the count.
fn charge(limit: &Limit, name: BucketName, previous: Option<BucketName>) -> Charge<'_> {
    Charge {
        limit,
        spec: &limit.def.spec,
        id: name.id,
        segments: name.segments,
        previous: previous.map(Box::new),
        cost: 1,
        on_exceed: OnExceed::Count,
        from: CountsFrom::Now,
    }
}

/// The name of one of the three counters. Counters under the same prefix share a hash tag, so that
/// a cluster keeps them in one slot.
fn name(
    limit: &Limit,
    names: &ApiCounters,
    pick: fn(&ApiCounters) -> Option<Digest>,
) -> Option<BucketName> {
    let (prefix, own) = (names.severe, pick(names)?);
    let segment = |kind, digest| Segment { kind, digest };
    let home = segment(SegmentKind::Ip, prefix);
    let nested = (own != prefix).then(|| segment(SegmentKind::Descriptor, own));
    Some(BucketName {
        id: Digest(limit.digest.0.wrapping_add(own.0)),
        segments: std::iter::once(home).chain(nested).collect(),
    })
}

fn writes(policy: &PolicySet, loaded: &CommandRecords, found: &ApiEvaluation) -> Vec<RecordWrite> {
    if !found.changed {
        return Vec::new();
    }
    let guard = &policy.settings.guard;
    let until = found.network.expires_at(guard, &guard.login.correlation);
    loaded.writes(NETWORK, found.network.encode(), until)
}

fn applied(
    signals: &Signals,
    loaded: &CommandRecords,
    writes: &[RecordWrite],
    found: ApiEvaluation,
) -> CommittedCommand {
    let now = loaded.now;
    let mut decision = found.answer.decision(now);
    decision.revisions = loaded.revisions(writes);
    let is_hard = decision.outcome == Outcome::HardBlock;
    let blocks = is_hard.then(|| found.network.active_blocks(now));
    CommittedCommand {
        decision,
        notes: GuardNotes {
            issued: found.issued,
            ..GuardNotes::default()
        },
        seen: blocks
            .iter()
            .flatten()
            .filter_map(|block| seen_hard(signals, block, now))
            .collect(),
        standing: None,
        sent_to: None,
    }
}

fn replayed(loaded: &CommandRecords, answer: &palisade_core::guard::Answer) -> CommittedCommand {
    let mut decision = answer.decision(loaded.now);
    decision.revisions = loaded.revisions(&[]);
    CommittedCommand {
        decision,
        notes: GuardNotes {
            replayed: true,
            ..GuardNotes::default()
        },
        seen: Vec::new(),
        standing: None,
        sent_to: None,
    }
}
