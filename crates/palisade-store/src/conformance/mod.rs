//! The suite that every store passes. It runs on a virtual clock: a store under test judges by the
//! [`TestClock`] that it was made with.
//!
//! ```text
//! conformance::run(|clock| async move { ModelStore::new(clock) }).await;
//! ```
//!
//! The suite leaves open: `reset_at` of a bucket of which nothing is used (a store may have
//! forgotten it), the order of [`Records::scan`](crate::Records::scan), and the values of registry
//! versions, as long as every change grows them.

mod buckets;
mod changes;
mod concurrency;
mod corrections;
mod differential;
mod edges;
mod give_back;
mod holds;
mod limits;
mod overdraft;
mod records;
mod registries;
mod rng;
mod script;
mod step_back;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use palisade_core::time::{Clock, Micros};

use crate::Store;

pub use changes::Conversions;
pub use differential::{Differential, differential};
pub use limits::{TestLimits, spec};
pub use registries::registry_is_bounded;
pub use rng::Rng;
pub use script::play;

/// A clock that a test moves.
#[derive(Debug)]
pub struct TestClock(AtomicU64);

/// Start of the suite's time: midnight UTC, so that windows of whole days and less are aligned
/// with it.
pub const START: Micros = Micros(1_771_027_200_000_000);

impl Default for TestClock {
    fn default() -> Self {
        Self::at(START)
    }
}

impl TestClock {
    /// A clock that stands at `now`.
    #[must_use]
    pub const fn at(now: Micros) -> Self {
        Self(AtomicU64::new(now.0))
    }

    /// Sets the clock to `now`.
    pub fn set(&self, now: Micros) {
        self.0.store(now.0, Ordering::SeqCst);
    }

    /// Moves the clock forward by `us` microseconds.
    pub fn advance(&self, us: u64) {
        self.0.fetch_add(us, Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Micros {
        Micros(self.0.load(Ordering::SeqCst))
    }
}

/// A store under test with its clock.
pub(crate) struct Bench<S> {
    pub(crate) store: Arc<S>,
    pub(crate) clock: Arc<TestClock>,
}

/// Makes an empty store that judges by the given clock.
pub trait Make<S> {
    /// Makes an empty store that judges by `clock`.
    fn make(&self, clock: Arc<TestClock>) -> impl Future<Output = S> + Send;
}

impl<S, F, Fut> Make<S> for F
where
    F: Fn(Arc<TestClock>) -> Fut,
    Fut: Future<Output = S> + Send,
{
    fn make(&self, clock: Arc<TestClock>) -> impl Future<Output = S> + Send {
        self(clock)
    }
}

pub(crate) async fn bench<S: Store>(make: &impl Make<S>) -> Bench<S> {
    let clock = Arc::new(TestClock::default());
    Bench {
        store: Arc::new(make.make(Arc::clone(&clock)).await),
        clock,
    }
}

/// Runs every case, each on a new store. Needs a multi-threaded tokio runtime.
///
/// # Panics
/// If the store breaks a rule; the message names the case.
pub async fn run<S: Store>(make: impl Make<S>) {
    run_with(make, Conversions::LogAndWheel).await;
}

/// Like [`run`], for a store that follows other changes of a limit exactly.
///
/// # Panics
/// Like [`run`].
pub async fn run_with<S: Store>(make: impl Make<S>, conversions: Conversions) {
    run_as(make, conversions, Commits::Together).await;
}

/// Atomicity of a store's commits of several records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commits {
    /// All records in one transaction.
    Together,
    /// Each record on its own, as on a cluster: a commit that loses a race may leave its first
    /// records written.
    OneByOne,
}

/// Like [`run_with`], for a store whose commits are of another kind.
///
/// # Panics
/// Like [`run`].
pub async fn run_as<S: Store>(make: impl Make<S>, conversions: Conversions, commits: Commits) {
    buckets::run(&make).await;
    edges::run(&make).await;
    give_back::run(&make).await;
    holds::run(&make).await;
    changes::run(&make, conversions).await;
    step_back::run(&make).await;
    records::run(&make).await;
    registries::run(&make).await;
    overdraft::run(&make).await;
    corrections::run(&make).await;
    concurrency::run(&make, commits).await;
    for seed in 0..4 {
        let Bench { store, clock } = bench(&make).await;
        let plan = Differential {
            seed,
            steps: 150,
            conversions,
        };
        differential(&*store, &clock, plan).await;
    }
}
