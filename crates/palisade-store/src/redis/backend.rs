//! One server or a cluster: the same calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use redis::Value;
use tokio::time::Instant;

use super::batch::Batcher;
use super::cluster::Cluster;
use super::config::{Effect, Options, RedisConfig, RedisConfigError, Target};
use super::error::Fault;
use super::link::Link;
use super::script::Call;

/// Script calls in flight on each connection.
const CALLS_PER_CONNECTION: usize = 2;

/// A single server.
pub(super) struct Single {
    links: Vec<Arc<Link>>,
    turn: AtomicUsize,
    pub(super) batcher: Arc<Batcher>,
}

/// Where the data is.
pub(super) enum Backend {
    Single(Single),
    Cluster(Arc<Cluster>),
}

impl Backend {
    pub(super) fn new(config: &RedisConfig, options: Options) -> Result<Self, RedisConfigError> {
        let info = match Target::of(config)? {
            Target::Cluster(seeds) => return Ok(Self::Cluster(Cluster::new(seeds, options))),
            Target::Single(info) => info,
        };
        let links = (0..config.connections.get())
            .map(|_| Link::new((*info).clone(), options.deadline))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|_| RedisConfigError::Url)?;
        let lanes = std::iter::repeat_n(&links, CALLS_PER_CONNECTION)
            .flatten()
            .map(Arc::clone)
            .collect();
        Ok(Self::Single(Single {
            links,
            turn: AtomicUsize::new(0),
            batcher: Batcher::new(lanes, options),
        }))
    }

    /// Calls a script where its keys are.
    pub(super) async fn script(
        &self,
        call: &Call,
        effect: Effect,
        options: &Options,
        due: Instant,
    ) -> Result<Value, Fault> {
        let replicas = options.replicas_of(Some(effect));
        match self {
            Self::Single(single) => single.link().script(call, replicas, due).await,
            Self::Cluster(cluster) => cluster.script(call, replicas, due).await,
        }
    }

    /// A connection to every server that takes writes, in a stable order.
    pub(super) async fn masters(&self, due: Instant) -> Result<Vec<Arc<Link>>, Fault> {
        match self {
            Self::Single(single) => Ok(vec![Arc::clone(single.link())]),
            Self::Cluster(cluster) => cluster.masters(due).await,
        }
    }

    /// A master did not answer: it may have been replaced.
    pub(super) fn doubt_masters(&self) {
        if let Self::Cluster(cluster) = self {
            cluster.look_soon();
        }
    }
}

impl Single {
    fn link(&self) -> &Arc<Link> {
        let turn = self.turn.fetch_add(1, Relaxed);
        &self.links[turn % self.links.len()]
    }
}
