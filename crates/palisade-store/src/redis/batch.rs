//! Sends the decisions of concurrent requests together.
//!
//! While a lane is free, a decision is sent as soon as the thread has run the tasks that are
//! ready: a lone request waits for nothing, and requests that arrive together are sent together.
//! While every lane is waiting for an answer, decisions queue, and the next free lane takes up to
//! [`DECISIONS_MAX`] of them in one script call, so that they share the server's cost per call.

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

/// Script calls in flight on one connection: while the server executes one, the next arrives.
const LANES: usize = 2;
/// Most decisions in one script call.
const DECISIONS_MAX: usize = 32;
/// Most keys in one script call, unless a single decision has more: it bounds the time for which a
/// call blocks the server.
const KEYS_MAX: usize = 160;
/// Most decisions that wait for one connection.
const QUEUE_MAX: usize = 4_096;

/// Decisions to be made in this order and in one call, and the channel for their answer.
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
    /// Lanes without a task.
    free: usize,
    /// True if a lane was started and has not taken its jobs yet: decisions that come until then
    /// are sent with them.
    is_called: bool,
}

impl Queue {
    /// Takes the jobs of the next call, and drops those whose callers have gone.
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
            // A job that exceeds the bounds alone goes alone.
            if is_full && !taken.is_empty() {
                self.jobs.push_front(job);
                break;
            }
            taken.push(job);
        }
        taken
    }
}

/// Collects decisions for one connection.
pub(super) struct Batcher {
    link: Arc<Link>,
    queue: Mutex<Queue>,
    options: Options,
}

/// A lane in use. If its task is cancelled, the lane is free again.
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

    /// Number of waiting decisions.
    pub(super) fn depth(&self) -> usize {
        self.queue.lock().jobs.len()
    }

    /// Makes decisions in this order and in one call. Dropping the future is safe.
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
        // If the runtime is shutting down, the lane is dropped at once, which takes the lock.
        drop(queue);
        if let Some(lane) = lane {
            lane.start();
        }
        Ok(())
    }

    /// Takes a lane for the waiting jobs, if one is free and none has just been started.
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

    /// Takes the jobs of the next call; without any, the lane is free. Jobs beyond that are left
    /// to another lane.
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
    // One write among the decisions is enough for the replicas to have to confirm the call.
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

/// Builds a call for these decisions, and the expected form of its answer. A key of several
/// decisions is sent once, so that each decision sees the effect of those before it; a limit of
/// several decisions is sent once, so that it is parsed once.
pub(super) fn charge_call(decisions: impl Iterator<Item = Decision>) -> (Call, Vec<Expected>) {
    let mut keys = Places::for_about(decisions.size_hint().0);
    let mut limits: Vec<Limit> = Vec::new();
    let (mut asked, mut expected) = (Vec::new(), Vec::new());
    for decision in decisions {
        expected.push(decision.write(&mut asked, |key, limit| {
            let limit = limit.map_or(0, |limit| place_of(&mut limits, limit));
            (keys.place_of(key), limit)
        }));
    }
    let args = vec![limits.concat(), asked];
    (Call::new(&CHARGE).keys(keys.keys).args(args), expected)
}

/// Keys in order, each once.
struct Places {
    keys: Vec<String>,
    /// Position of each key, with its hash, so that no key is hashed again when the table grows.
    by_hash: HashTable<(u64, usize)>,
    /// A fast hash is enough: keys are digests under a secret, which no client can choose.
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

    /// Position of `key`, from 1; adds the key if it is new.
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

/// Position of `limit`, from 1. Few limits are in use at a time: a search is cheaper than a map.
fn place_of(limits: &mut Vec<Limit>, limit: Limit) -> u16 {
    let known = limits.iter().position(|known| *known == limit);
    let place = known.unwrap_or_else(|| {
        limits.push(limit);
        limits.len() - 1
    });
    number(place + 1)
}

/// A position as it is sent; calls are bounded far below 2¹⁶.
fn number(place: usize) -> u16 {
    u16::try_from(place).unwrap_or(u16::MAX)
}

/// Reads the answer to a charge call.
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
