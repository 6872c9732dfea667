//! The queue that collects decisions. A lone decision is sent at once; those that come while every
//! lane is busy are sent together, in one transaction, when a lane is free.

use std::collections::VecDeque;
use std::sync::Arc;

use palisade_core::time::{Clock, Micros};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::batch::{Answers, Ask, Batch, DECIDE, Known};
use super::config::PostgresConfig;
use super::connect::{Connections, Phase};
use super::error;
use crate::{ChargeReadings, StoreError};

/// Buckets in one transaction at most.
const CHARGES_MAX: usize = 1_024;

/// Attempts at a transaction that loses against expiry.
const ATTEMPTS_MAX: usize = 4;

struct Job {
    ask: Ask,
    answer: oneshot::Sender<Result<ChargeReadings, StoreError>>,
    phase: Arc<Phase>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    lanes: usize,
}

pub(super) struct Lanes {
    connections: Arc<Connections>,
    clock: Option<Arc<dyn Clock>>,
    queue: Mutex<Queue>,
    known: Known,
    lanes_max: usize,
    batch_max: usize,
    queue_max: usize,
}

impl Lanes {
    pub(super) fn new(
        config: &PostgresConfig,
        connections: Arc<Connections>,
        clock: Option<Arc<dyn Clock>>,
    ) -> Self {
        Self {
            connections,
            clock,
            queue: Mutex::default(),
            known: Known::new(),
            lanes_max: config.lanes.max(1),
            batch_max: config.batch_max.max(1),
            queue_max: config.queue_max.max(1),
        }
    }

    /// Decisions that wait for a lane.
    pub(super) fn depth(&self) -> usize {
        self.queue.lock().jobs.len()
    }

    /// Makes a decision, together with others that wait.
    pub(super) async fn decide(self: &Arc<Self>, ask: Ask) -> Result<ChargeReadings, StoreError> {
        let phase = Arc::new(Phase::default());
        let (answer, answered) = oneshot::channel();
        self.enqueue(Job {
            ask,
            answer,
            phase: Arc::clone(&phase),
        })?;
        match tokio::time::timeout(self.connections.deadline, answered).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(StoreError::Unreachable("the call was abandoned".to_owned())),
            Err(_) => Err(phase.too_late()),
        }
    }

    fn enqueue(self: &Arc<Self>, job: Job) -> Result<(), StoreError> {
        let mut queue = self.queue.lock();
        if queue.jobs.len() >= self.queue_max {
            return Err(StoreError::Exhausted("the queue is full".to_owned()));
        }
        queue.jobs.push_back(job);
        if queue.lanes < self.lanes_max {
            queue.lanes += 1;
            drop(queue);
            // In a task of its own: a caller that gives up must not cancel the decisions of
            // others.
            tokio::spawn(Arc::clone(self).lane());
        }
        Ok(())
    }

    /// Takes the next jobs whose callers still wait. Without any, the lane ends under the same
    /// lock, so that the next job starts another.
    fn take(&self) -> Option<Vec<Job>> {
        let mut queue = self.queue.lock();
        let mut taken = Vec::new();
        let mut charges = 0;
        while taken.len() < self.batch_max
            && let Some(job) = queue.jobs.pop_front()
        {
            if job.answer.is_closed() {
                continue;
            }
            charges += job.ask.charges.len();
            if charges > CHARGES_MAX && !taken.is_empty() {
                queue.jobs.push_front(job);
                break;
            }
            taken.push(job);
        }
        if taken.is_empty() {
            queue.lanes -= 1;
            return None;
        }
        Some(taken)
    }

    async fn run(&self, jobs: &[Job]) -> Result<Answers, StoreError> {
        let phases: Vec<&Phase> = jobs.iter().map(|job| &*job.phase).collect();
        let call = async {
            let mut held = self.connections.checkout(&phases).await?;
            for attempt in 1.. {
                let mut batch = Batch::new(jobs.iter().map(|job| &job.ask), self.now());
                // A repeated transaction trusts nothing: expiry may have removed the buckets that
                // were known.
                if attempt == 1 {
                    batch.trust(&self.known);
                }
                match held.query(DECIDE, &batch.params()).await {
                    Ok(rows) => {
                        batch.confirm(&self.known);
                        return Answers::read(&rows);
                    }
                    Err(lost) if attempt < ATTEMPTS_MAX && error::may_be_repeated(&lost) => {}
                    Err(lost) => return Err(error::of(&lost)),
                }
            }
            Err(StoreError::TimedOut)
        };
        let late = || {
            jobs.first()
                .map_or(StoreError::TimedOut, |job| job.phase.too_late())
        };
        tokio::time::timeout(self.connections.deadline, call)
            .await
            .unwrap_or_else(|_| Err(late()))
    }

    fn now(&self) -> Option<Micros> {
        self.clock.as_ref().map(Clock::now)
    }

    async fn lane(self: Arc<Self>) {
        while let Some(jobs) = self.take() {
            let mut answers = self.run(&jobs).await;
            for job in jobs {
                let answer = match &mut answers {
                    Ok(answers) => answers.next(&job.ask),
                    Err(error) => Err(error.clone()),
                };
                // The caller may have given up at its deadline.
                let _ = job.answer.send(answer);
            }
        }
    }
}
