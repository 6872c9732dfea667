//! Boxed tasks.
//!
//! The compiler generates Tokio's code for a task, thousands of lines, for each type of future that
//! is spawned. Boxed futures are all of one type, which costs an allocation for each task and makes
//! builds much faster.

use std::future::Future;
use std::pin::Pin;

use tokio::task::JoinHandle;

/// A task before it is spawned.
pub(crate) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Boxes this work as a task.
pub(crate) fn boxed(work: impl Future<Output = ()> + Send + 'static) -> Task {
    Box::pin(work)
}

/// Spawns this work as a task. Must be called within a Tokio runtime.
pub(crate) fn spawn(work: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    tokio::spawn(boxed(work))
}
