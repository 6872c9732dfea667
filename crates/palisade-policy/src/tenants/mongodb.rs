//! Tenants' policies from a MongoDB collection, a document per tenant:
//! `{ tenant_id, version, limits: { NAME: RATE } }`.

use std::time::Duration;

use mongodb::bson::{RawDocument, RawDocumentBuf, deserialize_from_slice, doc};
use mongodb::error::{Error, ErrorKind};
use mongodb::options::ClientOptions;
use mongodb::{Client, Collection, Cursor, Database};
use serde_json::{Map, Value};

use super::{Document, SourceError, TenantSource};

/// The server's code for a statement that took too long.
const MAX_TIME_EXPIRED: i32 = 50;
const UNAUTHORIZED: [i32; 2] = [13, 18];

/// The reason why an address cannot be used, without the address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`policy.source` is not an address of a MongoDB server: {0}")]
pub struct MongoAddressError(&'static str);

/// A collection of tenants' documents.
pub struct MongoTenants {
    database: Database,
    documents: Collection<RawDocumentBuf>,
    timeout: Duration,
}

impl MongoTenants {
    /// Prepares to read `collection`, in the database that `url` names. Does not call the server
    /// yet; needs a Tokio runtime that lives as long as this.
    ///
    /// # Errors
    /// The address cannot be used, or names no database.
    pub async fn open(
        url: &str,
        collection: &str,
        timeout: Duration,
    ) -> Result<Self, MongoAddressError> {
        let mut options = options(url).await?;
        // Shorter than the call's own timeout, so that the driver's reason is reported.
        let patience = timeout * 3 / 4;
        options.server_selection_timeout = Some(patience);
        options.connect_timeout = Some(patience);
        options.max_pool_size = Some(2);
        options
            .app_name
            .get_or_insert_with(|| "palisade".to_owned());
        let client = Client::with_options(options).map_err(unusable)?;
        let database = client.default_database().ok_or(NO_DATABASE)?;
        Ok(Self {
            documents: database.collection(collection),
            database,
            timeout,
        })
    }

    /// Checks an address without using it.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn check(url: &str) -> Result<(), MongoAddressError> {
        let options = options(url).await?;
        options.default_database.map(|_| ()).ok_or(NO_DATABASE)
    }

    async fn ping(&self) -> Result<Vec<Document>, SourceError> {
        let answer = self.database.run_command(doc! { "ping": 1 }).await;
        answer.map(|_| Vec::new()).map_err(|error| of(&error))
    }
}

const NO_DATABASE: MongoAddressError =
    MongoAddressError("it names no database, add one after the host");

fn unusable(_: Error) -> MongoAddressError {
    MongoAddressError("it cannot be parsed")
}

async fn options(url: &str) -> Result<ClientOptions, MongoAddressError> {
    if url.starts_with("mongodb+srv:") {
        return Err(MongoAddressError(
            "`mongodb+srv` is not supported, list the hosts with `mongodb://`",
        ));
    }
    ClientOptions::parse(url).await.map_err(unusable)
}

impl TenantSource for MongoTenants {
    async fn fetch(&self, tenants: &[Box<str>]) -> Result<Vec<Document>, SourceError> {
        if tenants.is_empty() {
            return self.ping().await;
        }
        let names: Vec<&str> = tenants.iter().map(|tenant| &**tenant).collect();
        let found = self
            .documents
            .find(doc! { "tenant_id": { "$in": names } })
            .max_time(self.timeout)
            .await;
        read(found.map_err(|error| of(&error))?).await
    }

    async fn first(&self, count_max: u32) -> Result<Vec<Document>, SourceError> {
        let found = self
            .documents
            .find(doc! {})
            .limit(i64::from(count_max))
            .max_time(self.timeout)
            .await;
        read(found.map_err(|error| of(&error))?).await
    }
}

async fn read(mut cursor: Cursor<RawDocumentBuf>) -> Result<Vec<Document>, SourceError> {
    let mut documents = Vec::new();
    while cursor.advance().await.map_err(|error| of(&error))? {
        documents.extend(document(cursor.current()));
    }
    Ok(documents)
}

/// Reads a tenant's document. One whose content cannot be read still belongs to its tenant, and is
/// refused for what it lacks.
fn document(raw: &RawDocument) -> Option<Document> {
    let tenant = raw.get_str("tenant_id").ok()?;
    let body: Map<String, Value> = deserialize_from_slice(raw.as_bytes()).unwrap_or_default();
    Some(Document {
        tenant: tenant.into(),
        body,
    })
}

fn of(error: &Error) -> SourceError {
    match &*error.kind {
        ErrorKind::Authentication { .. } => SourceError::Refused,
        ErrorKind::Command(command) if command.code == MAX_TIME_EXPIRED => SourceError::TimedOut,
        ErrorKind::Command(command) if UNAUTHORIZED.contains(&command.code) => SourceError::Refused,
        ErrorKind::Io(_)
        | ErrorKind::ServerSelection { .. }
        | ErrorKind::ConnectionPoolCleared { .. }
        | ErrorKind::DnsResolve { .. } => SourceError::Unreachable,
        _ => SourceError::Corrupt,
    }
}
