//! `grpc.health.v1`: whether the service should get calls, once or at each change.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::unfold;
use hyper::body::Frame;
use prost::Message;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::grpc::{self, Code, Frames, GrpcError};
use crate::serve::{Stop, task};
use crate::surfaces::Enforcer;

/// Interval of the checks, which are made once for all watchers.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Most watchers at once. They need no token, and a watch does not end by itself.
const WATCHERS_MAX: usize = 1024;

/// The service asked about; empty for all of them.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Request {
    #[prost(string, tag = "1")]
    pub(super) service: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Response {
    #[prost(enumeration = "Condition", tag = "1")]
    status: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
enum Condition {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
    ServiceUnknown = 3,
}

/// The sources of health, and the state of its watchers.
#[derive(Clone)]
pub(super) struct Health {
    pub(super) enforcer: Arc<Enforcer>,
    stop: Stop,
    watched: Arc<SharedHealth>,
}

/// State that all watchers share.
struct SharedHealth {
    /// The last condition; [`Condition::Unknown`] before the first check.
    condition: watch::Sender<Condition>,
    /// Whether a task is running that checks for all watchers.
    is_looking: AtomicBool,
    places: Arc<Semaphore>,
}

impl Health {
    pub(super) fn new(enforcer: Arc<Enforcer>, stop: Stop) -> Self {
        let watched = SharedHealth {
            condition: watch::Sender::new(Condition::Unknown),
            is_looking: AtomicBool::new(false),
            places: Arc::new(Semaphore::new(WATCHERS_MAX)),
        };
        Self {
            enforcer,
            stop,
            watched: Arc::new(watched),
        }
    }

    /// Returns the condition now.
    pub(super) fn check(&self, request: &Request) -> Result<Response, GrpcError> {
        match is_here(&request.service) {
            true => Ok(Response {
                status: self.condition() as i32,
            }),
            false => Err(GrpcError::new(
                Code::NotFound,
                "there is no such service here",
            )),
        }
    }

    /// The condition by the rule of `/health/ready`: not stopping, and the store not unreachable
    /// for too long.
    fn condition(&self) -> Condition {
        match !self.stop.is_draining() && self.enforcer.engine.health().ready {
            true => Condition::Serving,
            false => Condition::NotServing,
        }
    }

    /// Streams the condition, now and at each change, until the service stops.
    pub(super) fn watch(&self, request: &Request) -> Result<Frames, GrpcError> {
        let place = Arc::clone(&self.watched.places).try_acquire_owned();
        let place = place.map_err(|_| {
            let message = "too many are watching; ask again later, or with `Check`";
            GrpcError::new(Code::ResourceExhausted, message)
        })?;
        let watch = Watch {
            condition: self.follow(),
            is_here: is_here(&request.service),
            told: None,
            health: self.clone(),
            _place: place,
        };
        Ok(Box::pin(unfold(Some(watch), |watch| async {
            match watch {
                Some(watch) => Some(watch.next().await),
                None => None,
            }
        })))
    }

    /// Subscribes to the condition. The first subscriber starts the task that checks it for all.
    fn follow(&self) -> watch::Receiver<Condition> {
        let condition = self.watched.condition.subscribe();
        if !self.watched.is_looking.swap(true, Ordering::AcqRel) {
            self.look();
            task::spawn(self.clone().look_on());
        }
        condition
    }

    async fn look_on(mut self) {
        loop {
            tokio::select! {
                () = self.stop.draining() => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            self.look();
            if self.stop.is_draining() || self.watched.rests() {
                return;
            }
        }
    }

    fn look(&self) {
        let now = self.condition();
        let condition = &self.watched.condition;
        condition.send_if_modified(|told| std::mem::replace(told, now) != now);
    }
}

impl SharedHealth {
    /// Whether nobody watches any more, so that the checking task may end.
    fn rests(&self) -> bool {
        let is_alone = || self.condition.receiver_count() == 0;
        if !is_alone() {
            return false;
        }
        // A watcher that subscribed since then, and found `is_looking` set, must not be left
        // without the task.
        self.is_looking.swap(false, Ordering::AcqRel);
        is_alone() || self.is_looking.swap(true, Ordering::AcqRel)
    }
}

fn is_here(service: &str) -> bool {
    service.is_empty() || super::SERVICES.contains(&service)
}

struct Watch {
    health: Health,
    condition: watch::Receiver<Condition>,
    is_here: bool,
    told: Option<Condition>,
    _place: OwnedSemaphorePermit,
}

impl Watch {
    async fn next(mut self) -> (Frame<Bytes>, Option<Self>) {
        loop {
            let found = self.look();
            if found.is_some() && self.told != found {
                self.told = found;
                let response = Response {
                    status: found.unwrap_or(Condition::Unknown) as i32,
                };
                return (Frame::data(grpc::framed(&response)), Some(self));
            }
            if self.health.stop.is_draining() {
                let ended = GrpcError::new(Code::Unavailable, "the service ends");
                return (Frame::trailers(ended.trailers()), None);
            }
            tokio::select! {
                () = self.health.stop.draining() => {}
                // The only error would be a dropped sender, but `self.health` keeps it.
                _ = self.condition.changed() => {}
            }
        }
    }

    /// Returns the condition to report, once there has been a check.
    fn look(&mut self) -> Option<Condition> {
        let seen = *self.condition.borrow_and_update();
        match self.is_here {
            false => Some(Condition::ServiceUnknown),
            true if self.health.stop.is_draining() => Some(Condition::NotServing),
            true => Some(seen).filter(|seen| *seen != Condition::Unknown),
        }
    }
}
