//! Tenants' policies from a Postgres table with one row per tenant: `tenant_id`, `version`,
//! `limits`.

use std::sync::atomic::{AtomicBool, Ordering};

use palisade_policy::tenants::{Document, SourceError, TenantSource};
use palisade_store::StoreError;
use palisade_store::postgres::{Errands, PostgresConfig, StartError};
use serde_json::{Map, Value};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

/// Schema of a table whose name does not include one.
const SCHEMA: &str = "palisade";
const NAME_BYTES_MAX: usize = 63;

/// Error of a table name that cannot be used. It may be shown, because the name comes from the
/// configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`policy.collection` must be `TABLE` or `SCHEMA.TABLE`, of letters, digits and `_`")]
pub struct TableNameError;

/// A table of tenants' policies.
pub struct PostgresTenants {
    errands: Errands,
    by_name: String,
    any: String,
    /// True from the first failure until a call succeeds, so that an outage is logged once.
    told: AtomicBool,
}

impl PostgresTenants {
    /// Prepares to read `table`, without a call yet. The deadline of `config` bounds each call.
    ///
    /// # Errors
    /// TLS is required and cannot be set up.
    pub fn new(config: PostgresConfig, table: TableName) -> Result<Self, StartError> {
        // The casts permit columns of other types, such as `uuid` and `jsonb`.
        let columns = "tenant_id::text, version::bigint, limits::text";
        let TableName(table) = table;
        Ok(Self {
            errands: Errands::new(config)?,
            // The table's name is quoted and consists of letters, digits and `_`, so it cannot
            // change the statement.
            by_name: format!("SELECT {columns} FROM {table} WHERE tenant_id = ANY($1)"),
            any: format!("SELECT {columns} FROM {table} ORDER BY tenant_id LIMIT $1"),
            told: AtomicBool::new(false),
        })
    }

    async fn ask(
        &self,
        sql: &str,
        param: &(dyn ToSql + Sync),
    ) -> Result<Vec<Document>, SourceError> {
        let rows = self.errands.query(sql, &[param]).await;
        let told = self.told.swap(rows.is_err(), Ordering::Relaxed);
        let rows = rows.map_err(|error| {
            if !told {
                tracing::warn!(%error, "the table of policies was not read");
            }
            of(&error)
        })?;
        rows.iter().map(document).collect()
    }
}

/// A table or view, quoted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableName(String);

impl std::str::FromStr for TableName {
    type Err = TableNameError;

    fn from_str(text: &str) -> Result<Self, TableNameError> {
        let is_plain = |part: &&str| {
            let first = part.bytes().next();
            first.is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
                && part.len() <= NAME_BYTES_MAX
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        };
        let parts: Vec<&str> = text.split('.').collect();
        match parts.as_slice() {
            parts if !parts.iter().all(is_plain) => Err(TableNameError),
            [table] => Ok(Self(format!("\"{SCHEMA}\".\"{table}\""))),
            [schema, table] => Ok(Self(format!("\"{schema}\".\"{table}\""))),
            _ => Err(TableNameError),
        }
    }
}

impl TenantSource for PostgresTenants {
    async fn fetch(&self, tenants: &[Box<str>]) -> Result<Vec<Document>, SourceError> {
        let names: Vec<&str> = tenants.iter().map(|tenant| &**tenant).collect();
        self.ask(&self.by_name, &names).await
    }

    async fn first(&self, count_max: u32) -> Result<Vec<Document>, SourceError> {
        self.ask(&self.any, &i64::from(count_max)).await
    }
}

/// Returns a row as a document. The document's own checks refuse nulls and numbers out of range.
fn document(row: &Row) -> Result<Document, SourceError> {
    let corrupt = |_: tokio_postgres::Error| SourceError::Corrupt;
    let tenant: &str = row.try_get(0).map_err(corrupt)?;
    let version: Option<i64> = row.try_get(1).map_err(corrupt)?;
    let limits: Option<&str> = row.try_get(2).map_err(corrupt)?;
    let mut body = Map::new();
    body.insert("version".to_owned(), version.into());
    if let Some(limits) = limits {
        // A text that is not JSON becomes null, so that only this tenant's document is refused.
        let limits = serde_json::from_str(limits).unwrap_or(Value::Null);
        body.insert("limits".to_owned(), limits);
    }
    Ok(Document {
        tenant: tenant.into(),
        body,
    })
}

fn of(error: &StoreError) -> SourceError {
    match error {
        StoreError::TimedOut => SourceError::TimedOut,
        StoreError::Corrupt(_) => SourceError::Corrupt,
        _ => SourceError::Unreachable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_name_cannot_carry_sql() {
        let name = |text: &str| text.parse::<TableName>().map(|name| name.0);
        assert_eq!(name("policies").unwrap(), r#""palisade"."policies""#);
        assert_eq!(name("app.Policies").unwrap(), r#""app"."Policies""#);
        let long = "x".repeat(64);
        for wrong in [
            "", ".", "a.", "a.b.c", "a\"b", "a b", "1a", "a;b", "é", &long,
        ] {
            assert_eq!(name(wrong), Err(TableNameError), "{wrong}");
        }
    }
}
