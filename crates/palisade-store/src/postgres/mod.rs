//! The store on Postgres 15 or later: exact over all nodes, one round trip per
//! decision, several decisions per transaction under load.
//!
//! `palisade.decide` (see `migrations/`) is the translation of
//! `palisade_core::limit`. It locks the buckets of a call in byte order of their
//! keys, so that calls never wait in a circle, and reads the server's clock once it
//! has them.
//!
//! The store's sessions set planner options and a statement time-out: behind a
//! connection pooler use session pooling.

mod batch;
mod config;
mod connect;
mod correct;
mod errands;
mod error;
mod give_back;
mod lanes;
mod records;
mod schema;
mod step_back;
mod sweep;
mod tls;

use std::sync::Arc;

use palisade_core::plan::Charge;
use palisade_core::record::{RecordKey, RecordKind, RecordWrite};
use palisade_core::time::{Clock, Micros};

pub use config::{PostgresConfig, SchemaPolicy, StartError, Sweep};
pub use errands::Errands;
pub use schema::{SCHEMA_VERSION, migrate};

use crate::step_back::{StepBackNotice, stuck};
use crate::{
    Answer, Buckets, ChargeReadings, Commit, Correction, CorrectionOutcome, Entries, Entry,
    LoadedRecords, RecordPage, Records, Registries, Registry, ResetDone, StoreError, StoreStats,
    Take, TakenCharge, Vitals, in_rounds,
};
use batch::{Ask, Op};
use connect::Connections;
use lanes::Lanes;
use sweep::Sweeper;

/// A store on a Postgres server that any number of nodes share.
pub struct PostgresStore {
    connections: Arc<Connections>,
    lanes: Arc<Lanes>,
    clock: Option<Arc<dyn Clock>>,
    sweeper: Option<Sweeper>,
    step_back: StepBackNotice,
}

impl PostgresStore {
    /// Connects, and checks or updates the schema as the configuration says.
    ///
    /// # Errors
    /// [`StartError`]: the server cannot be reached, or its schema is not the one
    /// needed.
    pub async fn connect(config: &PostgresConfig) -> Result<Self, StartError> {
        schema::ready(config).await?;
        Self::open(config, None)
    }

    /// A store that judges by `clock` instead of the server's, for tests.
    ///
    /// # Errors
    /// As [`PostgresStore::connect`].
    pub async fn connect_with_clock(
        config: &PostgresConfig,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, StartError> {
        schema::ready(config).await?;
        Self::open(config, Some(clock))
    }

    /// A store that connects when it is first used, so that a node can start while
    /// the server is down. Without the schema every call fails and says so. Must be
    /// called within a tokio runtime.
    ///
    /// # Errors
    /// [`StartError::Tls`].
    pub fn open(
        config: &PostgresConfig,
        clock: Option<Arc<dyn Clock>>,
    ) -> Result<Self, StartError> {
        let connections = Arc::new(Connections::new(config)?);
        let sweeper = config
            .sweep
            .map(|sweep| Sweeper::start(sweep, Arc::clone(&connections), clock.clone()));
        Ok(Self {
            lanes: Arc::new(Lanes::new(config, Arc::clone(&connections), clock.clone())),
            connections,
            clock,
            sweeper,
            step_back: StepBackNotice::default(),
        })
    }

    fn now(&self) -> Option<i64> {
        self.clock
            .as_ref()
            .map(|clock| batch::signed(clock.now().0))
    }

    async fn decide(&self, op: Op, charges: &[Charge<'_>]) -> Result<ChargeReadings, StoreError> {
        let charged = self.lanes.decide(Ask::new(op, charges)).await?;
        if charged.rebuilt > 0 {
            tracing::warn!(
                count = charged.rebuilt,
                "unreadable buckets start from zero"
            );
        }
        Ok(charged)
    }
}

impl Buckets for PostgresStore {
    fn charge<'a>(&'a self, charges: &'a [Charge<'a>], take: Take) -> Answer<'a, ChargeReadings> {
        Answer::later(async move {
            let op = match take {
                Take::Consume => Op::Consume,
                Take::Peek => Op::Peek,
            };
            let charged = self.decide(op, charges).await?;
            let stuck = stuck(charges, &charged);
            if stuck.is_empty() {
                return Ok(charged);
            }
            self.step_back.say(charged.now);
            let pull = self
                .connections
                .pull_to_now(self.now(), &stuck, charged.now);
            Box::pin(pull).await?;
            Box::pin(self.decide(op, charges)).await
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
            let now = self.clock.as_ref().map(Clock::now);
            self.connections.give_back(now, taken).await
        })
    }

    fn refund<'a>(&'a self, charges: &'a [Charge<'a>]) -> Answer<'a, ChargeReadings> {
        Answer::later(self.decide(Op::Refund, charges))
    }

    fn correct<'a>(&'a self, correction: &'a Correction<'a>) -> Answer<'a, CorrectionOutcome> {
        let now = self.clock.as_ref().map(Clock::now);
        Answer::later(self.connections.correct(now, correction))
    }

    fn reset<'a>(&'a self, charges: &'a [Charge<'a>]) -> Answer<'a, ResetDone> {
        Answer::later(async move {
            self.decide(Op::Reset, charges).await?;
            Ok(ResetDone {
                done: vec![true; charges.len()],
            })
        })
    }
}

impl Records for PostgresStore {
    fn load<'a>(&'a self, keys: &'a [RecordKey]) -> Answer<'a, LoadedRecords> {
        Answer::later(self.connections.load(self.now(), keys))
    }

    fn commit<'a>(&'a self, writes: &'a [RecordWrite]) -> Answer<'a, Commit> {
        Answer::later(self.connections.commit(self.now(), writes))
    }

    fn set_aside(&self, key: RecordKey) -> Answer<'_, ()> {
        Answer::later(self.connections.set_aside(self.now(), key))
    }

    fn scan<'a>(
        &'a self,
        kind: RecordKind,
        cursor: Option<&'a str>,
        count_max: usize,
    ) -> Answer<'a, RecordPage> {
        Answer::later(self.connections.scan(self.now(), kind, cursor, count_max))
    }
}

impl Registries for PostgresStore {
    fn put_entry(&self, registry: Registry, entry: Entry) -> Answer<'_, ()> {
        Answer::later(async move { self.connections.put_entry(registry, &entry).await })
    }

    fn remove_entry<'a>(&'a self, registry: Registry, id: &'a str) -> Answer<'a, bool> {
        Answer::later(self.connections.remove_entry(self.now(), registry, id))
    }

    fn entries(&self, registry: Registry, seen: Option<u64>) -> Answer<'_, Option<Entries>> {
        Answer::later(self.connections.entries(self.now(), registry, seen))
    }
}

impl Vitals for PostgresStore {
    fn probe(&self) -> Answer<'_, Micros> {
        Answer::later(self.connections.probe(self.now()))
    }

    fn connect(&self) -> Answer<'_, ()> {
        Answer::later(async move {
            let statements = [
                batch::DECIDE,
                batch::CORRECT,
                records::LOAD,
                records::COMMIT,
            ];
            self.connections.connect(&statements).await
        })
    }

    /// Nothing waits to be made durable: an answer follows its commit.
    fn flush(&self) -> Answer<'_, ()> {
        Answer::ready(())
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn stats(&self) -> StoreStats {
        StoreStats {
            queue_depth: self.lanes.depth() as u64,
            expired: self.sweeper.as_ref().map_or(0, Sweeper::removed),
            ..StoreStats::default()
        }
    }
}
