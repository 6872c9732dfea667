//! Work that goes on by itself.
//!
//! Tokio's code for a task is compiled for every type of future that is started, thousands
//! of lines each. Boxed, all of them are one type: a task costs an allocation more, and a build
//! much less.

use std::future::Future;
use std::pin::Pin;

use tokio::task::JoinHandle;

/// A task before it is started.
pub(crate) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A task of this work.
pub(crate) fn boxed(work: impl Future<Output = ()> + Send + 'static) -> Task {
    Box::pin(work)
}

/// Starts a task of this work. Must be called within a Tokio runtime.
pub(crate) fn spawn(work: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    tokio::spawn(boxed(work))
}
