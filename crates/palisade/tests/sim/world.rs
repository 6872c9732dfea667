//! What every node shares: the store's state, the links to it, and who asked what.

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

/// How a node reaches the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    Up,
    /// Answers around the deadline.
    Slow,
    /// Connections are refused.
    Refused,
    /// Requests vanish.
    Silent,
    /// Requests arrive and are done; the answers vanish.
    AnswersLost,
    /// Requests arrive and are done; then the connection breaks.
    Breaks,
    /// The store takes no more.
    Full,
    /// Any of the above, each time anew.
    Flaky,
}

/// What becomes of one call; delays in milliseconds.
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
    /// Buckets of receipts that were used.
    pub(crate) marks: HashSet<Digest>,
    pub(crate) records: BTreeMap<RecordKey, Stored>,
    /// When the store lost its data.
    pub(crate) losses: Vec<Micros>,
    pub(crate) timetables: Vec<Timetables>,
    pub(crate) violations: Vec<String>,
    /// What each node knows of the records.
    pub(crate) heard: Vec<Heard>,
    /// Commits write one record after the other, as a Redis Cluster does.
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

/// A call of a client that is on its way through an engine.
pub(crate) struct Command {
    pub(crate) policy: Policy,
    /// The client asked for a refund.
    pub(crate) refunds: bool,
    pub(crate) log: Mutex<CommandLog>,
}

#[derive(Default)]
pub(crate) struct CommandLog {
    /// The breaker's leave for the running call.
    pub(crate) leave: Leave,
    /// A call that counts for the breaker failed, or was not answered in its time.
    pub(crate) failed: bool,
    /// A call was given up before the store had its time: what became of it is not known.
    pub(crate) cut: bool,
    /// When the run of calls began that the next one belongs to; a lost swap ends it.
    pub(crate) began: Option<Micros>,
    pub(crate) calls: u32,
    /// What the store was asked to charge, admitted or not.
    pub(crate) asked: Vec<Vec<(Digest, BucketSpec)>>,
    /// Charges that the store admitted and applied: each with its buckets' costs.
    pub(crate) charged: Vec<Vec<(Digest, u32)>>,
    pub(crate) loaded: Option<(Micros, Found)>,
    /// What each commit wrote.
    pub(crate) committed: Vec<Vec<RecordWrite>>,
    /// A commit wrote a part of what it should.
    pub(crate) parted: bool,
    /// The last commit wrote all of it.
    pub(crate) is_written: bool,
    /// The records were read again since: there may be nothing left to write.
    pub(crate) is_read_again: bool,
}

/// What a load gave.
pub(crate) type Found = HashMap<RecordKey, Option<Stored>>;

/// The last that a node heard of each record, and at which instant of the store.
pub(crate) type Heard = HashMap<RecordKey, (Micros, Option<Stored>)>;

/// What a node knows of these records, as if it had just read them all.
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
        // Clocks of nodes are up to a year off; only the store's own one counts.
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

    /// What the timetable says of a policy on a node now.
    pub(crate) fn expected(&self, node: usize, policy: Policy) -> Expected {
        let now = self.node_now(node);
        self.shared.lock().timetables[node].of(policy).mode(now)
    }

    /// Registers a call and draws its fate.
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
