//! Real databases that hold tenants' policies: child processes that a test stops and
//! brings back.

#![allow(dead_code, reason = "each test file uses its part")]

#[cfg(feature = "mongodb")]
pub(crate) mod mongo;
#[path = "../../../palisade-store/tests/common/postgres_server.rs"]
pub(crate) mod postgres_server;

use std::fmt::Write;

#[cfg(feature = "mongodb")]
use mongo::MongoServer;
use postgres_server::PostgresServer;

/// What tests do to a source, whichever it is.
pub(crate) enum Database {
    Postgres(PostgresServer),
    #[cfg(feature = "mongodb")]
    Mongo(MongoServer),
}

impl Database {
    /// A running server with an empty table or collection.
    pub(crate) async fn postgres() -> Self {
        let server = PostgresServer::start(&[]).await;
        server.database().await;
        let made = crate::common::palisade()
            .args(["migrate", "--store", &postgres_url(&server)])
            .output()
            .unwrap();
        assert!(
            made.status.success(),
            "{}",
            String::from_utf8_lossy(&made.stderr)
        );
        Self::Postgres(server)
    }

    #[cfg(feature = "mongodb")]
    pub(crate) async fn mongo() -> Self {
        Self::Mongo(MongoServer::start().await)
    }

    /// As `policy.source` names it.
    pub(crate) fn url(&self) -> String {
        match self {
            Self::Postgres(server) => postgres_url(server),
            #[cfg(feature = "mongodb")]
            Self::Mongo(server) => server.url(),
        }
    }

    /// Writes a tenant's policy; `limits` is JSON.
    pub(crate) async fn put(&self, tenant: &str, version: u32, limits: &str) {
        match self {
            Self::Postgres(server) => {
                let sql = format!(
                    "INSERT INTO palisade.rate_limit_policies (tenant_id, version, limits)
                     VALUES ('{tenant}', {version}, '{limits}')
                     ON CONFLICT (tenant_id) DO UPDATE
                     SET version = excluded.version, limits = excluded.limits"
                );
                server.sql(&server.last_database(), &sql).await;
            }
            #[cfg(feature = "mongodb")]
            Self::Mongo(server) => server.put(tenant, version, limits).await,
        }
    }

    /// Runs a statement.
    pub(crate) async fn sql(&self, sql: &str) {
        match self {
            Self::Postgres(server) => drop(server.sql(&server.last_database(), sql).await),
            #[cfg(feature = "mongodb")]
            Self::Mongo(_) => panic!("it has no SQL"),
        }
    }

    /// Ends the server at once.
    pub(crate) fn kill(&mut self) {
        match self {
            Self::Postgres(server) => server.kill(),
            #[cfg(feature = "mongodb")]
            Self::Mongo(server) => server.kill(),
        }
    }

    /// The server stands still: connections stay, nothing answers.
    pub(crate) fn pause(&self) {
        match self {
            Self::Postgres(server) => server.pause(),
            #[cfg(feature = "mongodb")]
            Self::Mongo(server) => server.signal("STOP"),
        }
    }

    /// It goes on.
    pub(crate) fn resume(&self) {
        match self {
            Self::Postgres(server) => server.resume(),
            #[cfg(feature = "mongodb")]
            Self::Mongo(server) => server.signal("CONT"),
        }
    }

    /// Starts it again on the same data.
    pub(crate) async fn restart(&mut self) {
        match self {
            Self::Postgres(server) => server.restart().await,
            #[cfg(feature = "mongodb")]
            Self::Mongo(server) => server.restart().await,
        }
    }
}

/// The socket's folder takes the place of the host, escaped.
pub(crate) fn postgres_url(server: &PostgresServer) -> String {
    let mut host = String::new();
    for byte in server.folder().to_str().unwrap().bytes() {
        let _ = write!(host, "%{byte:02X}");
    }
    format!("postgres://palisade@{host}/{}", server.last_database())
}
