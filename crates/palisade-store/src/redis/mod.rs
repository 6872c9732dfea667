//! Redis, single or Cluster, version 7 or later.
//!
//! All buckets of a decision are evaluated by one script in one round trip, at one
//! instant of the server's clock (F-CLOCK). The script translates the pure functions
//! of `palisade_core::limit` and is compared with them on random sequences. It counts
//! microseconds in doubles, which are exact until the year 2255.
//!
//! On a cluster the buckets of one hash tag are one call. A decision over several tags charges
//! them all at once and, unless all admit, gives back what was taken: it never admits too much,
//! and may for an instant admit too little. Each slot is judged by the clock of its own node.

mod backend;
mod batch;
mod charge;
mod cluster;
mod codec;
mod config;
mod error;
mod keys;
mod link;
mod records;
mod registry;
mod risks;
mod script;
mod seat;
mod step_back;

use std::sync::Arc;

use palisade_core::plan::Charge;
use palisade_core::record::{RecordKey, RecordKind, RecordWrite};
use palisade_core::time::{DAY, Micros};
use redis::Value;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

pub use config::{RedisConfig, RedisConfigError, TimeSource, Tls};

use crate::step_back::{StepBackNotice, stuck};
use crate::{
    Answer, BucketReadings, Buckets, ChargeReadings, Commit, Correction, CorrectionOutcome,
    Entries, Entry, ListedRecord, LoadedRecords, RecordPage, Records, Registries, Registry,
    ResetDone, StoreError, StoreStats, Take, TakenCharge, Vitals, deadline,
};
use backend::{Backend, Single};
use charge::Reach;
use cluster::Cluster;
use codec::{Decided, Operation};
use config::{Effect, Options, Replicas};
use error::misread;
use keys::Keys;
use records::{ExpiringRecord, Position, RecordBatch};
use risks::RiskWatch;
use script::{Call, PROBE, RESET, SET_ASIDE};

/// Time for which an unreadable record is kept for inspection, in milliseconds.
const ASIDE_MS: u64 = DAY / 1_000;
/// Steps of a listing after which a page is returned, even if it is not full.
const SCAN_STEPS_MAX: u32 = 128;

/// A store on Redis. Cheap to share; it connects when it is first used, and reconnects by itself
/// whenever the server comes back.
pub struct RedisStore {
    shared: Arc<SharedClient>,
}

struct SharedClient {
    backend: Backend,
    keys: Keys,
    time: TimeSource,
    options: Options,
    step_back: StepBackNotice,
    risks: RiskWatch,
}

impl RedisStore {
    /// A store that connects when it is first used.
    ///
    /// # Errors
    /// If the configuration cannot be used; see [`RedisConfigError`].
    pub fn new(config: RedisConfig) -> Result<Self, RedisConfigError> {
        config::check(&config)?;
        let options = Options {
            deadline: config.deadline,
            connect_timeout: config.connect_timeout,
            replicas: Replicas(config.wait_replicas),
        };
        Ok(Self {
            shared: Arc::new(SharedClient {
                backend: Backend::new(&config, options)?,
                keys: Keys::new(config.key_prefix),
                time: config.time,
                options,
                step_back: StepBackNotice::default(),
                risks: RiskWatch::default(),
            }),
        })
    }
}

impl SharedClient {
    async fn script(&self, call: &Call, effect: Effect, due: Instant) -> Result<Value, StoreError> {
        let sent = self.backend.script(call, effect, &self.options, due).await;
        Ok(sent?)
    }

    async fn decide(
        &self,
        charges: &[Charge<'_>],
        (operation, taken_at): (Operation, &[Option<Micros>]),
    ) -> Result<ChargeReadings, StoreError> {
        let due = self.options.due();
        let now = self.time.now();
        if charges.is_empty() {
            return Box::pin(self.decide_nothing(now, due)).await;
        }
        // Rare paths, and those that make several calls anyway, are boxed: their state is
        // kilobytes, which every decision on a single server would move around.
        match &self.backend {
            Backend::Single(single) => {
                let buckets = charge::buckets(&self.keys, charges, taken_at);
                let decided = charge::on_single(single, buckets, operation, now, due).await?;
                Ok(decided.charged(charges, operation))
            }
            Backend::Cluster(cluster) => {
                let reach = self.reach(cluster, now);
                let asked = (operation, taken_at);
                Box::pin(reach.charge(&self.keys, charges, asked, due)).await
            }
        }
    }

    fn reach(&self, cluster: &Arc<Cluster>, now: Option<Micros>) -> Reach {
        Reach {
            cluster: Arc::clone(cluster),
            options: self.options,
            now,
        }
    }

    async fn correct(&self, correction: &Correction<'_>) -> Result<CorrectionOutcome, StoreError> {
        let (due, now) = (self.options.due(), self.time.now());
        match &self.backend {
            Backend::Single(single) => {
                charge::correct_on_single(single, &self.keys, correction, now, due).await
            }
            Backend::Cluster(cluster) => {
                let reach = self.reach(cluster, now);
                self.correct_on_cluster(reach, correction, due).await
            }
        }
    }

    /// Writes the mark in its own slot, which decides between corrections that differ; then each
    /// slot's buckets with the slot's own mark. A repetition completes what is missing.
    async fn correct_on_cluster(
        &self,
        reach: Reach,
        correction: &Correction<'_>,
        due: Instant,
    ) -> Result<CorrectionOutcome, StoreError> {
        let mark = &correction.mark;
        let is_new = match self.commit_together(&[mark.write()], due).await? {
            Commit::Done => true,
            Commit::Conflict | Commit::Part(_) => {
                let found = self.load_call(&[mark.key], due).await?.held.pop().flatten();
                if !mark.is(found.as_ref().map(|held| &held.record)) {
                    return Ok(CorrectionOutcome::Conflict);
                }
                false
            }
        };
        let readings = match correction.more.is_empty() && correction.back.is_empty() {
            true => Some(self.decide_nothing(reach.now, due).await?),
            false => reach.correct(&self.keys, correction, due).await?,
        };
        let Some(readings) = readings else {
            return Ok(CorrectionOutcome::Conflict);
        };
        Ok(match is_new {
            true => CorrectionOutcome::Made(readings),
            false => CorrectionOutcome::Repeated(readings),
        })
    }

    /// Makes decisions of one bucket each, on one server in one call.
    async fn decide_each(
        &self,
        single: &Single,
        charges: &[Charge<'_>],
        operation: Operation,
    ) -> Result<Vec<ChargeReadings>, StoreError> {
        let (due, now) = (self.options.due(), self.time.now());
        let buckets = charge::buckets(&self.keys, charges, &[]);
        let decided = charge::each_on_single(single, buckets, operation, now, due).await?;
        let charged = |(decided, charge): (Decided, &Charge<'_>)| {
            decided.charged(std::slice::from_ref(charge), operation)
        };
        Ok(decided.into_iter().zip(charges).map(charged).collect())
    }

    async fn decide_nothing(
        &self,
        now: Option<Micros>,
        due: Instant,
    ) -> Result<ChargeReadings, StoreError> {
        Ok(ChargeReadings {
            now: match now {
                Some(now) => now,
                None => self.clock(due).await?,
            },
            admitted: true,
            readings: BucketReadings::new(),
            rebuilt: 0,
            instants: Vec::new(),
        })
    }

    /// The first master's clock, if every master could take a charge now.
    ///
    /// In an outage only probes come here, so it is up to them to notice that a master was
    /// replaced.
    async fn clock(&self, due: Instant) -> Result<Micros, StoreError> {
        let clock = self.clock_of_masters(due).await;
        if clock.is_err() {
            self.backend.doubt_masters();
        }
        clock
    }

    async fn clock_of_masters(&self, due: Instant) -> Result<Micros, StoreError> {
        let mut asked = JoinSet::new();
        for (at, link) in self.backend.masters(due).await?.into_iter().enumerate() {
            asked.spawn(async move {
                let answer = link
                    .script(&Call::new(&PROBE), Replicas::default(), due)
                    .await;
                (at, answer)
            });
        }
        let mut first = None;
        while let Some(ended) = asked.join_next().await {
            let (at, answer) = ended.map_err(|_| misread("probe"))?;
            let now: u64 = redis::from_redis_value(answer?).map_err(|_| misread("probe"))?;
            if at == 0 {
                first = Some(Micros(now));
            }
        }
        first.ok_or_else(|| misread("probe"))
    }

    /// Asks the servers what their settings put at risk. Settings that they do not show are no
    /// failure.
    async fn look_at_risks(&self, due: Instant) {
        let Ok(masters) = self.backend.masters(due).await else {
            return;
        };
        let question = self.risks.question();
        let mut asked = JoinSet::new();
        for link in masters {
            let question = question.clone();
            asked.spawn(async move { link.pipeline(&question, due).await });
        }
        let mut answers = Vec::new();
        while let Some(ended) = asked.join_next().await {
            // Part of a cluster could look like one without risks.
            let Ok(Ok(answer)) = ended else { return };
            answers.push(answer);
        }
        self.risks.learn(answers);
    }

    async fn commit_together(
        &self,
        writes: &[RecordWrite],
        due: Instant,
    ) -> Result<Commit, StoreError> {
        let call = records::commit_call(&self.keys, writes, self.time.now());
        match self.script(&call, Effect::Writes, due).await? {
            Value::Int(1) => Ok(Commit::Done),
            Value::Int(0) => Ok(Commit::Conflict),
            _ => Err(misread("commit")),
        }
    }

    /// Commits each record in its own slot, in the order given. A look at the revisions first
    /// keeps most conflicts from leaving a part written.
    async fn commit_one_by_one(
        self: &Arc<Self>,
        writes: &[RecordWrite],
        due: Instant,
    ) -> Result<Commit, StoreError> {
        if writes.len() > 1 {
            let keys: Vec<RecordKey> = writes.iter().map(|write| write.key).collect();
            let current = self.load(&keys, due).await?.held;
            let revision = |held: &ExpiringRecord| held.record.revision;
            let revisions = current.iter().map(|held| held.as_ref().map_or(0, revision));
            if !writes.iter().map(|write| write.expect).eq(revisions) {
                return Ok(Commit::Conflict);
            }
        }
        for (done, write) in writes.iter().enumerate() {
            let one = self.commit_together(std::slice::from_ref(write), due);
            if one.await? != Commit::Done {
                return Ok(match done {
                    0 => Commit::Conflict,
                    _ => Commit::Part(done),
                });
            }
        }
        Ok(Commit::Done)
    }

    /// Finds the records of the next page, and moves `position` behind them; `None` at the end.
    async fn find(
        &self,
        kind: RecordKind,
        position: &mut Option<Position>,
        count_max: usize,
    ) -> Result<Vec<RecordKey>, StoreError> {
        let mut page = Vec::new();
        for _ in 0..SCAN_STEPS_MAX {
            let (Some(at), true) = (position.as_mut(), page.len() < count_max) else {
                break;
            };
            let due = self.options.due();
            let masters = self.backend.masters(due).await?;
            let Some(link) = masters.get(at.server) else {
                *position = None;
                break;
            };
            let cmd = records::scan_command(&self.keys, kind, at.cursor);
            let step = records::read_scan(link.call(&cmd, due).await?, &self.keys, kind)?;
            let found = at.take(step, count_max - page.len());
            page.extend(found.into_iter().map(|digest| RecordKey { kind, digest }));
            if at.server >= masters.len() {
                *position = None;
            }
        }
        Ok(page)
    }

    async fn load_call(&self, keys: &[RecordKey], due: Instant) -> Result<RecordBatch, StoreError> {
        let call = records::load_call(&self.keys, keys, self.time.now());
        let answer = self.script(&call, Effect::Reads, due).await?;
        records::read_loaded(answer, keys.len())
    }

    /// Reads records: on one server in one call, on a cluster each on its own node.
    async fn load(
        self: &Arc<Self>,
        keys: &[RecordKey],
        due: Instant,
    ) -> Result<RecordBatch, StoreError> {
        if keys.len() <= 1 || matches!(self.backend, Backend::Single(_)) {
            return self.load_call(keys, due).await;
        }
        let mut running = JoinSet::new();
        for (place, key) in keys.iter().enumerate() {
            let (shared, key) = (Arc::clone(self), *key);
            running.spawn(async move { (place, shared.load_call(&[key], due).await) });
        }
        let mut found = RecordBatch {
            now: Micros(0),
            held: vec![None; keys.len()],
        };
        while let Some(ended) = running.join_next().await {
            let (place, one) = ended.map_err(|_| misread("load"))?;
            let mut one = one?;
            if place == 0 {
                found.now = one.now;
            }
            found.held[place] = one.held.pop().flatten();
        }
        Ok(found)
    }
}

impl Buckets for RedisStore {
    fn charge<'a>(&'a self, charges: &'a [Charge<'a>], take: Take) -> Answer<'a, ChargeReadings> {
        Answer::later(async move {
            let asked = (take.into(), [].as_slice());
            let summed = charge::summed(charges);
            let charged = self.shared.decide(&summed, asked).await?;
            let stuck = stuck(charges, &charged);
            if stuck.is_empty() {
                return Ok(charged);
            }
            // F-CLOCK: these refuse only because the clock stepped back.
            Box::pin(self.shared.pull_to_now(&stuck, &charged)).await?;
            Box::pin(self.shared.decide(&summed, asked)).await
        })
    }

    fn charge_each<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        take: Take,
    ) -> Answer<'a, Vec<ChargeReadings>> {
        Answer::later(async move {
            match &self.shared.backend {
                Backend::Single(single) if charges.len() > 1 => {
                    let mut each = self
                        .shared
                        .decide_each(single, charges, take.into())
                        .await?;
                    for (charge, charged) in charges.iter().zip(&mut each) {
                        let one = std::slice::from_ref(charge);
                        if !stuck(one, charged).is_empty() {
                            // Nothing was taken: judge it again, alone.
                            *charged = self.charge(one, take).await?;
                        }
                    }
                    Ok(each)
                }
                _ => crate::each::in_rounds(self, charges, take).await,
            }
        })
    }

    fn give_back<'a>(&'a self, taken: &'a [TakenCharge<'a>]) -> Answer<'a, ChargeReadings> {
        Answer::later(async move {
            let charges: Vec<Charge<'_>> = taken.iter().map(|taken| taken.charge.clone()).collect();
            let taken_at: Vec<_> = taken.iter().map(|taken| Some(taken.at)).collect();
            let asked = (Operation::GiveBack, taken_at.as_slice());
            self.shared.decide(&charges, asked).await
        })
    }

    fn refund<'a>(&'a self, charges: &'a [Charge<'a>]) -> Answer<'a, ChargeReadings> {
        Answer::later(async move {
            let asked = (Operation::Refund, [].as_slice());
            self.shared.decide(charges, asked).await
        })
    }

    fn correct<'a>(&'a self, correction: &'a Correction<'a>) -> Answer<'a, CorrectionOutcome> {
        Answer::later(self.shared.correct(correction))
    }

    fn reset<'a>(&'a self, charges: &'a [Charge<'a>]) -> Answer<'a, ResetDone> {
        Answer::later(async move {
            let shared = &self.shared;
            let due = shared.options.due();
            let slots = match shared.backend {
                Backend::Cluster(_) => charge::keys_by_slot(&shared.keys, charges),
                Backend::Single(_) if charges.is_empty() => Vec::new(),
                Backend::Single(_) => vec![charge::keys_of_all(&shared.keys, charges)],
            };
            let mut done = vec![false; charges.len()];
            let mut failed = None;
            for (places, keys) in slots {
                let call = keys.into_iter().fold(Call::new(&RESET), Call::key);
                match shared.script(&call, Effect::Writes, due).await {
                    Ok(_) => places.into_iter().for_each(|place| done[place] = true),
                    Err(error) => failed = Some(error),
                }
            }
            match failed {
                // An error only if nothing was done: otherwise the caller must learn what was.
                Some(error) if !done.contains(&true) => Err(error),
                _ => Ok(ResetDone { done }),
            }
        })
    }
}

impl Records for RedisStore {
    fn load<'a>(&'a self, keys: &'a [RecordKey]) -> Answer<'a, LoadedRecords> {
        Answer::later(async move {
            let found = self.shared.load(keys, self.shared.options.due()).await?;
            Ok(found.into())
        })
    }

    fn commit<'a>(&'a self, writes: &'a [RecordWrite]) -> Answer<'a, Commit> {
        Answer::later(async move {
            let shared = &self.shared;
            let due = shared.options.due();
            match &shared.backend {
                Backend::Single(_) => shared.commit_together(writes, due).await,
                Backend::Cluster(_) => shared.commit_one_by_one(writes, due).await,
            }
        })
    }

    fn set_aside(&self, key: RecordKey) -> Answer<'_, ()> {
        Answer::later(async move {
            let shared = &self.shared;
            let call = Call::new(&SET_ASIDE)
                .key(shared.keys.record(&key))
                .key(shared.keys.aside(&key))
                .arg(ASIDE_MS.to_string());
            let due = shared.options.due();
            shared.script(&call, Effect::Writes, due).await?;
            Ok(())
        })
    }

    fn scan<'a>(
        &'a self,
        kind: RecordKind,
        cursor: Option<&'a str>,
        count_max: usize,
    ) -> Answer<'a, RecordPage> {
        Answer::later(async move {
            let mut position = Some(Position::parse(cursor));
            let found = self
                .shared
                .find(kind, &mut position, count_max.max(1))
                .await?;
            let due = self.shared.options.due();
            let loaded = self.shared.load(&found, due).await?;
            let records = found
                .into_iter()
                .zip(loaded.held)
                .filter_map(|(key, held)| {
                    let ExpiringRecord { record, expires_at } = held?;
                    Some(ListedRecord {
                        key,
                        record,
                        expires_at,
                    })
                })
                .collect();
            Ok(RecordPage {
                records,
                next: position.map(|position| position.text()),
            })
        })
    }
}

impl Registries for RedisStore {
    fn put_entry(&self, registry: Registry, entry: Entry) -> Answer<'_, ()> {
        Answer::later(async move {
            let shared = &self.shared;
            let call = registry::put_call(&shared.keys, registry, entry, shared.time.now());
            let due = shared.options.due();
            match shared.script(&call, Effect::Writes, due).await? {
                Value::Int(1) => Ok(()),
                Value::Int(0) => Err(StoreError::Exhausted(format!(
                    "the {} is full",
                    registry.name()
                ))),
                _ => Err(misread("registry")),
            }
        })
    }

    fn remove_entry<'a>(&'a self, registry: Registry, id: &'a str) -> Answer<'a, bool> {
        Answer::later(async move {
            let shared = &self.shared;
            let call = registry::remove_call(&shared.keys, registry, id, shared.time.now());
            let due = shared.options.due();
            Ok(shared.script(&call, Effect::Writes, due).await? == Value::Int(1))
        })
    }

    fn entries(&self, registry: Registry, seen: Option<u64>) -> Answer<'_, Option<Entries>> {
        Answer::later(async move {
            let shared = &self.shared;
            let call = registry::entries_call(&shared.keys, registry, seen, shared.time.now());
            let due = shared.options.due();
            let read = shared.backend.script_in_turn(&call, &shared.options, due);
            registry::read_entries(read.await?)
        })
    }
}

impl Vitals for RedisStore {
    fn probe(&self) -> Answer<'_, Micros> {
        Answer::later(async move {
            let due = self.shared.options.due();
            let shared = Arc::clone(&self.shared);
            let look = tokio::spawn(async move { shared.look_at_risks(due).await });
            let clock = self.shared.clock(due).await?;
            // It began together with the clock. If it takes longer, the next probe reports its
            // result.
            let _ = timeout(self.shared.options.deadline / 10, look).await;
            Ok(self.shared.time.now().unwrap_or(clock))
        })
    }

    fn connect(&self) -> Answer<'_, ()> {
        Answer::later(async move {
            let due = deadline::after(self.shared.options.connect_timeout);
            Ok(self.shared.backend.connect(due).await?)
        })
    }

    fn flush(&self) -> Answer<'_, ()> {
        // The server keeps what it acknowledged; there is nothing to write here.
        Answer::ready(())
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn stats(&self) -> StoreStats {
        let queue_depth = match &self.shared.backend {
            Backend::Single(single) => single.depth() as u64,
            Backend::Cluster(cluster) => cluster.depth(),
        };
        StoreStats {
            queue_depth,
            risks: self.shared.risks.risks(),
            ..StoreStats::default()
        }
    }
}
