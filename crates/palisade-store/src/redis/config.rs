//! Configuration of the Redis store. A URL may hold a password: nothing here prints it.

use std::fmt;
use std::num::{NonZeroU8, NonZeroU32};
use std::sync::Arc;
use std::time::Duration;

use palisade_core::time::{Clock, Micros};
use redis::{
    Client, ClientTlsConfig, Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    TlsCertificates,
};
use tokio::time::Instant;

use crate::{CONNECT_TIMEOUT_DEFAULT, DEADLINE_DEFAULT, deadline};

/// Port of a node whose address names none.
const PORT_DEFAULT: u16 = 6379;
/// Most nodes that a cluster URL may name.
const NODES_MAX: usize = 64;
/// Default number of connections. A few threads keep a server busy; with more connections, fewer
/// decisions are sent together.
const CONNECTIONS_DEFAULT: NonZeroU8 = NonZeroU8::MIN.saturating_add(7);
/// Longest key prefix.
const PREFIX_BYTES_MAX: usize = 64;

/// Clock that decisions are judged by.
#[derive(Clone, Default)]
pub enum TimeSource {
    /// The server's own clock (F-CLOCK): a node whose clock jumps changes nothing.
    #[default]
    Store,
    /// An injected clock, for tests. Keys then outlive their state by up to an hour.
    Injected(Arc<dyn Clock>),
}

impl TimeSource {
    /// The instant to judge at; `None` leaves it to the server.
    pub(super) fn now(&self) -> Option<Micros> {
        match self {
            Self::Store => None,
            Self::Injected(clock) => Some(clock.now()),
        }
    }
}

/// Certificates in PEM, for `rediss://` and `rediss+cluster://`.
#[derive(Clone, Default)]
pub struct Tls {
    /// Authority to trust instead of the system's.
    pub root: Option<Vec<u8>>,
    /// The client's certificate chain and its private key.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
}

/// Address of Redis, and settings for its use.
#[derive(Clone)]
pub struct RedisConfig {
    /// `redis://[user:password@]host[:port][/db]`, `rediss://…` with TLS, or
    /// `redis+cluster://[user:password@]host[:port],host[:port]…` (`rediss+cluster://`).
    pub url: String,
    /// Longest time that a call may take, including its wait for a connection.
    pub deadline: Duration,
    /// Longest time that making a connection may take. Calls do not wait for all of it: a
    /// connection that takes longer than their deadline serves later calls.
    pub connect_timeout: Duration,
    /// Most connections to a single server: each thread that makes calls has its own, as long as
    /// there are no more threads than this; beyond that, threads share them. A cluster has one to
    /// each node.
    pub connections: NonZeroU8,
    /// Prefix of every key; letters, digits and `_.:-`.
    pub key_prefix: String,
    /// Clock that decisions are judged by.
    pub time: TimeSource,
    /// Replicas that must confirm a write before it counts as done. None by default: a counter
    /// lost in a failover admits a little more, once.
    pub wait_replicas: Option<NonZeroU32>,
    /// Certificates.
    pub tls: Option<Tls>,
}

impl RedisConfig {
    /// A configuration with everything but the URL at its default.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            deadline: DEADLINE_DEFAULT,
            connect_timeout: CONNECT_TIMEOUT_DEFAULT,
            connections: CONNECTIONS_DEFAULT,
            key_prefix: String::new(),
            time: TimeSource::Store,
            wait_replicas: None,
            tls: None,
        }
    }
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConfig")
            .field("deadline", &self.deadline)
            .field("connect_timeout", &self.connect_timeout)
            .field("connections", &self.connections)
            .field("wait_replicas", &self.wait_replicas)
            .finish_non_exhaustive()
    }
}

/// Reason why a configuration cannot be used. Never holds the URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RedisConfigError {
    /// The URL has another scheme.
    #[error(
        "`store.url` must begin with `redis://`, `rediss://`, `redis+cluster://` or `rediss+cluster://`"
    )]
    Scheme,
    /// The URL cannot be read.
    #[error(
        "`store.url` is not a Redis URL; write `redis://user:password@host:port/db` and \
         percent-encode special characters"
    )]
    Url,
    /// The cluster URL names no node, or too many.
    #[error("`store.url` must name between 1 and {NODES_MAX} cluster nodes, separated by commas")]
    Nodes,
    /// The cluster URL names a database: a cluster has only database 0.
    #[error("`store.url` of a cluster must not name a database")]
    ClusterDatabase,
    /// The prefix could change the hash tag or a pattern.
    #[error("`store.key_prefix` may hold at most {PREFIX_BYTES_MAX} letters, digits and `_.:-`")]
    Prefix,
    /// The deadline or the connection timeout is zero.
    #[error("`store.timeout` and `store.connect_timeout` must not be zero")]
    Deadline,
    /// The certificates cannot be used, or the URL has no TLS.
    #[error("the certificates of the store need a `rediss` URL and PEM files")]
    Tls,
}

/// Servers to connect to.
pub(super) enum Target {
    Single(Box<ConnectionInfo>),
    Cluster(Vec<ConnectionInfo>),
}

impl Target {
    /// Reads the servers from the URL.
    pub(super) fn of(config: &RedisConfig) -> Result<Self, RedisConfigError> {
        let (scheme, rest) = config
            .url
            .split_once("://")
            .ok_or(RedisConfigError::Scheme)?;
        let tls = config.tls.as_ref();
        if scheme.starts_with("rediss") {
            // Fails if the process has installed a provider already: then that one is used.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        match scheme {
            "redis" | "rediss" => {
                connection_info(scheme, rest, tls).map(|info| Self::Single(Box::new(info)))
            }
            "redis+cluster" => nodes("redis", rest, tls).map(Self::Cluster),
            "rediss+cluster" => nodes("rediss", rest, tls).map(Self::Cluster),
            _ => Err(RedisConfigError::Scheme),
        }
    }
}

fn nodes(
    scheme: &str,
    rest: &str,
    tls: Option<&Tls>,
) -> Result<Vec<ConnectionInfo>, RedisConfigError> {
    let (credentials, hosts) = match rest.rsplit_once('@') {
        Some((credentials, hosts)) => (format!("{credentials}@"), hosts),
        None => (String::new(), rest),
    };
    let hosts = hosts.strip_suffix('/').unwrap_or(hosts);
    if hosts.contains('/') {
        return Err(RedisConfigError::ClusterDatabase);
    }
    let hosts: Vec<&str> = hosts.split(',').filter(|host| !host.is_empty()).collect();
    if hosts.is_empty() || hosts.len() > NODES_MAX {
        return Err(RedisConfigError::Nodes);
    }
    hosts
        .iter()
        .map(|host| connection_info(scheme, &format!("{credentials}{host}"), tls))
        .collect()
}

fn connection_info(
    scheme: &str,
    rest: &str,
    tls: Option<&Tls>,
) -> Result<ConnectionInfo, RedisConfigError> {
    let info = format!("{scheme}://{rest}")
        .into_connection_info()
        .map_err(|_| RedisConfigError::Url)?;
    let Some(tls) = tls else {
        return Ok(info);
    };
    let certificates = TlsCertificates {
        client_tls: tls.client.clone().map(|(cert, key)| ClientTlsConfig {
            client_cert: cert,
            client_key: key,
        }),
        root_cert: tls.root.clone(),
    };
    let client = Client::build_with_tls(info, certificates).map_err(|_| RedisConfigError::Tls)?;
    Ok(client.get_connection_info().clone())
}

/// Connection settings for another address of the cluster, with the credentials and certificates
/// of `template`.
pub(super) fn at_address(template: &ConnectionInfo, address: &str) -> Option<ConnectionInfo> {
    let (host, port) = address.rsplit_once(':').map_or_else(
        || Some((address, PORT_DEFAULT)),
        |(host, port)| Some((host, port.parse().ok()?)),
    )?;
    let host = host.trim_matches(['[', ']']).to_owned();
    let addr = match template.addr() {
        ConnectionAddr::TcpTls {
            insecure,
            tls_params,
            ..
        } => ConnectionAddr::TcpTls {
            host,
            port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        },
        _ => ConnectionAddr::Tcp(host, port),
    };
    Some(template.clone().set_addr(addr))
}

/// The address of a node as the cluster writes it.
pub(super) fn address_of(info: &ConnectionInfo) -> String {
    match info.addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            format!("{host}:{port}")
        }
        _ => String::new(),
    }
}

/// Checks the settings whose types allow invalid values.
pub(super) fn check(config: &RedisConfig) -> Result<(), RedisConfigError> {
    let prefix = config.key_prefix.as_bytes();
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.:-".contains(byte);
    if prefix.len() > PREFIX_BYTES_MAX || !prefix.iter().all(allowed) {
        return Err(RedisConfigError::Prefix);
    }
    if config.deadline.is_zero() || config.connect_timeout.is_zero() {
        return Err(RedisConfigError::Deadline);
    }
    Ok(())
}

/// Number of replicas that must confirm a write.
#[derive(Clone, Copy, Default)]
pub(super) struct Replicas(pub(super) Option<NonZeroU32>);

impl Replicas {
    /// The command that waits for the replicas, until a little before `due`.
    pub(super) fn wait(self, due: Instant) -> Option<Cmd> {
        let count = self.0?.get();
        let left = due.saturating_duration_since(deadline::now()).mul_f64(0.8);
        // WAIT 0 would wait for ever.
        let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1);
        let mut cmd = redis::cmd("WAIT");
        cmd.arg(count).arg(left_ms);
        Some(cmd)
    }

    pub(super) fn are_met(self, confirmed: i64) -> bool {
        self.0
            .is_none_or(|count| confirmed >= i64::from(count.get()))
    }
}

/// Whether a call changes anything: only then do replicas have to confirm it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Effect {
    Reads,
    Writes,
}

/// Settings that every call needs.
#[derive(Clone, Copy)]
pub(super) struct Options {
    pub(super) deadline: Duration,
    pub(super) connect_timeout: Duration,
    pub(super) replicas: Replicas,
}

impl Options {
    /// Replicas that must confirm a call with this effect.
    pub(super) fn replicas_of(&self, effect: Option<Effect>) -> Replicas {
        match effect {
            Some(Effect::Writes) => self.replicas,
            Some(Effect::Reads) | None => Replicas::default(),
        }
    }

    /// Deadline of a call that begins now.
    pub(super) fn due(&self) -> Instant {
        deadline::after(self.deadline)
    }
}
