//! A reference store with a gate: it records its calls and their callers, and can fail calls or
//! make callers wait.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "each test file uses its part of it"
)]

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use palisade::core::time::Clock;
use palisade::store::{Answer, Call, Interceptor, Store, StoreError, Take};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::engine_support::Model;

/// The caller of the store: a request, or the task that refills leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    Request,
    Task,
}

/// A store call about one bucket: its caller, and the number of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    Charge(By, u64),
    Refund(By, u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    Open,
    /// Calls of this caller wait until the gate is opened, and are made then.
    ShutFor(By),
    /// Every charge fails.
    Broken,
    /// Every charge takes this long, and succeeds.
    Slow(Duration),
}

tokio::task_local! {
    static REQUEST: ();
}

pub async fn by_a_request<T>(request: impl Future<Output = T>) -> T {
    REQUEST.scope((), request).await
}

fn who() -> By {
    REQUEST.try_with(|()| By::Request).unwrap_or(By::Task)
}

pub struct Doored {
    model: Model,
    asked: Mutex<Vec<Asked>>,
    calls: AtomicUsize,
    door: watch::Sender<Door>,
}

impl Doored {
    pub fn new(time: Arc<dyn Clock>) -> Self {
        Self {
            model: Model::new(time),
            asked: Mutex::default(),
            calls: AtomicUsize::new(0),
            door: watch::Sender::new(Door::Open),
        }
    }

    pub fn set(&self, door: Door) {
        self.door.send_replace(door);
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().clone()
    }

    /// Number of calls that charge or peek.
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    async fn pass(&self) -> Result<(), StoreError> {
        let by = who();
        let mut door = self.door.subscribe();
        let passed = door.wait_for(|door| *door != Door::ShutFor(by)).await;
        let passed = *passed.unwrap();
        match passed {
            Door::Broken => Err(StoreError::Unreachable("connection refused".to_owned())),
            Door::Slow(time) => {
                tokio::time::sleep(time).await;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl Interceptor for Doored {
    fn inner(&self) -> &dyn Store {
        &self.model
    }

    fn before<'a>(&'a self, call: Call<'a>) -> Answer<'a, ()> {
        match call {
            Call::Charge(charges, take) => {
                self.calls.fetch_add(1, Ordering::Relaxed);
                if take == Take::Peek {
                    return Answer::ready(());
                }
                let asked = charges.iter().map(|c| Asked::Charge(who(), c.cost));
                self.asked.lock().extend(asked);
                return Answer::later(self.pass());
            }
            Call::GiveBack(taken) => {
                let asked = taken.iter().map(|t| Asked::Refund(who(), t.charge.cost));
                self.asked.lock().extend(asked);
            }
            Call::Refund(charges) => {
                let asked = charges.iter().map(|c| Asked::Refund(who(), c.cost));
                self.asked.lock().extend(asked);
            }
            _ => {}
        }
        Answer::ready(())
    }

    fn is_shared(&self) -> bool {
        true
    }
}
