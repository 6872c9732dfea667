//! The simulated store: the pure functions behind a link that delays, loses and breaks calls. A
//! call may be executed after its sender has given up.

use std::sync::Arc;
use std::time::Duration;

use palisade::core::Digest;
use palisade::core::failure::Policy;
use palisade::core::limit::{BucketSpec, Reading, State};
use palisade::core::plan::{Charge, OnExceed};
use palisade::core::record::{RecordKey, RecordKind, RecordWrite};
use palisade::core::time::{HOUR, Micros};
use palisade::store::{
    Answer, BucketReadings, Buckets, ChargeReadings, Commit, Correction, CorrectionOutcome,
    Entries, Entry, LoadedRecords, Record, RecordPage, Records, Registries, Registry, ResetDone,
    StoreError, StoreStats, Take, TakenCharge, Vitals, in_rounds,
};

use crate::breakers::Expected;
use crate::planted::Planted;
use crate::run::DEADLINE;
use crate::world::{
    Command, CommandLog, Fate, Heard, Shared, Stored, World, recalled, running_command,
};

/// The store as seen from one node.
pub(crate) struct SimStore {
    pub(crate) world: Arc<World>,
    pub(crate) node: usize,
}

/// Kind of a call, for the properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    /// The result of the call counts for the breaker.
    Breaking,
    /// The call refunds something, and no request waits for it.
    Tidying,
}

struct OwnCharge {
    spec: BucketSpec,
    id: Digest,
    cost: u64,
    on_exceed: OnExceed,
}

fn own(charges: &[Charge<'_>]) -> Vec<OwnCharge> {
    charges
        .iter()
        .map(|charge| OwnCharge {
            spec: *charge.spec,
            id: charge.id,
            cost: charge.cost,
            on_exceed: charge.on_exceed,
        })
        .collect()
}

/// A call that is dropped before its answer has failed.
struct Watch {
    world: Arc<World>,
    node: usize,
    command: Option<Arc<Command>>,
    call: Call,
    answered: bool,
}

impl Watch {
    fn end(mut self, failed: bool) {
        self.answered = true;
        self.note(failed);
    }

    fn note(&self, failed: bool) {
        let Some(command) = &self.command else {
            return;
        };
        if self.call != Call::Breaking {
            return;
        }
        command.log.lock().failed |= failed;
        let leave = command.log.lock().leave;
        let now = self.world.node_now(self.node);
        let mut shared = self.world.shared.lock();
        let table = shared.timetables[self.node].of(command.policy);
        table.called(leave, failed, now);
    }

    /// Whether the store had its full deadline for a series of calls. If not, the time was lost
    /// elsewhere and the store is not to blame.
    fn had_its_time(&self) -> bool {
        let began = self.command.as_ref().and_then(|c| c.log.lock().began);
        let deadline = u64::try_from(DEADLINE.as_micros()).unwrap();
        began.is_none_or(|began| self.world.now().since(began) >= deadline)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        if self.had_its_time() {
            self.note(true);
        } else if let Some(command) = &self.command {
            command.log.lock().cut = true;
        }
    }
}

async fn pause(ms: u64) {
    if ms > 0 {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    } else {
        tokio::task::yield_now().await;
    }
}

impl SimStore {
    async fn call<T: Send + 'static>(
        &self,
        call: Call,
        apply: impl FnOnce(&mut Shared, Micros, Option<&Command>) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let command = running_command();
        if let Some(command) = &command {
            self.issued(command, call);
        }
        let watch = Watch {
            world: Arc::clone(&self.world),
            node: self.node,
            command: command.clone(),
            call,
            answered: false,
        };
        let result = self.deliver(command, apply).await;
        watch.end(result.is_err());
        result
    }

    /// Checks that no call is made while the policy's breaker is open.
    fn issued(&self, command: &Command, call: Call) {
        let is_open = self.world.expected(self.node, command.policy) != Expected::Normal;
        if is_open {
            self.world
                .violated("F-CLEAN", "the store was called while the breaker was open");
        }
        if call == Call::Breaking {
            let leave = self.world.shared.lock().timetables[self.node]
                .of(command.policy)
                .leave();
            command.log.lock().leave = leave;
        }
        let mut log = command.log.lock();
        log.calls += 1;
        let now = self.world.now();
        match command.policy {
            Policy::Limits => log.began = Some(now),
            _ => _ = log.began.get_or_insert(now),
        }
    }

    async fn deliver<T: Send + 'static>(
        &self,
        command: Option<Arc<Command>>,
        apply: impl FnOnce(&mut Shared, Micros, Option<&Command>) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let world = Arc::clone(&self.world);
        let fate = world.fate(self.node);
        let run = move |world: &World| {
            let now = world.now();
            apply(&mut world.shared.lock(), now, command.as_deref())
        };
        let (answer, answered) = tokio::sync::oneshot::channel();
        if let Fate::Done { there, .. } | Fate::AnswerVanishes { there } | Fate::Breaks { there } =
            fate
        {
            tokio::spawn(async move {
                pause(there).await;
                let _ = answer.send(run(&world));
            });
        }
        match fate {
            Fate::Done { back, .. } => {
                let found = answered.await;
                if back > 0 {
                    pause(back).await;
                }
                found.map_err(|_| StoreError::TimedOut)
            }
            Fate::Breaks { .. } => {
                let _ = answered.await;
                Err(StoreError::Unreachable("broken pipe".to_owned()))
            }
            Fate::Refused { after } => {
                pause(after).await;
                Err(StoreError::Unreachable("connection refused".to_owned()))
            }
            Fate::Full { after } => {
                pause(after).await;
                Err(StoreError::Exhausted("out of memory".to_owned()))
            }
            Fate::Vanishes | Fate::AnswerVanishes { .. } => std::future::pending().await,
        }
    }
}

fn charge(
    shared: &mut Shared,
    charges: &[OwnCharge],
    take: Take,
    now: Micros,
    command: Option<&Command>,
) -> ChargeReadings {
    if let Some(command) = command {
        let buckets = charges.iter().map(|charge| (charge.id, charge.spec));
        command.log.lock().asked.push(buckets.collect());
    }
    let marks = charges
        .iter()
        .filter(|charge| charge.spec.window_us() >= HOUR / 4);
    shared.marks.extend(marks.map(|charge| charge.id));
    let mut states: Vec<State> = charges
        .iter()
        .map(|charge| shared.buckets.remove(&charge.id).unwrap_or_default())
        .collect();
    let is_generous = shared.is_planted(Planted::OverAdmits) && shared.rng.chance(20);
    let waits: Vec<Option<Micros>> = charges
        .iter()
        .zip(&states)
        .map(|(charge, state)| charge.spec.fits(state, now, charge.cost))
        .map(|wait| wait.filter(|_| !is_generous))
        .collect();
    let denied = |(charge, wait): (&OwnCharge, &Option<Micros>)| {
        wait.is_some() && charge.on_exceed == OnExceed::Deny
    };
    let admitted = !charges.iter().zip(&waits).any(denied);
    let is_partial = shared.is_planted(Planted::TakesInPart) && charges.len() > 1;
    if (admitted || is_partial) && take == Take::Consume {
        for ((charge, state), wait) in charges.iter().zip(&mut states).zip(&waits) {
            if wait.is_none() || charge.on_exceed == OnExceed::Count {
                charge.spec.take(state, now, charge.cost);
            }
        }
        if let Some(command) = command {
            let buckets = charges.iter().map(|charge| (charge.id, charge.cost));
            command.log.lock().charged.push(buckets.collect());
        }
    }
    let readings = readings(charges, &states, &waits, now);
    for (charge, state) in charges.iter().zip(states) {
        shared.buckets.insert(charge.id, state);
    }
    ChargeReadings {
        now,
        admitted,
        readings,
        rebuilt: 0,
        instants: Vec::new(),
    }
}

fn readings(
    charges: &[OwnCharge],
    states: &[State],
    waits: &[Option<Micros>],
    now: Micros,
) -> BucketReadings {
    charges
        .iter()
        .zip(states)
        .zip(waits)
        .map(|((charge, state), wait)| Reading {
            retry_at: *wait,
            ..charge.spec.read(state, now, charge.cost)
        })
        .collect()
}

/// The kind of a refund. Somebody waits for one that a client asked for.
fn refunding() -> Call {
    if running_command().is_some_and(|command| command.refunds) {
        Call::Breaking
    } else {
        Call::Tidying
    }
}

fn give_back(
    shared: &mut Shared,
    charges: &[OwnCharge],
    now: Micros,
    give_back: impl Fn(usize, &OwnCharge, &mut State),
) -> ChargeReadings {
    let mut readings = BucketReadings::new();
    for (at, charge) in charges.iter().enumerate() {
        let state = shared.buckets.entry(charge.id).or_default();
        give_back(at, charge, state);
        readings.push(charge.spec.read(state, now, charge.cost));
    }
    ChargeReadings {
        now,
        admitted: true,
        readings,
        rebuilt: 0,
        instants: Vec::new(),
    }
}

fn live<'s>(shared: &'s Shared, key: &RecordKey, now: Micros) -> Option<&'s Stored> {
    shared
        .records
        .get(key)
        .filter(|stored| stored.expires_at > now)
}

fn load(
    shared: &Shared,
    keys: &[RecordKey],
    now: Micros,
    command: Option<&Command>,
) -> LoadedRecords {
    let found: Vec<Option<Stored>> = keys
        .iter()
        .map(|key| live(shared, key, now).cloned())
        .collect();
    if let Some(command) = command {
        let by_key = keys.iter().copied().zip(found.iter().cloned()).collect();
        let mut log = command.log.lock();
        log.loaded = Some((now, by_key));
        log.is_read_again = true;
    }
    let record = |stored: Stored| Record {
        bytes: stored.bytes,
        revision: stored.revision,
    };
    LoadedRecords {
        now,
        records: found.into_iter().map(|found| found.map(record)).collect(),
    }
}

fn commit(
    shared: &mut Shared,
    writes: &[RecordWrite],
    now: Micros,
    command: Option<&Command>,
) -> Commit {
    let is_changed = |shared: &Shared, write: &RecordWrite| {
        live(shared, &write.key, now).map_or(0, |s| s.revision) != write.expect
    };
    let is_blind = shared.is_planted(Planted::LosesUpdates);
    if !shared.is_cluster && !is_blind && writes.iter().any(|write| is_changed(shared, write)) {
        lost_swap(command);
        return Commit::Conflict;
    }
    if shared.is_planted(Planted::ForgetsCommits) && shared.rng.chance(10) {
        return Commit::Done;
    }
    if let Some(command) = command {
        let mut log = command.log.lock();
        (log.is_written, log.is_read_again) = (false, false);
    }
    let mut done = 0;
    for write in writes {
        if !is_blind && is_changed(shared, write) {
            break;
        }
        put(shared, write, now, command);
        done += 1;
    }
    if let Some(command) = command.filter(|_| done > 0) {
        let mut log = command.log.lock();
        log.committed.push(writes[..done].to_vec());
        log.parted |= done < writes.len();
        log.is_written = done == writes.len();
    }
    if done < writes.len() {
        lost_swap(command);
    }
    match done {
        0 => Commit::Conflict,
        all if all == writes.len() => Commit::Done,
        part => Commit::Part(part),
    }
}

/// Starts a new series of calls, with a deadline of its own, because the command reads and decides
/// again after a swap that failed.
fn lost_swap(command: Option<&Command>) {
    if let Some(command) = command {
        command.log.lock().began = None;
    }
}

fn put(shared: &mut Shared, write: &RecordWrite, now: Micros, command: Option<&Command>) {
    if is_stale(shared, write, now, command) {
        let kind = write.key.kind.name();
        let violation = format!("guard §12: a {kind} was written over a newer one");
        shared.violations.push(violation);
    }
    match &write.bytes {
        Some(bytes) => {
            let stored = Stored {
                bytes: bytes.clone(),
                revision: write.expect + 1,
                expires_at: write.expires_at,
                is_corrupt: false,
            };
            let replaced = shared.records.insert(write.key, stored);
            if let Some(old) = replaced.filter(|_| shared.is_planted(Planted::Hoards)) {
                let digest = Digest(u128::from(shared.rng.next()));
                shared.records.insert(
                    RecordKey {
                        digest,
                        ..write.key
                    },
                    old,
                );
            }
        }
        None => {
            shared.records.remove(&write.key);
        }
    }
}

/// True if the record is not the one that the command has read.
fn is_stale(shared: &Shared, write: &RecordWrite, now: Micros, command: Option<&Command>) -> bool {
    let Some(command) = command else { return false };
    let log = command.log.lock();
    // After a loss of data revisions start again, so a stale reader cannot be told apart.
    let read_at = log.loaded.as_ref().map(|(at, _)| *at);
    if shared.losses.last().copied() >= read_at {
        return false;
    }
    let read = log
        .loaded
        .as_ref()
        .and_then(|(_, found)| found.get(&write.key));
    let read = read.and_then(Option::as_ref).map(|stored| &stored.bytes);
    let is = live(shared, &write.key, now)
        .filter(|stored| !stored.is_corrupt)
        .map(|stored| &stored.bytes);
    is.is_some() && read != is
}

impl Buckets for SimStore {
    fn charge<'a>(&'a self, charges: &'a [Charge<'a>], take: Take) -> Answer<'a, ChargeReadings> {
        Answer::later(async move {
            let charges = own(charges);
            self.call(Call::Breaking, move |shared, now, command| {
                charge(shared, &charges, take, now, command)
            })
            .await
        })
    }

    fn charge_each<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        take: Take,
    ) -> Answer<'a, Vec<ChargeReadings>> {
        in_rounds(self, charges, take)
    }

    fn give_back<'a>(&'a self, taken: &'a [TakenCharge<'a>]) -> Answer<'a, ChargeReadings> {
        Answer::later(async move {
            let charges: Vec<Charge<'_>> = taken.iter().map(|taken| taken.charge.clone()).collect();
            let charges = own(&charges);
            let taken_at: Vec<Micros> = taken.iter().map(|taken| taken.at).collect();
            self.call(refunding(), move |shared, now, _| {
                let is_always_credited = shared.is_planted(Planted::AlwaysCredits);
                give_back(shared, &charges, now, |at, charge, state| {
                    let spec = &charge.spec;
                    if is_always_credited {
                        spec.give_back(state, now, charge.cost);
                    } else {
                        spec.give_back_taken(state, taken_at[at], now, charge.cost);
                    }
                })
            })
            .await
        })
    }

    fn refund<'a>(&'a self, charges: &'a [Charge<'a>]) -> Answer<'a, ChargeReadings> {
        Answer::later(async move {
            let charges = own(charges);
            self.call(refunding(), move |shared, now, _| {
                give_back(shared, &charges, now, |_, charge, state| {
                    charge.spec.give_back(state, now, charge.cost);
                })
            })
            .await
        })
    }

    fn correct<'a>(&'a self, correction: &'a Correction<'a>) -> Answer<'a, CorrectionOutcome> {
        Answer::later(async move {
            let mark = correction.mark.clone();
            let more = own(&correction.more);
            let back: Vec<Charge<'_>> = correction
                .back
                .iter()
                .map(|one| one.charge.clone())
                .collect();
            let (back, taken_at) = (own(&back), correction.back.iter().map(|one| one.at));
            let taken_at: Vec<Micros> = taken_at.collect();
            self.call(refunding(), move |shared, now, command| {
                let found = live(shared, &mark.key, now);
                if found.map_or(0, |found| found.revision) != mark.expect {
                    return CorrectionOutcome::Conflict;
                }
                shared
                    .records
                    .extend(stored(&mark.write()).map(|new| (mark.key, new)));
                let mut made = charge(shared, &more, Take::Consume, now, command);
                let back = give_back(shared, &back, now, |at, charge, state| {
                    let taken_at = taken_at[at];
                    charge
                        .spec
                        .give_back_taken(state, taken_at, now, charge.cost);
                });
                made.readings.extend(back.readings);
                CorrectionOutcome::Made(made)
            })
            .await
        })
    }

    fn reset<'a>(&'a self, charges: &'a [Charge<'a>]) -> Answer<'a, ResetDone> {
        Answer::later(async move {
            let charges = own(charges);
            self.call(Call::Tidying, move |shared, _, _| {
                for charge in &charges {
                    shared.buckets.remove(&charge.id);
                }
                ResetDone {
                    done: vec![true; charges.len()],
                }
            })
            .await
        })
    }
}

/// The record that a write leaves.
fn stored(write: &RecordWrite) -> Option<Stored> {
    Some(Stored {
        bytes: write.bytes.clone()?,
        revision: write.expect + 1,
        expires_at: write.expires_at,
        is_corrupt: false,
    })
}

impl SimStore {
    /// Updates the node's knowledge of the records, and the log of the running command.
    fn learn(&self, change: impl FnOnce(&mut CommandLog, &mut Heard)) {
        if let Some(command) = running_command() {
            let mut shared = self.world.shared.lock();
            change(&mut command.log.lock(), &mut shared.heard[self.node]);
        }
    }
}

impl Records for SimStore {
    fn load<'a>(&'a self, keys: &'a [RecordKey]) -> Answer<'a, LoadedRecords> {
        Answer::later(async move {
            let keys = keys.to_vec();
            let loaded = self
                .call(Call::Breaking, move |shared, now, command| {
                    load(shared, &keys, now, command)
                })
                .await?;
            self.learn(|log, known| {
                if let Some((now, found)) = &log.loaded {
                    let found = found
                        .iter()
                        .map(|(key, stored)| (*key, (*now, stored.clone())));
                    known.extend(found);
                }
            });
            Ok(loaded)
        })
    }

    fn commit<'a>(&'a self, writes: &'a [RecordWrite]) -> Answer<'a, Commit> {
        Answer::later(async move {
            // A command may use the records that the one before it on this node has left.
            self.learn(|log, known| {
                if log.loaded.is_none() {
                    log.loaded = recalled(known, writes.iter().map(|write| write.key));
                }
            });
            let own = writes.to_vec();
            let ended = self
                .call(Call::Breaking, move |shared, now, command| {
                    commit(shared, &own, now, command)
                })
                .await?;
            if ended == Commit::Done {
                self.learn(|log, known| {
                    let now = log.loaded.as_ref().map_or(Micros(0), |(now, _)| *now);
                    known.extend(writes.iter().map(|write| (write.key, (now, stored(write)))));
                });
            }
            Ok(ended)
        })
    }

    fn set_aside(&self, key: RecordKey) -> Answer<'_, ()> {
        Answer::later(async move {
            self.call(Call::Breaking, move |shared, _, _| {
                shared.records.remove(&key);
            })
            .await
        })
    }

    fn scan<'a>(
        &'a self,
        _kind: RecordKind,
        _cursor: Option<&'a str>,
        _count_max: usize,
    ) -> Answer<'a, RecordPage> {
        Answer::later(async move { Ok(RecordPage::default()) })
    }
}

impl Registries for SimStore {
    fn put_entry(&self, _registry: Registry, _entry: Entry) -> Answer<'_, ()> {
        Answer::later(async move { Ok(()) })
    }

    fn remove_entry<'a>(&'a self, _registry: Registry, _id: &'a str) -> Answer<'a, bool> {
        Answer::later(async move { Ok(false) })
    }

    fn entries(&self, _registry: Registry, _seen: Option<u64>) -> Answer<'_, Option<Entries>> {
        Answer::later(async move { Ok(None) })
    }
}

impl Vitals for SimStore {
    /// A probe belongs to the policy whose probe is due. There must be one.
    fn probe(&self) -> Answer<'_, Micros> {
        Answer::later(async move {
            let started = self.world.node_now(self.node);
            let due = self.world.shared.lock().timetables[self.node].due(started);
            let Some(policy) = due else {
                self.world
                    .violated("failure §2", "a probe started before its time");
                return Err(StoreError::TimedOut);
            };
            let probe = Probe {
                world: &self.world,
                node: self.node,
                policy,
                began: self.world.node_now(self.node),
                healthy: None,
            };
            let result = self.deliver(None, |_, now, _| now).await;
            probe.end(result.is_ok());
            result
        })
    }

    fn connect(&self) -> Answer<'_, ()> {
        Answer::later(async move { Ok(()) })
    }

    fn flush(&self) -> Answer<'_, ()> {
        Answer::later(async move { Ok(()) })
    }

    fn stats(&self) -> StoreStats {
        StoreStats::default()
    }

    fn is_shared(&self) -> bool {
        true
    }
}

/// A probe that is dropped has failed.
struct Probe<'w> {
    world: &'w World,
    node: usize,
    policy: Policy,
    began: Micros,
    healthy: Option<bool>,
}

impl Probe<'_> {
    fn end(mut self, healthy: bool) {
        self.healthy = Some(healthy);
    }
}

impl Drop for Probe<'_> {
    fn drop(&mut self) {
        let now = self.world.node_now(self.node);
        let mut shared = self.world.shared.lock();
        let table = shared.timetables[self.node].of(self.policy);
        table.probed(self.healthy == Some(true), self.began, now);
    }
}
