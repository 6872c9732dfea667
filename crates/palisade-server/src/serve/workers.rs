//! One thread and one runtime per core. Each has a socket of every surface: a
//! connection stays on its worker, and workers share nothing but the engine.

use std::thread::JoinHandle;

use tokio::task::JoinSet;

use super::stop::Stop;
use super::surface::{Surface, Task};
use crate::failure::Failure;

/// Threads that serve.
#[derive(Default)]
pub(crate) struct Workers(Vec<JoinHandle<()>>);

impl Workers {
    /// Starts so many, each with a socket of all these surfaces.
    pub(crate) fn start(
        name: &'static str,
        count: usize,
        surfaces: &mut [Box<dyn Surface>],
        stop: &Stop,
    ) -> Result<Self, Failure> {
        let mut workers = Self(Vec::with_capacity(count));
        for _ in 0..count {
            let tasks = surfaces
                .iter_mut()
                .filter_map(|surface| surface.serve(stop));
            let worker = thread(name, tasks.collect()).map_err(|error| {
                Failure::unavailable(
                    format!("cannot start a worker thread: {error}"),
                    "raise the limits on threads and open files, or set `[server] workers`",
                )
            })?;
            workers.0.push(worker);
        }
        Ok(workers)
    }

    /// Waits until every connection has ended or has been cut off.
    pub(crate) async fn drain(self) {
        let joined = tokio::task::spawn_blocking(move || {
            for worker in self.0 {
                let _ = worker.join();
            }
        });
        let _ = joined.await;
    }
}

fn thread(name: &'static str, tasks: Vec<Task>) -> std::io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    std::thread::Builder::new()
        .name(format!("palisade-{name}"))
        .spawn(move || {
            runtime.block_on(async move {
                let mut tasks: JoinSet<()> = tasks.into_iter().collect();
                while tasks.join_next().await.is_some() {}
            });
        })
}
