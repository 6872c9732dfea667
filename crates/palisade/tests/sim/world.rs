//! State that all nodes share: the store, the links to it, and the calls in progress.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use palisade::core::Digest;
use palisade::core::failure::Policy;
use palisade::core::limit::{BucketSpec, State};
use palisade::core::record::{RecordKey, RecordWrite};
use palisade::core::time::{Clock, Micros};
use parking_lot::Mutex;

use crate::breakers::{Expected, Leave, Timetables};
use crate::clock::SimClock;
use crate::planted::Planted;
use crate::rng::Rng;

/// State of the link between a node and the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    Up,
    /// Answers arrive around the deadline.
    Slow,
    /// Connections are refused.
    Refused,
    /// Calls vanish.
    Silent,
    /// Calls are executed, and their answers vanish.
    AnswersLost,
    /// Calls are executed, and then the connection breaks.
    Breaks,
    /// The store refuses writes because it is full.
    Full,
    /// A random one of the above for each call.
    Flaky,
}

/// The fate of one call; delays in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fate {
    Done { there: u64, back: u64 },
    Refused { after: u64 },
    Full { after: u64 },
    Vanishes,
    AnswerVanishes { there: u64 },
    Breaks { there: u64 },
}

#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) bytes: Vec<u8>,
    pub(crate) revision: u64,
    pub(crate) expires_at: Micros,
    pub(crate) is_corrupt: bool,
}

pub(crate) struct Shared {
    pub(crate) rng: Rng,
    pub(crate) links: Vec<Link>,
    pub(crate) buckets: HashMap<Digest, State>,
    /// Buckets that mark used receipts.
    pub(crate) marks: HashSet<Digest>,
    pub(crate) records: BTreeMap<RecordKey, Stored>,
    /// Instants at which the store lost its data.
    pub(crate) losses: Vec<Micros>,
    pub(crate) timetables: Vec<Timetables>,
    pub(crate) violations: Vec<String>,
    /// Each node's knowledge of the records.
    pub(crate) heard: Vec<Heard>,
    /// Whether commits write one record after the other, as on a Redis Cluster.
    pub(crate) is_cluster: bool,
    pub(crate) planted: Option<Planted>,
}

impl Shared {
    pub(crate) fn is_planted(&self, what: Planted) -> bool {
        self.planted == Some(what)
    }
}

pub(crate) struct World {
    pub(crate) clock: SimClock,
    pub(crate) node_clocks: Vec<SimClock>,
    pub(crate) shared: Mutex<Shared>,
}

/// A client's call in progress.
pub(crate) struct Command {
    pub(crate) policy: Policy,
    /// Whether the client asked for a refund.
    pub(crate) refunds: bool,
    pub(crate) log: Mutex<CommandLog>,
}

#[derive(Default)]
pub(crate) struct CommandLog {
    /// The breaker's permission for the running call.
    pub(crate) leave: Leave,
    /// A call that counts for the breaker failed or was not answered in time.
    pub(crate) failed: bool,
    /// A call was dropped before the store had its time, so its outcome is unknown.
    pub(crate) cut: bool,
    /// Start of the series to which the next call belongs. A lost swap ends a series.
    pub(crate) began: Option<Micros>,
    pub(crate) calls: u32,
    /// The charges that were sent to the store, admitted or not.
    pub(crate) asked: Vec<Vec<(Digest, BucketSpec)>>,
    /// The charges that the store admitted and applied, each with its buckets' costs.
    pub(crate) charged: Vec<Vec<(Digest, u64)>>,
    pub(crate) loaded: Option<(Micros, Found)>,
    /// The records that each commit wrote.
    pub(crate) committed: Vec<Vec<RecordWrite>>,
    /// Whether a commit wrote only a part of its records.
    pub(crate) parted: bool,
    /// Whether the last commit wrote all of its records.
    pub(crate) is_written: bool,
    /// Whether the records were read again since then, so that nothing may be left to write.
    pub(crate) is_read_again: bool,
}

/// The result of a load.
pub(crate) type Found = HashMap<RecordKey, Option<Stored>>;

/// The latest state of each record that a node knows, with the store's instant of it.
pub(crate) type Heard = HashMap<RecordKey, (Micros, Option<Stored>)>;

/// A node's knowledge of these records, as if it had just read all of them.
pub(crate) fn recalled(
    heard: &Heard,
    keys: impl Iterator<Item = RecordKey>,
) -> Option<(Micros, Found)> {
    let now = keys.filter_map(|key| Some(heard.get(&key)?.0)).max()?;
    let found = heard
        .iter()
        .map(|(key, (_, stored))| (*key, stored.clone()));
    Some((now, found.collect()))
}

tokio::task_local! {
    pub(crate) static COMMAND: Arc<Command>;
}

pub(crate) fn running_command() -> Option<Arc<Command>> {
    COMMAND.try_with(Arc::clone).ok()
}

impl World {
    pub(crate) fn new(rng: &mut Rng, nodes: usize, planted: Option<Planted>) -> Self {
        let hour = 3_600_000_000;
        // Clocks of nodes are wrong by up to a year; only the store's clock matters.
        let start = Micros(1_772_409_600_000_000 + rng.below(hour));
        let year = 365 * 24 * hour;
        let skewed = |rng: &mut Rng| match rng.below(3) {
            0 => start,
            1 => start.plus(rng.below(year)),
            _ => start.minus(rng.below(year)),
        };
        Self {
            clock: SimClock::starting_at(start),
            node_clocks: (0..nodes)
                .map(|_| SimClock::starting_at(skewed(rng)))
                .collect(),
            shared: Mutex::new(Shared {
                rng: rng.fork(),
                links: vec![Link::Up; nodes],
                buckets: HashMap::new(),
                marks: HashSet::new(),
                records: BTreeMap::new(),
                losses: Vec::new(),
                timetables: vec![Timetables::new(); nodes],
                violations: Vec::new(),
                heard: vec![Heard::new(); nodes],
                is_cluster: rng.chance(25),
                planted,
            }),
        }
    }

    pub(crate) fn now(&self) -> Micros {
        self.clock.now()
    }

    pub(crate) fn node_now(&self, node: usize) -> Micros {
        self.node_clocks[node].now()
    }

    pub(crate) fn violated(&self, property: &str, detail: &str) {
        let violation = format!("{property}: {detail}");
        self.shared.lock().violations.push(violation);
    }

    /// The expected mode of a policy on a node now, by the timetable.
    pub(crate) fn expected(&self, node: usize, policy: Policy) -> Expected {
        let now = self.node_now(node);
        self.shared.lock().timetables[node].of(policy).mode(now)
    }

    /// Registers a call and chooses its fate at random.
    pub(crate) fn fate(&self, node: usize) -> Fate {
        let mut shared = self.shared.lock();
        let mut link = shared.links[node];
        let rng = &mut shared.rng;
        if link == Link::Flaky {
            let any = [
                Link::Up,
                Link::Slow,
                Link::Refused,
                Link::Silent,
                Link::AnswersLost,
                Link::Breaks,
                Link::Full,
            ];
            link = if rng.chance(60) {
                Link::Up
            } else {
                rng.pick(&any)
            };
        }
        let quick = |rng: &mut Rng| if rng.chance(80) { 0 } else { rng.between(1, 4) };
        match link {
            Link::Up | Link::Flaky => Fate::Done {
                there: quick(rng),
                back: quick(rng),
            },
            Link::Slow => Fate::Done {
                there: rng.between(0, 70),
                back: rng.between(0, 70),
            },
            Link::Refused => Fate::Refused { after: quick(rng) },
            Link::Silent => Fate::Vanishes,
            Link::AnswersLost => Fate::AnswerVanishes {
                there: rng.between(0, 130),
            },
            Link::Breaks => Fate::Breaks { there: quick(rng) },
            Link::Full => Fate::Full { after: quick(rng) },
        }
    }
}
