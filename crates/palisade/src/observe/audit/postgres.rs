//! Audit events in the table `palisade.audit`, which `palisade migrate` creates.

use std::io;
use std::time::Duration;

use palisade_store::StoreError;
use palisade_store::postgres::{Errands, PostgresConfig};
use tokio::runtime::{Builder, Runtime};

use super::Sink;

/// Longest time for one statement, including the connection. Only the end of the process waits for
/// it.
const DEADLINE: Duration = Duration::from_secs(2);
/// Lines in one statement.
const CHUNK_LINES: usize = 500;

/// Inserts lines. A line that is there already, with the same batch and number, stays as it is.
const INSERT: &str = "
    INSERT INTO palisade.audit (batch, line, at, event, severity, detail)
    SELECT $1::text::uuid, ($2::bigint + number)::integer,
           (detail->>'at')::timestamptz, detail->>'event', detail->>'severity', detail
    FROM (SELECT text::jsonb AS detail, number
          FROM unnest($3::text[]) WITH ORDINALITY AS given (text, number)) AS lines
    ON CONFLICT DO NOTHING";

/// Writes lines into a database. A failed connection is opened again; lines whose outcome is
/// unknown are written again under the same batch, so that none is stored twice.
pub struct PostgresSink {
    runtime: Runtime,
    errands: Errands,
    /// Hosts of the database, for logs.
    hosts: String,
    /// Name of the batch that has not been confirmed. The next call repeats its lines.
    unconfirmed: Option<String>,
}

impl PostgresSink {
    /// Prepares to write. The database need not be reachable yet.
    ///
    /// # Errors
    /// The runtime cannot be started, or TLS cannot be set up.
    pub fn new(mut config: PostgresConfig) -> io::Result<Self> {
        config.deadline = DEADLINE;
        Ok(Self {
            runtime: Builder::new_current_thread().enable_all().build()?,
            hosts: config.hosts(),
            errands: Errands::new(config).map_err(io::Error::other)?,
            unconfirmed: None,
        })
    }

    fn insert(&self, batch: &str, lines: &str) -> Result<(), StoreError> {
        let lines: Vec<&str> = lines.lines().collect();
        self.runtime.block_on(async {
            for (chunk, texts) in lines.chunks(CHUNK_LINES).enumerate() {
                let before = i64::try_from(chunk * CHUNK_LINES).unwrap_or(i64::MAX);
                let params: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
                    [&batch, &before, &texts];
                self.errands.query(INSERT, &params).await?;
            }
            Ok(())
        })
    }
}

impl Sink for PostgresSink {
    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        let text = std::str::from_utf8(lines).map_err(io::Error::other)?;
        // After an error the same lines come again (see `Sink::write`): under the name of the first
        // attempt, lines that did arrive are not inserted twice.
        let again = self.unconfirmed.take();
        let is_again = again.is_some();
        let batch = again.unwrap_or_else(|| format!("{:032x}", rand::random::<u128>()));
        self.insert(&batch, text).map_err(|error| {
            self.unconfirmed = Some(batch);
            if !is_again {
                tracing::warn!(
                    hosts = self.hosts,
                    kind = error.kind().name(),
                    "audit events wait for their database"
                );
            }
            io::Error::other(error)
        })
    }
}
