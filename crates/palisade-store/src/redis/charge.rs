//! Charges: one script call on one server; on a cluster one call per slot, settled afterwards.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use palisade_core::limit::{COUNT_MAX, Reading};
use palisade_core::plan::Charge;
use palisade_core::time::Micros;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::backend::Single;
use super::batch::{charge_call, decided};
use super::cluster::Cluster;
use super::codec::{Bucket, Decided, Decision, MarkWrite, Operation};
use super::config::Options;
use super::error::misread;
use super::keys::Keys;
use crate::{ChargeReadings, Correction, CorrectionOutcome, StoreError};

/// Makes a decision on one server: in one call, which it shares with other requests' decisions.
pub(super) async fn on_single(
    single: &Single,
    buckets: Vec<Bucket>,
    operation: Operation,
    now: Option<Micros>,
    due: Instant,
) -> Result<Decided, StoreError> {
    let decision = vec![Decision::new(operation, buckets, now)?];
    let decided = single.batcher().decide(decision, operation.effect(), due);
    decided.await?.pop().ok_or_else(|| misread("charge"))
}

/// Makes decisions of one bucket each on one server, in this order and in one call.
pub(super) async fn each_on_single(
    single: &Single,
    buckets: Vec<Bucket>,
    operation: Operation,
    now: Option<Micros>,
    due: Instant,
) -> Result<Vec<Decided>, StoreError> {
    let decision = |bucket| Decision::new(operation, vec![bucket], now);
    let decisions = buckets.into_iter().map(decision);
    let decisions = decisions.collect::<Result<Vec<_>, _>>()?;
    let decided = single.batcher().decide(decisions, operation.effect(), due);
    decided.await
}

/// Buckets of a decision that share a slot, with their positions in it, and the slot's own mark if
/// the decision has one.
#[derive(Clone, Default)]
struct Group {
    places: Vec<usize>,
    buckets: Vec<Bucket>,
    mark: Option<MarkWrite>,
}

impl Group {
    fn decision(&self, operation: Operation, now: Option<Micros>) -> Result<Decision, StoreError> {
        let decision = Decision::new(operation, self.buckets.clone(), now)?;
        Ok(match self.mark.clone() {
            Some(mark) => decision.marked(mark),
            None => decision,
        })
    }
}

fn groups(keys: &Keys, charges: &[Charge<'_>], taken_at: &[Option<Micros>]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut by_tag = HashMap::new();
    for (place, (charge, bucket)) in charges
        .iter()
        .zip(buckets(keys, charges, taken_at))
        .enumerate()
    {
        let at = *by_tag.entry(charge.hash_tag()).or_insert(groups.len());
        if at == groups.len() {
            groups.push(Group::default());
        }
        groups[at].places.push(place);
        groups[at].buckets.push(bucket);
    }
    groups
}

/// Returns the buckets of a decision. `taken_at` has the instants of charges that are given back;
/// it is empty for other operations.
pub(super) fn buckets(
    keys: &Keys,
    charges: &[Charge<'_>],
    taken_at: &[Option<Micros>],
) -> Vec<Bucket> {
    let taken_at = taken_at.iter().copied().chain(std::iter::repeat(None));
    let with_instants = charges.iter().zip(taken_at);
    with_instants
        .map(|(charge, at)| Bucket::new(keys.bucket(charge), charge).taken_at(at))
        .collect()
}

/// A cluster, with what a decision on it needs.
#[derive(Clone)]
pub(super) struct Reach {
    pub(super) cluster: Arc<Cluster>,
    pub(super) options: Options,
    pub(super) now: Option<Micros>,
}

impl Reach {
    async fn decide(
        &self,
        group: &Group,
        operation: Operation,
        due: Instant,
    ) -> Result<Decided, StoreError> {
        let decision = group.decision(operation, self.now)?;
        let (call, expected) = charge_call(std::iter::once(decision));
        let replicas = self.options.replicas_of(Some(operation.effect()));
        let value = self.cluster.script(&call, replicas, due).await?;
        let mut decided = decided(value, &expected)?;
        decided.pop().ok_or_else(|| misread("charge"))
    }

    /// Decides all groups at once.
    async fn decide_all(
        &self,
        groups: &[Group],
        operation: Operation,
        due: Instant,
    ) -> Vec<Result<Decided, StoreError>> {
        let mut running = JoinSet::new();
        for (at, group) in groups.iter().enumerate() {
            let (reach, group) = (self.clone(), group.clone());
            running.spawn(async move { (at, reach.decide(&group, operation, due).await) });
        }
        let mut results = vec![Err(StoreError::TimedOut); groups.len()];
        while let Some(ended) = running.join_next().await {
            if let Ok((at, result)) = ended {
                results[at] = result;
            }
        }
        results
    }

    /// Charges all groups. Unless all of them admit, it gives back what some have taken; until
    /// then, a bucket may admit less than it could, never more.
    async fn settle(
        self,
        groups: Vec<Group>,
        operation: Operation,
        due: Instant,
    ) -> Result<Vec<Decided>, StoreError> {
        let results = self.decide_all(&groups, operation, due).await;
        let all = results
            .iter()
            .all(|result| result.as_ref().is_ok_and(|decided| decided.admitted));
        if operation == Operation::ChargePart && !all {
            let undone = tokio::spawn(self.undo_all(groups, results.clone()));
            // The caller waits for this only until its deadline.
            let _ = timeout_at(due, undone).await;
        }
        results.into_iter().collect()
    }

    async fn undo_all(self, groups: Vec<Group>, results: Vec<Result<Decided, StoreError>>) {
        let due = self.options.due();
        let mut running = JoinSet::new();
        for (group, result) in groups.into_iter().zip(results) {
            let Ok(decided) = result else { continue };
            let taken = decided.taken(&group.buckets);
            if !decided.admitted || taken.is_empty() {
                continue;
            }
            let reach = self.clone();
            let undone = Group {
                buckets: taken,
                ..Group::default()
            };
            let undo = Operation::GiveBack;
            running.spawn(async move { reach.decide(&undone, undo, due).await });
        }
        while let Some(ended) = running.join_next().await {
            if !matches!(ended, Ok(Ok(_))) {
                tracing::warn!(
                    "a charge could not be taken back; its bucket admits less until it expires"
                );
            }
        }
    }

    /// Makes the whole decision.
    pub(super) async fn charge(
        self,
        keys: &Keys,
        charges: &[Charge<'_>],
        (operation, taken_at): (Operation, &[Option<Micros>]),
        due: Instant,
    ) -> Result<ChargeReadings, StoreError> {
        let groups = groups(keys, charges, taken_at);
        if let [group] = groups.as_slice() {
            let decided = self.decide(group, operation, due).await?;
            return Ok(decided.charged(charges, operation));
        }
        let operation = match operation {
            Operation::Charge => Operation::ChargePart,
            other => other,
        };
        let places: Vec<Vec<usize>> = groups.iter().map(|group| group.places.clone()).collect();
        // In a task of its own, so that it is settled even if nobody waits any more.
        let settled = tokio::spawn(self.settle(groups, operation, due)).await;
        let decided = settled.map_err(|_| StoreError::Unreachable("a task ended".into()))??;
        Ok(merge(charges, &places, &decided, operation))
    }
}

impl Reach {
    /// Corrects the buckets of each slot together with the slot's own mark; `None` if a mark would
    /// have expired. The correction's mark must be there already; slots that have their own are
    /// left alone.
    pub(super) async fn correct(
        self,
        keys: &Keys,
        correction: &Correction<'_>,
        due: Instant,
    ) -> Result<Option<ChargeReadings>, StoreError> {
        let (charges, taken_at) = changes(correction);
        let mut groups = groups(keys, &charges, &taken_at);
        for group in &mut groups {
            let first = group.places.first().and_then(|place| charges.get(*place));
            group.mark = first.map(|charge| MarkWrite {
                key: keys.mark(charge, &correction.mark),
                expect: 0,
                bytes: Vec::new(),
                expires_at: correction.mark.expires_at,
            });
        }
        let places: Vec<Vec<usize>> = groups.iter().map(|group| group.places.clone()).collect();
        // In a task of its own, so that all slots are corrected even if nobody waits any more.
        let settled = tokio::spawn(self.settle(groups, Operation::GiveBack, due)).await;
        let decided = settled.map_err(|_| StoreError::Unreachable("a task ended".into()))??;
        if decided.iter().any(Decided::is_conflict) {
            return Ok(None);
        }
        let merged = match decided.as_slice() {
            [one] => one.charged(&charges, Operation::GiveBack),
            _ => merge(&charges, &places, &decided, Operation::GiveBack),
        };
        Ok(Some(ChargeReadings {
            admitted: true,
            ..merged
        }))
    }
}

/// Corrects buckets on one server, in one call.
pub(super) async fn correct_on_single(
    single: &Single,
    keys: &Keys,
    correction: &Correction<'_>,
    now: Option<Micros>,
    due: Instant,
) -> Result<CorrectionOutcome, StoreError> {
    let (charges, taken_at) = changes(correction);
    let operation = Operation::GiveBack;
    let mark = &correction.mark;
    let decision = Decision::new(operation, buckets(keys, &charges, &taken_at), now)?;
    let decision = decision.marked(MarkWrite {
        key: keys.record(&mark.key),
        expect: mark.expect,
        bytes: mark.bytes.clone(),
        expires_at: mark.expires_at,
    });
    let decided = single
        .batcher()
        .decide(vec![decision], operation.effect(), due);
    let decided = decided.await?.pop().ok_or_else(|| misread("correct"))?;
    let readings = ChargeReadings {
        admitted: true,
        ..decided.charged(&charges, operation)
    };
    Ok(match decided.is_repeated {
        _ if decided.is_conflict() => CorrectionOutcome::Conflict,
        true => CorrectionOutcome::Repeated(readings),
        false => CorrectionOutcome::Made(readings),
    })
}

/// The charges of a correction, with the instants of those that go back.
fn changes<'p>(correction: &Correction<'p>) -> (Vec<Charge<'p>>, Vec<Option<Micros>>) {
    let more = correction.more.iter().map(|_| None);
    let back = correction.back.iter().map(|taken| Some(taken.at));
    (correction.charges(), more.chain(back).collect())
}

/// Merges the answers of the groups into one, in the order of the charges.
fn merge(
    charges: &[Charge<'_>],
    places: &[Vec<usize>],
    decided: &[Decided],
    operation: Operation,
) -> ChargeReadings {
    let admitted = decided.iter().all(|decided| decided.admitted);
    let mut readings: Vec<(usize, Reading)> = Vec::with_capacity(charges.len());
    let mut instants = vec![Micros(0); charges.len()];
    for (places, decided) in places.iter().zip(decided) {
        places
            .iter()
            .for_each(|place| instants[*place] = decided.now);
        let own = places.iter().map(|place| &charges[*place]);
        let found = decided.readings(own, operation, admitted);
        readings.extend(places.iter().copied().zip(found));
    }
    readings.sort_unstable_by_key(|(place, _)| *place);
    ChargeReadings {
        now: decided.first().map_or(Micros(0), |decided| decided.now),
        admitted,
        readings: readings.into_iter().map(|(_, reading)| reading).collect(),
        rebuilt: decided.iter().map(|decided| decided.rebuilt).sum(),
        instants,
    }
}

/// Keys of each slot, with the positions of their charges.
pub(super) fn keys_by_slot(keys: &Keys, charges: &[Charge<'_>]) -> Vec<(Vec<usize>, Vec<String>)> {
    groups(keys, charges, &[])
        .into_iter()
        .map(|group| {
            let keys = group.buckets.into_iter().map(|bucket| bucket.key);
            (group.places, keys.collect())
        })
        .collect()
}

/// Keys of all charges, as one group.
pub(super) fn keys_of_all(keys: &Keys, charges: &[Charge<'_>]) -> (Vec<usize>, Vec<String>) {
    let keys = charges.iter().map(|charge| keys.bucket(charge));
    ((0..charges.len()).collect(), keys.collect())
}

/// Adds to each charge the cost of earlier charges on the same bucket. The script judges charges
/// one by one on the state that it found: this way a bucket that a plan has twice counts both, and
/// the last state written is the right one.
pub(super) fn summed<'c, 'p>(charges: &'c [Charge<'p>]) -> Cow<'c, [Charge<'p>]> {
    let before = |at: usize| {
        let mut earlier = (0..at).rev();
        earlier.find(|earlier| charges[*earlier].id == charges[at].id)
    };
    if (0..charges.len()).all(|at| before(at).is_none()) {
        return Cow::Borrowed(charges);
    }
    let mut summed = charges.to_vec();
    for at in 0..charges.len() {
        if let Some(earlier) = before(at) {
            let sum = summed[at].cost.saturating_add(summed[earlier].cost);
            summed[at].cost = sum.min(COUNT_MAX);
        }
    }
    Cow::Owned(summed)
}
