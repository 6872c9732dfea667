//! Decisions of concurrent requests travel together.
//!
//! While a lane is free, a decision is sent as soon as the thread has dealt with what it
//! has at hand: a lone request waits for nothing, and what arrived together goes together.
//! While every lane is waiting for an answer, decisions queue, and the next free lane
//! takes up to [`DECISIONS_MAX`] of them in one script call: the server's cost per call is
//! shared.

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashTable};
use parking_lot::Mutex;
use redis::Value;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::codec::{Answers, Decided, Decision, Expected, Limit};
use super::config::{Effect, Options};
use super::error::misread;
use super::link::Link;
use super::script::{CHARGE, Call};
use crate::{StoreError, deadline};

/// Script calls in flight on one connection: while the server makes one, the next arrives.
const LANES: usize = 2;
/// Most decisions in one script call.
const DECISIONS_MAX: usize = 32;
/// Most keys in one script call, unless a single decision has more: a bound on how
/// long the server is held up.
const KEYS_MAX: usize = 160;
/// Most decisions that wait for one connection.
const QUEUE_MAX: usize = 4_096;

/// Decisions that are made in this order and in one call, and who waits for them.
struct Job {
    decisions: Vec<Decision>,
    effect: Effect,
    reply: oneshot::Sender<Result<Vec<Decided>, StoreError>>,
}

impl Job {
    fn keys(&self) -> usize {
        let buckets = |decision: &Decision| decision.buckets.len();
        self.decisions.iter().map(buckets).sum()
    }
}

struct Queue {
    jobs: VecDeque<Job>,
    /// Lanes that nobody drives.
    free: usize,
    /// A lane has been called and has not looked yet: whoever comes until then goes along.
    is_called: bool,
}

impl Queue {
    /// The next call's worth of jobs. Nobody waits for a job whose caller has gone.
    fn take(&mut self) -> Vec<Job> {
        let mut taken = Vec::new();
        let (mut decisions, mut keys) = (0, 0);
        while decisions < DECISIONS_MAX
            && let Some(job) = self.jobs.pop_front()
        {
            if job.reply.is_closed() {
                continue;
            }
            decisions += job.decisions.len();
            keys += job.keys();
            let is_full = decisions > DECISIONS_MAX || keys > KEYS_MAX;
            if is_full && !taken.is_empty() {
                self.jobs.push_front(job);
                break;
            }
            taken.push(job);
        }
        taken
    }
}

/// Gathers decisions for one connection.
pub(super) struct Batcher {
    link: Arc<Link>,
    queue: Mutex<Queue>,
    options: Options,
}

/// A lane in use. Should its task be ended from outside, the lane is free again.
struct Lane {
    batcher: Arc<Batcher>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Called,
    Driving,
    Free,
}

impl Stage {
    fn enter(&mut self, next: Self, queue: &mut Queue) {
        let left = std::mem::replace(self, next);
        if left == Self::Called {
            queue.is_called = false;
        }
        if next == Self::Free && left != Self::Free {
            queue.free += 1;
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.stage
            .enter(Stage::Free, &mut self.batcher.queue.lock());
    }
}

impl Batcher {
    pub(super) fn new(link: Arc<Link>, options: Options) -> Arc<Self> {
        Arc::new(Self {
            link,
            queue: Mutex::new(Queue {
                jobs: VecDeque::new(),
                free: LANES,
                is_called: false,
            }),
            options,
        })
    }

    /// The connection.
    pub(super) const fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Decisions that wait.
    pub(super) fn depth(&self) -> usize {
        self.queue.lock().jobs.len()
    }

    /// Has decisions made, in this order and in one call. Dropping the future is safe.
    pub(super) async fn decide(
        self: &Arc<Self>,
        decisions: Vec<Decision>,
        effect: Effect,
        due: Instant,
    ) -> Result<Vec<Decided>, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.submit(Job {
            decisions,
            effect,
            reply,
        })?;
        match tokio::time::timeout_at(due, answer).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(StoreError::Unreachable(
                "the connection's task ended".into(),
            )),
            Err(_) => Err(StoreError::TimedOut),
        }
    }

    fn submit(self: &Arc<Self>, job: Job) -> Result<(), StoreError> {
        let mut queue = self.queue.lock();
        if queue.jobs.len() >= QUEUE_MAX {
            return Err(StoreError::Exhausted(
                "too many decisions wait for the server".into(),
            ));
        }
        queue.jobs.push_back(job);
        let lane = self.call(&mut queue);
        // Where the runtime is ending, the lane is dropped at once, which takes the lock.
        drop(queue);
        if let Some(lane) = lane {
            lane.start();
        }
        Ok(())
    }

    /// A lane for what waits, if one is free and none is on its way.
    fn call(self: &Arc<Self>, queue: &mut Queue) -> Option<Lane> {
        if queue.jobs.is_empty() || queue.free == 0 || queue.is_called {
            return None;
        }
        queue.free -= 1;
        queue.is_called = true;
        Some(Lane {
            batcher: Arc::clone(self),
            stage: Stage::Called,
        })
    }
}

impl Lane {
    fn start(self) {
        tokio::spawn(self.drive());
    }

    /// Sends what has queued until nothing is left.
    async fn drive(mut self) {
        while let Some(jobs) = self.next() {
            run(&self.batcher.link, &self.batcher.options, jobs).await;
        }
    }

    /// The next call's worth; with nothing left the lane is free. What is more than that
    /// is another lane's.
    fn next(&mut self) -> Option<Vec<Job>> {
        let Self { batcher, stage } = self;
        let mut queue = batcher.queue.lock();
        stage.enter(Stage::Driving, &mut queue);
        let jobs = queue.take();
        if jobs.is_empty() {
            // Under the lock: a decision queued now finds this lane free.
            stage.enter(Stage::Free, &mut queue);
            return None;
        }
        let more = batcher.call(&mut queue);
        drop(queue);
        if let Some(lane) = more {
            lane.start();
        }
        Some(jobs)
    }
}

async fn run(link: &Arc<Link>, options: &Options, jobs: Vec<Job>) {
    let mut waiting = Vec::with_capacity(jobs.len());
    let effect = jobs.iter().map(|job| job.effect).max();
    let mut decisions = Vec::with_capacity(jobs.len());
    for job in jobs {
        waiting.push((job.reply, job.decisions.len()));
        decisions.extend(job.decisions);
    }
    let (call, expected) = charge_call(decisions.into_iter());
    let due = deadline::after(options.deadline);
    let result = match link.script(&call, options.replicas_of(effect), due).await {
        Ok(value) => decided(value, &expected),
        Err(fault) => Err(fault.into()),
    };
    match result {
        Ok(decided) => {
            let mut decided = decided.into_iter();
            for (reply, count) in waiting {
                let _ = reply.send(Ok(decided.by_ref().take(count).collect()));
            }
        }
        Err(error) => {
            for (reply, _) in waiting {
                let _ = reply.send(Err(error.clone()));
            }
        }
    }
}

/// A call for these decisions, and what it is to answer. A key that several have is sent
/// once, so that each sees what the ones before it did; a limit that several have, so that
/// it is read once.
pub(super) fn charge_call(decisions: impl Iterator<Item = Decision>) -> (Call, Vec<Expected>) {
    let mut keys = Places::for_about(decisions.size_hint().0);
    let mut limits: Vec<Limit> = Vec::new();
    let (mut asked, mut expected) = (Vec::new(), Vec::new());
    for decision in decisions {
        expected.push(decision.write(&mut asked, |key, limit| {
            (keys.place_of(key), place_of(&mut limits, limit))
        }));
    }
    let args = vec![limits.concat(), asked];
    (Call::new(&CHARGE).keys(keys.keys).args(args), expected)
}

/// Keys in order, each once.
struct Places {
    keys: Vec<String>,
    /// Their hashes, which are not made again when the table grows, and where they stand.
    by_hash: HashTable<(u64, usize)>,
    /// Nobody chooses keys: they are digests by a secret.
    hasher: DefaultHashBuilder,
}

impl Places {
    fn for_about(count: usize) -> Self {
        Self {
            keys: Vec::with_capacity(count),
            by_hash: HashTable::with_capacity(count),
            hasher: DefaultHashBuilder::default(),
        }
    }

    /// Where `key` stands, from 1.
    fn place_of(&mut self, key: String) -> u16 {
        let keys = &mut self.keys;
        let hash = self.hasher.hash_one(&key);
        let is_same = |(_, place): &(u64, usize)| keys[*place] == key;
        if let Some((_, known)) = self.by_hash.find(hash, is_same) {
            return number(known + 1);
        }
        keys.push(key);
        let place = keys.len() - 1;
        self.by_hash
            .insert_unique(hash, (hash, place), |(hash, _)| *hash);
        number(place + 1)
    }
}

/// Few limits are in use at a time: a search is cheaper than a map.
fn place_of(limits: &mut Vec<Limit>, limit: Limit) -> u16 {
    let known = limits.iter().position(|known| *known == limit);
    let place = known.unwrap_or_else(|| {
        limits.push(limit);
        limits.len() - 1
    });
    number(place + 1)
}

/// Calls are bounded far below 2¹⁶.
fn number(place: usize) -> u16 {
    u16::try_from(place).unwrap_or(u16::MAX)
}

/// The answers to a charge call.
pub(super) fn decided(value: Value, expected: &[Expected]) -> Result<Vec<Decided>, StoreError> {
    let Value::BulkString(bytes) = value else {
        return Err(misread("charge"));
    };
    let mut answers = Answers::new(&bytes)?;
    let decided = expected.iter().map(|expected| answers.next(*expected));
    let decided = decided.collect::<Result<_, StoreError>>()?;
    answers.end()?;
    Ok(decided)
}
