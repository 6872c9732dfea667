//! Palisade's stores. What is asked of a store is named by what it keeps: [`Buckets`],
//! [`Records`], [`Registries`]; one that keeps all three and shows its [`Vitals`] is a
//! [`Store`]. Three engines, one conformance suite: embedded ([`memory`]), Redis
//! (`redis`) and Postgres (`postgres`), the latter two behind features of their names
//! that are on by default.
//!
//! The pure functions of `palisade_core::limit` are the definition; a script or a
//! statement here is a translation of them.

mod answer;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
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
use palisade_core::limit::Reading;
use palisade_core::plan::{Charge, OnExceed};
pub use palisade_core::record::Record;
use palisade_core::record::{RecordKey, RecordKind, RecordWrite};
use palisade_core::time::Micros;
use smallvec::SmallVec;

pub use answer::Answer;
pub use each::in_rounds;
pub use intercept::{Call, Interceptor};

/// Why a store could not answer. Each is a failure in the sense of the failure
/// rules, except [`StoreError::Corrupt`], which concerns one record or bucket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No answer within the deadline. What was asked may have been done.
    #[error("the store did not answer within its deadline")]
    TimedOut,
    /// No connection, or it broke.
    #[error("the store cannot be reached: {0}")]
    Unreachable(String),
    /// The store answered something that cannot be understood.
    #[error("the store gave an answer that cannot be read: {0}")]
    Corrupt(String),
    /// The store is full, read-only, or out of connections.
    #[error("the store cannot take more: {0}")]
    Exhausted(String),
}

impl StoreError {
    /// What the failure rules, metrics and the health page call it.
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

/// Whether a charge takes from the buckets or only looks at them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// All or nothing: if one bucket denies, none is consumed (L-ATOMIC).
    Consume,
    /// Nothing is consumed.
    Peek,
}

/// Readings in the order of their charges. That of a decision on one bucket, as most are, is
/// kept in place and not allocated.
pub type BucketReadings = SmallVec<[Reading; 1]>;

/// Outcome of a charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charged {
    /// The instant it was judged at, by the store's clock.
    pub now: Micros,
    /// True if every bucket admitted. With [`Take::Consume`] they were then charged.
    pub admitted: bool,
    /// One reading per charge, in order, after the charge. `retry_at` is `Some` on
    /// a bucket that could not take the cost (also one that only reports).
    pub readings: BucketReadings,
    /// Buckets that could not be read and were rebuilt from zero (F-CORRUPT).
    pub rebuilt: u32,
    /// The instant each bucket was judged at, where they have clocks of their own (the
    /// nodes of a cluster); empty if it was [`Charged::now`] for all.
    pub instants: Vec<Micros>,
}

impl Charged {
    /// When the bucket at `position` was judged.
    #[must_use]
    pub fn judged_at(&self, position: usize) -> Micros {
        self.instants.get(position).copied().unwrap_or(self.now)
    }

    /// What `charges` have taken, if this is what a [`Take::Consume`] of them found:
    /// with it they can be given back.
    #[must_use]
    pub fn taken<'p>(&self, charges: &[Charge<'p>]) -> Vec<Taken<'p>> {
        let has_taken = |(charge, reading): (&Charge<'_>, &Reading)| {
            self.admitted && (reading.retry_at.is_none() || charge.on_exceed == OnExceed::Count)
        };
        let found = charges.iter().zip(&self.readings).enumerate();
        found
            .filter(|(_, found)| has_taken(*found))
            .map(|(position, (charge, reading))| Taken {
                charge: Charge {
                    cost: charge.returnable(reading),
                    ..charge.clone()
                },
                at: self.judged_at(position),
            })
            .filter(|taken| taken.charge.cost > 0)
            .collect()
    }
}

/// What one bucket was charged, and when: enough to give it back once and never too
/// much (L-GIVE-BACK).
#[derive(Clone, Debug)]
pub struct Taken<'p> {
    /// The bucket, and as its cost how much of what was taken is given back.
    pub charge: Charge<'p>,
    /// When it was taken, by the store's clock ([`Charged::judged_at`]).
    pub at: Micros,
}

/// Outcome of a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The store's clock at the time of the read.
    pub now: Micros,
    /// One per key, in order; `None` if there is none or it has expired.
    pub records: Vec<Option<Record>>,
}

/// Outcome of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    /// Everything was written.
    Done,
    /// A record had changed; nothing was written.
    Conflict,
    /// A record had changed, and the store cannot take writes back (Redis Cluster):
    /// the first so many writes stand.
    Part(usize),
}

/// A named collection of small shared entries that every node keeps a copy of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Registry {
    /// The allowlist.
    Allowlist,
    /// Tiers that an operator changed, by API-key hash.
    Tiers,
    /// Resets that other nodes must hear of (they drop cached denials).
    Resets,
    /// What API keys used beyond their quotas, by month and hash.
    Overages,
    /// API keys that operators created or revoked, by hash.
    ApiKeys,
    /// OAuth clients that operators registered, by the hash of their id.
    Clients,
}

impl Registry {
    /// Every registry.
    pub const ALL: [Self; 6] = [
        Self::Allowlist,
        Self::Tiers,
        Self::Resets,
        Self::Overages,
        Self::ApiKeys,
        Self::Clients,
    ];

    /// A short stable name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allowlist => "allowlist",
            Self::Tiers => "tiers",
            Self::Resets => "resets",
            Self::Overages => "overages",
            Self::ApiKeys => "api_keys",
            Self::Clients => "clients",
        }
    }
}

/// One entry of a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name: a digest or a hash, never an identifier. At most 128 bytes.
    pub id: String,
    /// Its content. At most 4 KiB.
    pub bytes: Vec<u8>,
    /// When it stops; `None` never.
    pub expires_at: Option<Micros>,
}

/// A registry as it is now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entries {
    /// Grows with every change; cheap to compare.
    pub version: u64,
    /// The entries, by id. Expired ones are left out.
    pub entries: Vec<Entry>,
}

/// Most entries a registry may have.
pub const REGISTRY_ENTRIES_MAX: usize = 100_000;

/// A record as a listing shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub key: RecordKey,
    /// Its content.
    pub record: Record,
    /// When nothing in it matters any more: whoever moves it takes this along.
    pub expires_at: Micros,
}

/// A page of records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordPage {
    /// The records of this page.
    pub records: Vec<Listed>,
    /// Where to go on; `None` at the end.
    pub next: Option<String>,
}

/// Outcome of a reset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResetDone {
    /// For each charge, in order, whether its bucket was cleared. A cluster may do
    /// some and not others; every other store does all or fails.
    pub done: Vec<bool>,
}

/// Figures about the store itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Buckets and records held in this process.
    pub tracked_keys: u64,
    /// Entries that had to leave before they expired.
    pub evictions: u64,
    /// Entries that this process removed because they no longer counted.
    pub expired: u64,
    /// New keys that had to share the overflow bucket.
    pub overflowed: u64,
    /// Commands waiting for the store.
    pub queue_depth: u64,
    /// Use of the fullest of what is bounded in this process, in percent.
    pub used_percent: u64,
    /// True while what must survive the process cannot be written; decisions go on.
    pub is_unsaved: bool,
    /// Risks in the store's own settings (F-EVICT); `None` if it does not say, has
    /// not been asked yet, or keeps what it acknowledged by itself.
    pub risks: Option<StoreRisks>,
}

/// Ways in which a store that answers may still lose what it counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreRisks {
    /// It drops keys by itself when its memory is full: limits and blocks are forgotten.
    pub eviction: bool,
    /// It has replicas and writes nothing to disk: restarted, it is empty, and its replicas
    /// copy that.
    pub unsaved_replication: bool,
    /// Keys that it was seen to drop since this process watches it.
    pub evicted_keys: u64,
}

/// Buckets: what limits and quotas count in. Every method is bounded in time by the
/// engine; none is retried by it after a time-out. A store answers all calls
/// [`Answer::Ready`], or all [`Answer::Later`]: which, the engine finds out at its start.
pub trait Buckets: Send + Sync + 'static {
    /// Evaluates all buckets of a decision at one instant.
    fn charge<'a>(&'a self, charges: &'a [Charge<'a>], take: Take) -> Answer<'a, Charged>;

    /// Evaluates decisions of one bucket each, apart from each other and in this order:
    /// one that has the bucket of an earlier one finds what that left. A store that cannot
    /// make them in one call answers [`in_rounds`].
    fn charge_each<'a>(&'a self, charges: &'a [Charge<'a>], take: Take)
    -> Answer<'a, Vec<Charged>>;

    /// Gives back what was taken, as far as its bucket still counts it; the rest is
    /// dropped, so that a return never admits one too many (L-GIVE-BACK). Naming a
    /// charge once, and only one that took, is the caller's part.
    fn give_back<'a>(&'a self, taken: &'a [Taken<'a>]) -> Answer<'a, Charged>;

    /// Gives back a cost that names no charge, from the oldest hits, at most what is
    /// used. Whatever it was charged for may be out of the bucket by now, and then
    /// others' uses are given back: [`Buckets::give_back`] does not.
    fn refund<'a>(&'a self, charges: &'a [Charge<'a>]) -> Answer<'a, Charged>;

    /// Clears buckets, all in one transaction where the engine has one.
    fn reset<'a>(&'a self, charges: &'a [Charge<'a>]) -> Answer<'a, ResetDone>;
}

/// Records: what the guard and the lockout know, changed by compare-and-swap.
pub trait Records: Send + Sync + 'static {
    /// Reads records and the store's clock.
    fn load<'a>(&'a self, keys: &'a [RecordKey]) -> Answer<'a, Loaded>;

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

/// Registries: small collections that operators change and every node keeps a copy of.
pub trait Registries: Send + Sync + 'static {
    /// Adds or replaces an entry of a registry.
    fn put_entry(&self, registry: Registry, entry: Entry) -> Answer<'_, ()>;

    /// Removes an entry; false if there was none.
    fn remove_entry<'a>(&'a self, registry: Registry, id: &'a str) -> Answer<'a, bool>;

    /// The registry, or `None` if it still has version `seen`.
    fn entries(&self, registry: Registry, seen: Option<u64>) -> Answer<'_, Option<Entries>>;
}

/// State of the store itself: signs of life, the end, figures.
pub trait Vitals: Send + Sync + 'static {
    /// Asks for a sign of life that only a store which takes writes can give, and
    /// answers with its clock: one that is read-only would fail the next charge.
    fn probe(&self) -> Answer<'_, Micros>;

    /// Makes the calling thread's connections and whatever they need before their first
    /// call, so that no decision pays for it (F-READY). It may take as long as a connection
    /// may.
    fn connect(&self) -> Answer<'_, ()>;

    /// Makes what was acknowledged durable; part of a graceful end.
    fn flush(&self) -> Answer<'_, ()>;

    /// Figures about the store.
    fn stats(&self) -> StoreStats;

    /// True if other processes use the same state and asking costs a round trip:
    /// then leases and remembered denials pay off.
    fn is_shared(&self) -> bool;
}

/// All that the engine asks of a store. Whatever is [`Buckets`], [`Records`],
/// [`Registries`] and [`Vitals`] is one.
pub trait Store: Buckets + Records + Registries + Vitals {}

impl<S: Buckets + Records + Registries + Vitals> Store for S {}

/// The longest a single call may take unless configured otherwise.
pub const DEADLINE_DEFAULT: Duration = Duration::from_millis(100);

/// The longest that a connection to a shared store may take to be made, unless configured
/// otherwise. No call waits for it beyond its own deadline.
pub const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(1);
