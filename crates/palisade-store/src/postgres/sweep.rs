//! Removal of what has expired: small steps through the tables in key order, at a
//! steady pace, faster while there is much to remove.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use palisade_core::time::Clock;
use tokio::task::JoinHandle;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::batch::signed;
use super::config::Sweep;
use super::connect::Connections;
use crate::StoreError;

const BUCKETS: &str = "SELECT next_key, removed FROM palisade.sweep_buckets($1, $2, $3)";
const RECORDS: &str =
    "SELECT next_kind, next_digest, removed FROM palisade.sweep_records($1, $2, $3, $4)";

/// The pause after a step that failed: the server has other troubles.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(5);

/// A task that ends with its owner.
pub(super) struct Sweeper {
    task: JoinHandle<()>,
    removed: Arc<AtomicU64>,
}

impl Sweeper {
    pub(super) fn start(
        sweep: Sweep,
        connections: Arc<Connections>,
        clock: Option<Arc<dyn Clock>>,
    ) -> Self {
        let walk = Walk {
            connections,
            clock,
            step: i32::try_from(sweep.step.max(1)).unwrap_or(i32::MAX),
            place: Place::start(),
            removed: Arc::default(),
        };
        Self {
            removed: Arc::clone(&walk.removed),
            task: tokio::spawn(walk.run(sweep.pause)),
        }
    }

    /// Rows that this process removed.
    pub(super) fn removed(&self) -> u64 {
        self.removed.load(Ordering::Relaxed)
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Position from which the walk goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Buckets(String),
    Records(i16, Vec<u8>),
}

impl Place {
    const fn start() -> Self {
        Self::Buckets(String::new())
    }
}

pub(super) struct Walk {
    connections: Arc<Connections>,
    clock: Option<Arc<dyn Clock>>,
    step: i32,
    place: Place,
    removed: Arc<AtomicU64>,
}

impl Walk {
    async fn run(mut self, pause: Duration) {
        loop {
            let step = self.step().await;
            if let Ok(removed) = &step {
                let removed = u64::try_from(*removed).unwrap_or(0);
                self.removed.fetch_add(removed, Ordering::Relaxed);
            }
            let rest = match step {
                // There is much to remove: hardly any pause but the server's own pace.
                Ok(removed) if removed > self.step / 20 => pause / 100,
                Ok(_) => pause,
                Err(error) => {
                    tracing::warn!(
                        kind = error.kind().name(),
                        "expired rows could not be removed"
                    );
                    PAUSE_AFTER_FAILURE
                }
            };
            tokio::time::sleep(rest).await;
        }
    }

    /// With the deadline of bulk work: nobody waits for a step, and one that fails at a short
    /// deadline would be repeated for ever.
    async fn ask(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, StoreError> {
        self.connections.query_in_bulk(sql, params).await
    }

    /// Runs one step; returns the number of rows that it removed.
    async fn step(&mut self) -> Result<i32, StoreError> {
        let now = self.clock.as_ref().map(|clock| signed(clock.now().0));
        let (place, removed) = match &self.place {
            Place::Buckets(after) => {
                let rows = self.ask(BUCKETS, &[&now, after, &self.step]).await?;
                let row = rows.first().ok_or_else(odd)?;
                let next: Option<String> = row.try_get(0).map_err(|_| odd())?;
                let place = next.map_or(Place::Records(0, Vec::new()), Place::Buckets);
                (place, row.try_get(1).map_err(|_| odd())?)
            }
            Place::Records(kind, digest) => {
                let rows = self.ask(RECORDS, &[&now, kind, digest, &self.step]).await?;
                let row = rows.first().ok_or_else(odd)?;
                let next: Option<i16> = row.try_get(0).map_err(|_| odd())?;
                let digest: Option<Vec<u8>> = row.try_get(1).map_err(|_| odd())?;
                let place = next
                    .zip(digest)
                    .map_or_else(Place::start, |(kind, digest)| Place::Records(kind, digest));
                (place, row.try_get(2).map_err(|_| odd())?)
            }
        };
        self.place = place;
        Ok(removed)
    }
}

fn odd() -> StoreError {
    StoreError::Corrupt("a sweep of another shape".to_owned())
}
