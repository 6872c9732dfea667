//! `grpc.health.v1`: whether the service should get calls, once or whenever that changes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::unfold;
use hyper::body::Frame;
use prost::Message;

use super::grpc::{self, Code, Failed, Frames};
use crate::serve::Stop;
use crate::surfaces::Enforcer;

/// How often a watcher's service is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Which service is asked about; empty is all of them.
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

/// What health is told of.
#[derive(Clone)]
pub(super) struct Health {
    pub(super) enforcer: Arc<Enforcer>,
    pub(super) stop: Stop,
}

impl Health {
    /// The answer now.
    pub(super) fn check(&self, request: &Request) -> Result<Response, Failed> {
        match self.status(&request.service) {
            Condition::ServiceUnknown => {
                Err(Failed::new(Code::NotFound, "there is no such service here"))
            }
            status => Ok(Response {
                status: status as i32,
            }),
        }
    }

    /// Ready as `/health/ready` says it: not ending, and the store not away for too long.
    fn status(&self, service: &str) -> Condition {
        if !service.is_empty() && !super::SERVICES.contains(&service) {
            return Condition::ServiceUnknown;
        }
        match !self.stop.is_draining() && self.enforcer.engine.health().ready {
            true => Condition::Serving,
            false => Condition::NotServing,
        }
    }

    /// The answer now and whenever it changes, until the service ends.
    pub(super) fn watch(self, request: Request) -> Frames {
        let watch = Watch {
            health: self,
            service: request.service,
            told: None,
        };
        Box::pin(unfold(Some(watch), |watch| async {
            match watch {
                Some(watch) => Some(watch.next().await),
                None => None,
            }
        }))
    }
}

struct Watch {
    health: Health,
    service: String,
    told: Option<Condition>,
}

impl Watch {
    async fn next(mut self) -> (Frame<Bytes>, Option<Self>) {
        loop {
            let status = self.health.status(&self.service);
            if self.told != Some(status) {
                self.told = Some(status);
                let response = Response {
                    status: status as i32,
                };
                return (Frame::data(grpc::framed(&response)), Some(self));
            }
            if self.health.stop.is_draining() {
                let ended = Failed::new(Code::Unavailable, "the service ends");
                return (Frame::trailers(ended.trailers()), None);
            }
            tokio::select! {
                () = self.health.stop.draining() => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
    }
}
