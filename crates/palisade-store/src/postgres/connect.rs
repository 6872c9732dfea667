//! Connections: opened with the session's settings, counted, and closed if a call on them was not
//! finished.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use deadpool_postgres::{
    Connect, Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime, Timeouts,
};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio_postgres::config::SslMode;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config as Address, Error, Row};

use super::config::{PostgresConfig, StartError};
use super::error;
use super::tls::Tls;
use crate::StoreError;

/// Deadline of calls that may take longer than a decision: a whole registry, a page of records, a
/// sweep.
const DEADLINE_BULK: Duration = Duration::from_secs(5);

/// Longest time that a start waits for the server.
const DEADLINE_START: Duration = Duration::from_secs(10);

/// Stage of a call, which decides the error at its deadline.
#[derive(Debug, Default)]
pub(super) struct Phase(AtomicU8);

const WAITING: u8 = 0;
const CONNECTING: u8 = 1;
const ASKED: u8 = 2;

impl Phase {
    pub(super) fn asked(&self) {
        self.0.store(ASKED, Ordering::Release);
    }

    fn connecting(&self) {
        self.0.store(CONNECTING, Ordering::Release);
    }

    /// Error of a call whose deadline has come now.
    pub(super) fn too_late(&self) -> StoreError {
        match self.0.load(Ordering::Acquire) {
            WAITING => error::no_connection_free(),
            _ => StoreError::TimedOut,
        }
    }
}

pub(super) struct Connections {
    pool: Pool,
    permits: Arc<Semaphore>,
    pub(super) deadline: Duration,
    connect_timeout: Duration,
}

impl Connections {
    pub(super) fn new(config: &PostgresConfig) -> Result<Self, StartError> {
        let connect = Connector {
            tls: Tls::of(config)?,
            settings: settings(config.deadline),
        };
        let address = connect.address(config);
        let manager = Manager::from_connect(
            address,
            connect,
            ManagerConfig {
                recycling_method: RecyclingMethod::Fast,
            },
        );
        let connections_max = config.connections.max(1);
        let pool = Pool::builder(manager)
            .max_size(connections_max)
            .runtime(Runtime::Tokio1)
            .timeouts(Timeouts {
                wait: Some(config.deadline),
                create: Some(config.connect_timeout),
                recycle: Some(config.deadline),
            })
            .build()
            .map_err(|_| StoreError::Unreachable("the pool cannot be built".to_owned()))?;
        Ok(Self {
            pool,
            permits: Arc::new(Semaphore::new(connections_max)),
            deadline: config.deadline,
            connect_timeout: config.connect_timeout,
        })
    }

    /// Opens a connection outside the pool, without the pool's statement time-out.
    pub(super) async fn unpooled(config: &PostgresConfig) -> Result<Unpooled, StartError> {
        let connector = Connector {
            tls: Tls::of(config)?,
            settings: String::new(),
        };
        let address = connector.address(config);
        let patience = DEADLINE_START.max(config.connect_timeout);
        let (client, task) = tokio::time::timeout(patience, connector.open(address))
            .await
            .map_err(|_| StoreError::TimedOut)?
            .map_err(|error| error::of(&error))?;
        Ok(Unpooled { client, task })
    }

    /// Fails if TLS is wanted and could not be set up later.
    pub(super) fn check_tls(config: &PostgresConfig) -> Result<(), StartError> {
        Tls::of(config).map(drop)
    }

    /// Takes a connection. Waiting for one and making one are told apart, so that the error at a
    /// deadline names the true cause.
    pub(super) async fn checkout(&self, phases: &[&Phase]) -> Result<Checkout, StoreError> {
        let permit = self.permit(phases).await;
        let permit = permit.map_err(|_| error::no_connection_free())?;
        phases.iter().for_each(|phase| phase.connecting());
        let (object, permit) = self.connection(permit).await.map_err(error::of_pool)?;
        phases.iter().for_each(|phase| phase.asked());
        Ok(Checkout {
            object: Some(object),
            call: Call::None,
            _permit: permit,
        })
    }

    async fn permit(&self, phases: &[&Phase]) -> Result<OwnedSemaphorePermit, AcquireError> {
        let permits = Arc::clone(&self.permits);
        if let Ok(permit) = permits.try_acquire_owned() {
            return Ok(permit);
        }
        // Permits are held by connections that are still being made: the wait is for the server,
        // not for another call.
        let status = self.pool.status();
        if status.size < status.max_size {
            phases.iter().for_each(|phase| phase.connecting());
        }
        Arc::clone(&self.permits).acquire_owned().await
    }

    /// An idle connection is returned at once. A new one is made in a task of its own, with its
    /// permit: a caller may give up at its deadline, and the next call finds the connection made.
    async fn connection(
        &self,
        permit: OwnedSemaphorePermit,
    ) -> Result<(Object, OwnedSemaphorePermit), PoolError> {
        let pool = self.pool.clone();
        let mut taking = Box::pin(async move { Ok((pool.get().await?, permit)) });
        if let Some(taken) = (&mut taking).now_or_never() {
            return taken;
        }
        let made = tokio::spawn(taking).await;
        made.unwrap_or(Err(PoolError::Closed))
    }

    /// Makes a connection on the calling thread, and prepares these statements on it.
    pub(super) async fn connect(&self, statements: &[&str]) -> Result<(), StoreError> {
        let phase = Phase::default();
        let made = async {
            let held = self.checkout(&[&phase]).await?;
            for sql in statements {
                if let Some(object) = &held.object {
                    let prepared = object.prepare_cached(sql).await;
                    prepared.map_err(|error| error::of(&error))?;
                }
            }
            Ok(())
        };
        tokio::time::timeout(self.connect_timeout, made)
            .await
            .unwrap_or_else(|_| Err(phase.too_late()))
    }

    /// One statement, within the deadline.
    pub(super) async fn query(
        &self,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, StoreError> {
        self.query_within(self.deadline, sql, params).await
    }

    /// Like [`Connections::query`], for a statement whose work grows with the data: it has a
    /// deadline of its own, and still takes one round trip.
    pub(super) async fn query_in_bulk(
        &self,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, StoreError> {
        self.query_within(self.deadline.max(DEADLINE_BULK), sql, params)
            .await
    }

    async fn query_within(
        &self,
        deadline: Duration,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, StoreError> {
        let phase = Phase::default();
        let call = async {
            let mut held = self.checkout(&[&phase]).await?;
            let rows = if deadline > self.deadline {
                held.query_slowly([deadline, self.deadline], sql, params)
                    .await
            } else {
                held.query(sql, params).await
            };
            rows.map_err(|error| error::of(&error))
        };
        tokio::time::timeout(deadline, call)
            .await
            .unwrap_or_else(|_| Err(phase.too_late()))
    }
}

/// A connection in use. If it is dropped during a call, it is closed: otherwise the next caller
/// would wait for the old answer.
pub(super) struct Checkout {
    object: Option<Object>,
    call: Call,
    _permit: OwnedSemaphorePermit,
}

#[derive(PartialEq, Eq)]
enum Call {
    None,
    UnderWay,
}

impl Checkout {
    pub(super) async fn query(
        &mut self,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        self.call = Call::UnderWay;
        let rows = match &self.object {
            Some(object) => run(object, sql, params).await,
            None => Ok(Vec::new()),
        };
        self.call = Call::None;
        rows
    }

    async fn query_slowly(
        &mut self,
        deadlines: [Duration; 2],
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        self.call = Call::UnderWay;
        let rows = match &self.object {
            Some(object) => run_slowly(object, deadlines, sql, params).await,
            None => Ok(Vec::new()),
        };
        self.call = Call::None;
        rows
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        if self.call == Call::UnderWay {
            drop(self.object.take().map(Object::take));
        }
    }
}

async fn run(
    object: &Object,
    sql: &str,
    params: &[&(dyn ToSql + Sync)],
) -> Result<Vec<Row>, Error> {
    let statement = object.prepare_cached(sql).await?;
    object.query(&statement, params).await
}

async fn run_slowly(
    object: &Object,
    [slow, usual]: [Duration; 2],
    sql: &str,
    params: &[&(dyn ToSql + Sync)],
) -> Result<Vec<Row>, Error> {
    let statement = object.prepare_cached(sql).await?;
    let (longer, shorter) = (statement_timeout(slow), statement_timeout(usual));
    // Polled in this order, hence sent in it, without waiting in between.
    let (_, rows, _) = tokio::join!(
        biased;
        object.batch_execute(&longer),
        object.query(&statement, params),
        object.batch_execute(&shorter),
    );
    rows
}

/// A connection for one errand, such as a migration.
pub(super) struct Unpooled {
    pub(super) client: Client,
    task: JoinHandle<()>,
}

impl Drop for Unpooled {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Connector {
    tls: Tls,
    settings: String,
}

impl Connector {
    /// The server's address, with encryption required or disabled: it is never a matter of what
    /// the server offers.
    fn address(&self, config: &PostgresConfig) -> Address {
        let mut address = config.address.clone();
        address.ssl_mode(match self.tls.is_wanted() {
            true => SslMode::Require,
            false => SslMode::Disable,
        });
        address
    }

    /// Boxed, so that the code of connecting is compiled only once, in this crate.
    fn open(&self, address: Address) -> Opening<'_> {
        // Errors that break a connection reach its callers; the task need not report them.
        Box::pin(async move {
            let (client, connection) = address.connect(self.tls.clone()).await?;
            Ok((client, tokio::spawn(async { drop(connection.await) })))
        })
    }
}

type Opening<'a> = BoxFuture<'a, Result<(Client, JoinHandle<()>), Error>>;

impl Connect for Connector {
    fn connect(&self, address: &Address) -> Opening<'_> {
        let address = address.clone();
        Box::pin(async move {
            let (client, task) = self.open(address).await?;
            client.batch_execute(&self.settings).await?;
            Ok((client, task))
        })
    }
}

/// The server gives up when we do, and plans as for a large table from the start:
/// plans are made once per connection, perhaps while a table is still empty.
fn settings(deadline: Duration) -> String {
    format!(
        "{}; SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; \
         SET plan_cache_mode = force_generic_plan; SET jit = off; \
         SET default_transaction_isolation = 'read committed'",
        statement_timeout(deadline)
    )
}

fn statement_timeout(deadline: Duration) -> String {
    format!("SET statement_timeout = {}", deadline.as_millis().max(1))
}
