//! Address of the server, and bounds on its use.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use tokio_postgres::config::{Config as Address, Host, SslMode};

use crate::{CONNECT_TIMEOUT_DEFAULT, DEADLINE_DEFAULT, StoreError};

/// Whether a store may change the schema when it starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SchemaPolicy {
    /// The schema must exist: `palisade migrate` creates it.
    #[default]
    Require,
    /// The schema is created or brought up to date.
    Migrate,
}

/// Settings for the removal of expired rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// Pause between two steps; a hundredth of it while there is much to remove.
    pub pause: Duration,
    /// Rows that one step examines.
    pub step: u32,
}

/// Reason why a store could not be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The address cannot be used.
    #[error("`store.url` is not an address of a Postgres server: {0}")]
    Address(&'static str),
    /// TLS cannot be set up.
    #[error("TLS to Postgres cannot be set up: {0}")]
    Tls(String),
    /// The schema is older than this version, or not there.
    #[error(
        "the Postgres schema is at version {found}, {wanted} is needed; run `palisade migrate`"
    )]
    SchemaOld {
        /// Version that was found; 0 if there is none.
        found: u32,
        /// Version that this code needs.
        wanted: u32,
    },
    /// The schema belongs to a later version.
    #[error(
        "the Postgres schema is at version {found}, newer than the {wanted} known here; upgrade this node"
    )]
    SchemaNew {
        /// Version that was found.
        found: u32,
        /// Newest version that this code knows.
        wanted: u32,
    },
    /// The server is older than Postgres 15.
    #[error("Postgres 15 or later is needed")]
    ServerOld,
    /// Each transaction may run in another session of the server.
    #[error("{}", super::error::POOLED)]
    Pooled,
    /// The server could not be asked.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Configuration of a [`super::PostgresStore`]. Holds the password: it has no `Debug`.
#[derive(Clone)]
pub struct PostgresConfig {
    pub(super) address: Address,
    /// Longest time that a call may take, including its wait for a connection.
    pub deadline: Duration,
    /// Longest time that making a connection may take. Calls do not wait for all of it: a
    /// connection that takes longer than their deadline serves later calls.
    pub connect_timeout: Duration,
    /// Most connections.
    pub connections: usize,
    /// Most connections that make decisions at the same time.
    pub lanes: usize,
    /// Most decisions in one transaction.
    pub batch_max: usize,
    /// Decisions that may wait; more are refused as exhausted.
    pub queue_max: usize,
    /// Whether the schema may be changed on start.
    pub schema: SchemaPolicy,
    /// Certificates to trust instead of the system's, PEM.
    pub ca_file: Option<PathBuf>,
    /// Removal of expired rows; `None` leaves it to other nodes.
    pub sweep: Option<Sweep>,
}

impl PostgresConfig {
    /// Reads a `postgres://` address (or `key=value` pairs); everything else is at
    /// its default.
    ///
    /// # Errors
    /// [`StartError::Address`]; it never repeats the address.
    pub fn parse(url: &str) -> Result<Self, StartError> {
        let mut address =
            Address::from_str(url).map_err(|_| StartError::Address("it cannot be parsed"))?;
        if address.get_hosts().is_empty() && address.get_hostaddrs().is_empty() {
            return Err(StartError::Address("it names no host"));
        }
        if address.get_application_name().is_none() {
            address.application_name("palisade");
        }
        Ok(Self {
            address,
            deadline: DEADLINE_DEFAULT,
            connect_timeout: CONNECT_TIMEOUT_DEFAULT,
            connections: 12,
            lanes: 4,
            batch_max: 128,
            queue_max: 16_384,
            schema: SchemaPolicy::default(),
            ca_file: None,
            sweep: Some(Sweep {
                pause: Duration::from_secs(1),
                step: 1_000,
            }),
        })
    }

    /// Hosts and ports, for logs; nothing of user and password. An address that could be read in
    /// another way shows nothing: a password with a slash in it must not pass for a host.
    #[must_use]
    pub fn hosts(&self) -> String {
        let name = self.address.get_dbname().unwrap_or_default();
        if name.contains('@') {
            return "…".to_owned();
        }
        let ports = self.address.get_ports();
        let port = |at: usize| ports.get(at).or(ports.first()).copied().unwrap_or(5432);
        let hosts = self.address.get_hosts().iter().enumerate();
        let shown: Vec<String> = hosts
            .map(|(at, host)| match host {
                Host::Tcp(name) => format!("{name}:{}", port(at)),
                Host::Unix(path) => path.display().to_string(),
            })
            .collect();
        shown.join(",")
    }

    /// Whether connections are encrypted: if the address asks for it, or if the server is another
    /// machine and the address does not say `sslmode=disable`.
    pub(super) fn wants_tls(&self) -> bool {
        match self.address.get_ssl_mode() {
            SslMode::Disable => false,
            SslMode::Prefer => !self.address.get_hosts().iter().all(is_local),
            _ => true,
        }
    }
}

fn is_local(host: &Host) -> bool {
    match host {
        Host::Tcp(name) => {
            name == "localhost"
                || name
                    .parse()
                    .is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
        }
        Host::Unix(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_cannot_be_parsed_is_not_repeated() {
        for url in [
            "postgres://user:hunter2@host:port/db",
            "hunter2",
            "postgres:///hunter2",
        ] {
            let message = PostgresConfig::parse(url).err().unwrap().to_string();
            assert!(message.contains("store.url"), "{message}");
            assert!(!message.contains("hunter2"), "{message}");
        }
    }

    #[test]
    fn logs_show_where_a_database_is_and_nothing_of_who_asks() {
        let hosts = |url| PostgresConfig::parse(url).unwrap().hosts();
        assert_eq!(hosts("postgres://u:hunter2@db/p"), "db:5432");
        assert_eq!(hosts("postgres://u:hunter2@a:1,b:2/p"), "a:1,b:2");
        assert_eq!(hosts("host=/run/postgresql user=p"), "/run/postgresql");
        assert_eq!(hosts("postgres://u:123/hunter2@db/p"), "db:5432");
        assert_eq!(hosts("postgres://u:hunter2@3/4@db/p"), "…");
    }

    #[test]
    fn tls_is_used_off_the_machine_unless_declined() {
        let tls = |url| PostgresConfig::parse(url).unwrap().wants_tls();
        assert!(tls("postgres://p@db.internal/p"));
        assert!(tls("postgres://p@127.0.0.1/p?sslmode=require"));
        assert!(!tls("postgres://p@127.0.0.1/p"));
        assert!(!tls("postgres://p@db.internal/p?sslmode=disable"));
        assert!(!tls("host=/run/postgresql user=p"));
    }
}
