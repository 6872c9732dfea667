//! A connection for work other than decisions: reading policies, writing audits. It is separate
//! from the store's own connections.

use futures_util::future::BoxFuture;
use tokio::sync::Mutex;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::config::{PostgresConfig, StartError};
use super::connect::{Connections, Unpooled};
use super::error;
use crate::StoreError;

/// One connection, made when it is needed and given up when a call on it fails.
pub struct Errands {
    config: PostgresConfig,
    held: Mutex<Option<Unpooled>>,
}

impl Errands {
    /// Prepares to connect; nothing is asked yet.
    ///
    /// # Errors
    /// TLS is wanted and cannot be set up.
    pub fn new(config: PostgresConfig) -> Result<Self, StartError> {
        Connections::check_tls(&config)?;
        Ok(Self {
            config,
            held: Mutex::new(None),
        })
    }

    /// Runs one statement within the configuration's deadline, connecting included.
    ///
    /// # Errors
    /// [`StoreError`]; whether the statement took effect may then be unknown.
    pub fn query<'a>(
        &'a self,
        sql: &'a str,
        params: &'a [&'a (dyn ToSql + Sync)],
    ) -> BoxFuture<'a, Result<Vec<Row>, StoreError>> {
        Box::pin(async move {
            tokio::time::timeout(self.config.deadline, self.run(sql, params))
                .await
                .unwrap_or(Err(StoreError::TimedOut))
        })
    }

    async fn run(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, StoreError> {
        let mut held = self.held.lock().await;
        // Taken out, so that a call that is cancelled drops its connection.
        let connection = match held.take().filter(|held| !held.client.is_closed()) {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let rows = connection.client.query(sql, params).await;
        let rows = rows.map_err(|error| error::of(&error))?;
        *held = Some(connection);
        Ok(rows)
    }

    async fn connect(&self) -> Result<Unpooled, StoreError> {
        match Connections::unpooled(&self.config).await {
            Ok(connection) => Ok(connection),
            Err(StartError::Store(error)) => Err(error),
            Err(_) => Err(StoreError::Unreachable("TLS cannot be set up".to_owned())),
        }
    }
}
