//! Palisade's stores. A store's traits are named after what it keeps: [`Buckets`], [`Records`],
//! [`Registries`]; one that keeps all three and reports its [`Vitals`] is a [`Store`]. There are
//! three engines and one conformance suite: embedded ([`memory`]), Redis (`redis`) and Postgres
//! (`postgres`), the latter two behind features of their names that are on by default.
//!
//! The pure functions of `palisade_core::limit` are the definition; scripts and SQL statements
//! here are translations of them.

mod answer;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod correction;
pub mod deadline;
mod each;
mod intercept;
pub mod memory;
pub mod model;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
mod step_back;

use std::time::Duration;

use palisade_core::failure::FailureKind;
use palisade_core::limit::{CountsFrom, Reading};
use palisade_core::plan::{Charge, OnExceed};
pub use palisade_core::record::Record;
use palisade_core::record::{RecordKey, RecordKind, RecordWrite};
use palisade_core::time::Micros;
use smallvec::SmallVec;

pub use answer::Answer;
pub use correction::{Correction, CorrectionOutcome, Mark};
pub use each::in_rounds;
pub use intercept::{Call, Interceptor};

/// Reason why a store could not answer. Each counts as a store failure (failure rules), except
/// [`StoreError::Corrupt`], which concerns one record or bucket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No answer within the deadline. The call may have been carried out.
    #[error("the store did not answer within its deadline")]
    TimedOut,
    /// No connection, or it broke.
    #[error("the store cannot be reached: {0}")]
    Unreachable(String),
    /// The store's answer could not be understood.
    #[error("the store gave an answer that cannot be read: {0}")]
    Corrupt(String),
    /// The store is full, read-only, or out of connections.
    #[error("the store cannot take more: {0}")]
    Exhausted(String),
}

impl StoreError {
    /// Kind of the failure in failure rules, metrics and on the health page.
    #[must_use]
    pub const fn kind(&self) -> FailureKind {
        match self {
            Self::TimedOut => FailureKind::TimedOut,
            Self::Unreachable(_) => FailureKind::Unreachable,
            Self::Corrupt(_) => FailureKind::Corrupt,
            Self::Exhausted(_) => FailureKind::Exhausted,
        }
    }
}

/// Whether a charge takes from the buckets or only reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// All or nothing: if one bucket denies, none is consumed (L-ATOMIC).
    Consume,
    /// Nothing is consumed.
    Peek,
}

/// Readings in the order of their charges. One is stored inline, without an allocation: most
/// decisions have one bucket.
pub type BucketReadings = SmallVec<[Reading; 1]>;

/// Outcome of a charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChargeReadings {
    /// Instant of the decision, by the store's clock.
    pub now: Micros,
    /// True if every bucket admitted. With [`Take::Consume`] they were then charged.
    pub admitted: bool,
    /// One reading per charge, in order, after the charge. `retry_at` is `Some` for a bucket that
    /// could not take the cost, even if it only reports.
    pub readings: BucketReadings,
    /// Buckets that could not be read and were rebuilt from zero (F-CORRUPT).
    pub rebuilt: u32,
    /// Instant at which each bucket was judged, if they have different clocks (the nodes of a
    /// cluster); empty if all were judged at [`ChargeReadings::now`].
    pub instants: Vec<Micros>,
}

impl ChargeReadings {
    /// Instant at which the bucket at `position` was judged.
    #[must_use]
    pub fn judged_at(&self, position: usize) -> Micros {
        self.instants.get(position).copied().unwrap_or(self.now)
    }

    /// Those of `charges` that took from their buckets, if this is the outcome of a
    /// [`Take::Consume`] of them; with the result they can be given back.
    #[must_use]
    pub fn taken<'p>(&self, charges: &[Charge<'p>]) -> Vec<TakenCharge<'p>> {
        let has_taken = |(charge, reading): (&Charge<'_>, &Reading)| {
            self.admitted && (reading.retry_at.is_none() || charge.on_exceed == OnExceed::Count)
        };
        let found = charges.iter().zip(&self.readings).enumerate();
        found
            .filter(|(_, found)| has_taken(*found))
            .map(|(position, (charge, reading))| TakenCharge {
                charge: Charge {
                    cost: charge.returnable(reading),
                    from: CountsFrom::Now,
                    ..charge.clone()
                },
                at: charge.counted_at(self.judged_at(position)),
            })
            .filter(|taken| taken.charge.cost > 0)
            .collect()
    }
}

/// One bucket's charge and its instant: enough to give it back once and never too much
/// (L-GIVE-BACK).
#[derive(Clone, Debug)]
pub struct TakenCharge<'p> {
    /// The charge; its cost is the amount to give back.
    pub charge: Charge<'p>,
    /// Instant of the charge, by the store's clock ([`ChargeReadings::judged_at`]).
    pub at: Micros,
}

/// Outcome of a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedRecords {
    /// The store's clock when the records were read.
    pub now: Micros,
    /// One per key, in order; `None` if the record does not exist or has expired.
    pub records: Vec<Option<Record>>,
}

/// Outcome of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    /// Everything was written.
    Done,
    /// A record had changed; nothing was written.
    Conflict,
    /// A record had changed, and the store cannot undo writes (Redis Cluster): the first writes
    /// were made, as many as this number says.
    Part(usize),
}

/// A named collection of small shared entries, which every node copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Registry {
    /// The allowlist.
    Allowlist,
    /// Tiers that an operator changed, by API-key hash.
    Tiers,
    /// Resets, which make other nodes drop remembered denials.
    Resets,
    /// Overages: usage of API keys beyond their quotas, by month and hash.
    Overages,
    /// API keys that operators created or revoked, by hash.
    ApiKeys,
    /// OAuth clients that operators registered, by the hash of their id.
    Clients,
    /// Attacks that nodes have declared, and classes for which operators have set the state.
    Attacks,
}

impl Registry {
    /// All registries.
    pub const ALL: [Self; 7] = [
        Self::Allowlist,
        Self::Tiers,
        Self::Resets,
        Self::Overages,
        Self::ApiKeys,
        Self::Clients,
        Self::Attacks,
    ];

    /// Short, stable name of the registry.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allowlist => "allowlist",
            Self::Tiers => "tiers",
            Self::Resets => "resets",
            Self::Overages => "overages",
            Self::ApiKeys => "api_keys",
            Self::Clients => "clients",
            Self::Attacks => "attacks",
        }
    }
}

/// One entry of a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name of the entry: a digest or a hash, never an identifier. At most 128 bytes.
    pub id: String,
    /// Content of the entry. At most 4 KiB.
    pub bytes: Vec<u8>,
    /// When the entry expires; `None` for never.
    pub expires_at: Option<Micros>,
}

/// Content of a registry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entries {
    /// Version, which grows with every change.
    pub version: u64,
    /// Entries by id, without those that have expired.
    pub entries: Vec<Entry>,
}

/// Most entries a registry may have.
pub const REGISTRY_ENTRIES_MAX: usize = 100_000;

/// A record as a listing shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedRecord {
    /// Name of the record.
    pub key: RecordKey,
    /// Content and revision of the record.
    pub record: Record,
    /// When the record expires; a copy in another store keeps this instant.
    pub expires_at: Micros,
}

/// A page of records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordPage {
    /// The records of this page.
    pub records: Vec<ListedRecord>,
    /// Cursor of the next page; `None` at the end.
    pub next: Option<String>,
}

/// Outcome of a reset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResetDone {
    /// For each charge, in order, whether its bucket was cleared. A cluster may clear some and not
    /// others; every other store clears all or fails.
    pub done: Vec<bool>,
}

/// Statistics of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Buckets and records held in this process.
    pub tracked_keys: u64,
    /// Entries that were dropped before they expired, for lack of room.
    pub evictions: u64,
    /// Entries that this process removed because they no longer counted.
    pub expired: u64,
    /// New keys that had to share the overflow bucket.
    pub overflowed: u64,
    /// Commands waiting for the store.
    pub queue_depth: u64,
    /// Fill level of the fullest resource that is bounded in this process, in percent.
    pub used_percent: u64,
    /// True while state that must survive the process cannot be written; decisions go on.
    pub is_unsaved: bool,
    /// Risks in the store's own settings (F-EVICT); `None` if the store does not report them, was
    /// not asked yet, or has none because it keeps what it acknowledged.
    pub risks: Option<StoreRisks>,
}

/// Ways in which a store that answers may still lose what it counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreRisks {
    /// The store drops keys by itself when its memory is full: limits and blocks are forgotten.
    pub eviction: bool,
    /// The store has replicas and writes nothing to disk: after a restart it is empty, and its
    /// replicas copy that.
    pub unsaved_replication: bool,
    /// Keys that the store has dropped since this process began to watch it.
    pub evicted_keys: u64,
}

/// Buckets, in which limits and quotas count. The engine bounds every call in time, and retries
/// none after a time-out. A store answers all calls [`Answer::Ready`] or all [`Answer::Later`];
/// the engine finds out at its start which of the two.
pub trait Buckets: Send + Sync + 'static {
    /// Evaluates all buckets of one decision at one instant.
    fn charge<'a>(&'a self, charges: &'a [Charge<'a>], take: Take) -> Answer<'a, ChargeReadings>;

    /// Evaluates independent decisions of one bucket each, in this order: a decision on the bucket
    /// of an earlier one finds what the earlier one left. A store that cannot evaluate them in one
    /// call answers [`in_rounds`].
    fn charge_each<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        take: Take,
    ) -> Answer<'a, Vec<ChargeReadings>>;

    /// Gives back charges as far as their buckets still count them; the rest is dropped, so that a
    /// return never admits one too many (L-GIVE-BACK). The caller must name each charge once, and
    /// only charges that were taken.
    fn give_back<'a>(&'a self, taken: &'a [TakenCharge<'a>]) -> Answer<'a, ChargeReadings>;

    /// Gives back a cost that names no charge, from the oldest hits, at most what is used. If the
    /// charge has left the bucket by now, uses of others are given back: [`Buckets::give_back`]
    /// never does that.
    fn refund<'a>(&'a self, charges: &'a [Charge<'a>]) -> Answer<'a, ChargeReadings>;

    /// Corrects buckets once: writes the correction's mark and changes the buckets in one step, or
    /// does neither. A correction of unknown outcome may be repeated as it is: what was changed
    /// before is not changed again, and a cluster, which has a step for each slot, completes the
    /// slots that are missing.
    fn correct<'a>(&'a self, correction: &'a Correction<'a>) -> Answer<'a, CorrectionOutcome>;

    /// Clears buckets, in one transaction if the engine has any.
    fn reset<'a>(&'a self, charges: &'a [Charge<'a>]) -> Answer<'a, ResetDone>;
}

/// Records: the state of the guard and the lockout, changed by compare-and-swap.
pub trait Records: Send + Sync + 'static {
    /// Reads records and the store's clock.
    fn load<'a>(&'a self, keys: &'a [RecordKey]) -> Answer<'a, LoadedRecords>;

    /// Writes records if none has changed since it was read.
    fn commit<'a>(&'a self, writes: &'a [RecordWrite]) -> Answer<'a, Commit>;

    /// Moves a record that cannot be read out of the way, for inspection, for at
    /// most a day (F-CORRUPT).
    fn set_aside(&self, key: RecordKey) -> Answer<'_, ()>;

    /// Lists records of a kind, a page at a time.
    fn scan<'a>(
        &'a self,
        kind: RecordKind,
        cursor: Option<&'a str>,
        count_max: usize,
    ) -> Answer<'a, RecordPage>;
}

/// Registries: small collections that operators change and every node copies.
pub trait Registries: Send + Sync + 'static {
    /// Adds or replaces an entry of a registry.
    fn put_entry(&self, registry: Registry, entry: Entry) -> Answer<'_, ()>;

    /// Removes an entry; false if it did not exist.
    fn remove_entry<'a>(&'a self, registry: Registry, id: &'a str) -> Answer<'a, bool>;

    /// The registry, or `None` if it still has version `seen`.
    fn entries(&self, registry: Registry, seen: Option<u64>) -> Answer<'_, Option<Entries>>;
}

/// State of the store itself: signs of life, shutdown, statistics.
pub trait Vitals: Send + Sync + 'static {
    /// Asks for a sign of life that only a store which takes writes can give, and answers with the
    /// store's clock. A read-only store must not pass: it would fail the next charge.
    fn probe(&self) -> Answer<'_, Micros>;

    /// Opens the calling thread's connections and prepares what they need before their first call,
    /// so that no decision pays for it (F-READY). It may take as long as a connection may.
    fn connect(&self) -> Answer<'_, ()>;

    /// Makes what was acknowledged durable; part of a graceful shutdown.
    fn flush(&self) -> Answer<'_, ()>;

    /// Statistics of the store.
    fn stats(&self) -> StoreStats;

    /// True if other processes use the same state and a call costs a round trip, so that leases
    /// and remembered denials pay off.
    fn is_shared(&self) -> bool;
}

/// Everything that the engine asks of a store. A type with [`Buckets`], [`Records`],
/// [`Registries`] and [`Vitals`] is one.
pub trait Store: Buckets + Records + Registries + Vitals {}

impl<S: Buckets + Records + Registries + Vitals> Store for S {}

/// Longest time that a single call may take, unless configured otherwise.
pub const DEADLINE_DEFAULT: Duration = Duration::from_millis(100);

/// Longest time that a connection to a shared store may take to be made, unless configured
/// otherwise. No call waits for it beyond its own deadline.
pub const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(1);
