//! One server or a cluster, with the same calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use redis::{RedisResult, Value};
use tokio::time::Instant;

use super::batch::Batcher;
use super::cluster::Cluster;
use super::config::{Effect, Options, RedisConfig, RedisConfigError, Target};
use super::error::Fault;
use super::link::Link;
use super::script::Call;
use super::seat;

/// A single server: its connections, each with the decisions that wait for it. There is at least
/// one.
pub(super) struct Single {
    seats: Vec<Arc<Batcher>>,
    turn: AtomicUsize,
}

/// Location of the data.
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
        let seat = |_| {
            let link = Link::new((*info).clone(), &options)?;
            Ok(Batcher::new(link, options))
        };
        let seats = (0..config.connections.get()).map(seat);
        let seats = seats.collect::<RedisResult<Vec<_>>>();
        Ok(Self::Single(Single {
            seats: seats.map_err(|_| RedisConfigError::Url)?,
            turn: AtomicUsize::new(0),
        }))
    }

    /// Calls a script on the server that has its keys.
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

    /// Calls a script that only reads and is repeated at intervals. On a single server every
    /// connection gets its turn: one that broke while it was unused is given up here, so that its
    /// own thread makes a new one instead of failing on it.
    pub(super) async fn script_in_turn(
        &self,
        call: &Call,
        options: &Options,
        due: Instant,
    ) -> Result<Value, Fault> {
        let Self::Single(single) = self else {
            return self.script(call, Effect::Reads, options, due).await;
        };
        let replicas = options.replicas_of(Some(Effect::Reads));
        single.link_in_turn().script(call, replicas, due).await
    }

    /// A connection to every server that takes writes, in a stable order.
    pub(super) async fn masters(&self, due: Instant) -> Result<Vec<Arc<Link>>, Fault> {
        match self {
            Self::Single(single) => Ok(vec![Arc::clone(single.link_in_turn())]),
            Self::Cluster(cluster) => cluster.masters(due).await,
        }
    }

    /// Opens the connections that the calling thread uses.
    pub(super) async fn connect(&self, due: Instant) -> Result<(), Fault> {
        match self {
            Self::Single(single) => single.link().ready(due).await,
            Self::Cluster(cluster) => cluster.ready(due).await,
        }
    }

    /// Notes that a master did not answer: it may have been replaced.
    pub(super) fn doubt_masters(&self) {
        if let Self::Cluster(cluster) = self {
            cluster.look_soon();
        }
    }
}

impl Single {
    /// Queue of the calling thread, whose decisions are sent together.
    pub(super) fn batcher(&self) -> &Arc<Batcher> {
        seat::own(&self.seats)
    }

    /// Number of waiting decisions, of all threads.
    pub(super) fn depth(&self) -> usize {
        self.seats.iter().map(|batcher| batcher.depth()).sum()
    }

    fn link(&self) -> &Arc<Link> {
        self.batcher().link()
    }

    /// The next of the connections that are up, or the thread's own if none is. One that is down
    /// is left to its own thread: the thread that makes a connection drives it.
    fn link_in_turn(&self) -> &Arc<Link> {
        let links = self.seats.iter().map(|batcher| batcher.link());
        let up: Vec<&Arc<Link>> = links.filter(|link| link.is_up()).collect();
        let turn = self.turn.fetch_add(1, Relaxed).checked_rem(up.len());
        turn.map_or_else(|| self.link(), |turn| up[turn])
    }
}
