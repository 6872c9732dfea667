//! The schema, in numbered steps that are never edited once released.

use futures_util::TryFutureExt;
use futures_util::future::BoxFuture;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::config::{PostgresConfig, SchemaPolicy, StartError};
use super::connect::Connections;
use super::error;
use crate::StoreError;

/// The version of the schema that this code works with.
pub const SCHEMA_VERSION: u32 = 15;

const MIGRATIONS: [&str; SCHEMA_VERSION as usize] = [
    include_str!("migrations/0001_schema.sql"),
    include_str!("migrations/0002_decide.sql"),
    include_str!("migrations/0003_records.sql"),
    include_str!("migrations/0004_policies_and_audit.sql"),
    include_str!("migrations/0005_give_back.sql"),
    include_str!("migrations/0006_probe.sql"),
    include_str!("migrations/0007_overages.sql"),
    include_str!("migrations/0008_years.sql"),
    include_str!("migrations/0009_credentials.sql"),
    include_str!("migrations/0010_step_back.sql"),
    include_str!("migrations/0011_overdraft.sql"),
    include_str!("migrations/0012_attacks.sql"),
    include_str!("migrations/0013_correct.sql"),
    include_str!("migrations/0014_holds.sql"),
    include_str!("migrations/0015_large_figures.sql"),
];

/// Lets one migration run at a time, on whichever node. The number is arbitrary and must not
/// change.
const LOCK: &str = "SELECT pg_advisory_xact_lock(5042417660011)";

const PREPARE: &str = "
    CREATE SCHEMA IF NOT EXISTS palisade;
    CREATE TABLE IF NOT EXISTS palisade.migration (
        version bigint PRIMARY KEY,
        applied_at timestamptz NOT NULL DEFAULT now()
    )";

/// Brings the schema up to date; returns the versions that were applied.
///
/// # Errors
/// [`StartError`]; the steps that were applied before stay.
pub fn migrate(config: &PostgresConfig) -> BoxFuture<'_, Result<Vec<u32>, StartError>> {
    Box::pin(apply(config))
}

/// Checks or updates the schema, as the configuration says.
pub(super) fn ready(config: &PostgresConfig) -> BoxFuture<'_, Result<(), StartError>> {
    match config.schema {
        SchemaPolicy::Require => Box::pin(check(config)),
        SchemaPolicy::Migrate => Box::pin(apply(config).map_ok(drop)),
    }
}

async fn apply(config: &PostgresConfig) -> Result<Vec<u32>, StartError> {
    let mut connection = Connections::unpooled(config).await?;
    check_sessions(config, &connection.client).await?;
    check_server(&connection.client).await?;
    let mut applied = Vec::new();
    for (version, sql) in (1_u32..).zip(MIGRATIONS) {
        if step(&mut connection.client, i64::from(version), sql).await? {
            applied.push(version);
        }
    }
    let found = version(&connection.client).await?;
    verdict(found)?;
    Ok(applied)
}

/// Fails unless the schema is the one that this code works with.
async fn check(config: &PostgresConfig) -> Result<(), StartError> {
    let connection = Connections::unpooled(config).await?;
    check_sessions(config, &connection.client).await?;
    check_server(&connection.client).await?;
    verdict(version(&connection.client).await?)
}

fn verdict(found: u32) -> Result<(), StartError> {
    let wanted = SCHEMA_VERSION;
    match found.cmp(&wanted) {
        std::cmp::Ordering::Less => Err(StartError::SchemaOld { found, wanted }),
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => Err(StartError::SchemaNew { found, wanted }),
    }
}

/// Fails if two connections share one session of the server: then a pooler hands out sessions for
/// a transaction each, and neither prepared statements nor settings last. If a pooler happens to
/// choose two different sessions, the first missing statement reveals it.
async fn check_sessions(config: &PostgresConfig, first: &Client) -> Result<(), StartError> {
    let one = session(first).await?;
    // The server may have a single connection left: the store will report that itself.
    let Ok(second) = Connections::unpooled(config).await else {
        return Ok(());
    };
    match session(&second.client).await? == one {
        true => Err(StartError::Pooled),
        false => Ok(()),
    }
}

/// The server process behind a connection, asked for without a prepared statement.
async fn session(client: &Client) -> Result<Option<String>, StoreError> {
    let asked = client.simple_query("SELECT pg_backend_pid()").await;
    let messages = asked.map_err(|error| error::of(&error))?;
    Ok(messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    }))
}

async fn check_server(client: &Client) -> Result<(), StartError> {
    let row = client
        .query_one(
            "SELECT current_setting('server_version_num')::int >= 150000",
            &[],
        )
        .await
        .map_err(|error| error::of(&error))?;
    match row.try_get(0) {
        Ok(true) => Ok(()),
        _ => Err(StartError::ServerOld),
    }
}

async fn version(client: &Client) -> Result<u32, StoreError> {
    let found = client
        .query_one(
            "SELECT coalesce(max(version), 0) FROM palisade.migration",
            &[],
        )
        .await;
    match found {
        Ok(row) => row
            .try_get::<_, i64>(0)
            .ok()
            .and_then(|version| version.try_into().ok())
            .ok_or_else(|| StoreError::Corrupt("the schema's version".to_owned())),
        Err(error) if is_missing(&error) => Ok(0),
        Err(error) => Err(error::of(&error)),
    }
}

fn is_missing(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| {
        [SqlState::UNDEFINED_TABLE, SqlState::INVALID_SCHEMA_NAME].contains(code)
    })
}

/// Applies one step in a transaction of its own; false if it was there already.
async fn step(client: &mut Client, version: i64, sql: &str) -> Result<bool, StoreError> {
    let run = async {
        let transaction = client.transaction().await?;
        transaction.batch_execute(LOCK).await?;
        transaction.batch_execute(PREPARE).await?;
        let known = transaction
            .query_opt(
                "SELECT FROM palisade.migration WHERE version = $1",
                &[&version],
            )
            .await?;
        if known.is_some() {
            return Ok(false);
        }
        transaction.batch_execute(sql).await?;
        transaction
            .execute(
                "INSERT INTO palisade.migration (version) VALUES ($1)",
                &[&version],
            )
            .await?;
        transaction.commit().await?;
        Ok(true)
    };
    run.await.map_err(|error| error::of(&error))
}
