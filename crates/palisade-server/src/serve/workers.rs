//! One thread and one runtime per core. Each has a socket of every surface: a
//! connection stays on its worker, and workers share nothing but the engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::task::JoinSet;

use super::stop::Stop;
use super::surface::{Surface, Task};
use crate::failure::Failure;

/// How often a worker shows that its tasks get their turn.
const BEAT: Duration = Duration::from_millis(250);

/// Threads that serve.
#[derive(Default)]
pub(crate) struct Workers(Vec<Worker>);

struct Worker {
    thread: JoinHandle<()>,
    beats: Arc<AtomicBool>,
}

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

    /// True if every thread runs, and has given its tasks a turn since this was last asked:
    /// ask no more often than every second.
    pub(crate) fn are_alive(&self) -> bool {
        let is_alive = |worker: &Worker| {
            let has_beaten = worker.beats.swap(false, Ordering::Relaxed);
            has_beaten && !worker.thread.is_finished()
        };
        // All of them, so that each one's beats are those since.
        let alive = self.0.iter().filter(|worker| is_alive(worker)).count();
        alive == self.0.len()
    }

    /// Waits until every connection has ended or has been cut off.
    pub(crate) async fn drain(self) {
        let joined = tokio::task::spawn_blocking(move || {
            for worker in self.0 {
                let _ = worker.thread.join();
            }
        });
        let _ = joined.await;
    }
}

fn thread(name: &'static str, tasks: Vec<Task>) -> std::io::Result<Worker> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let beats = Arc::new(AtomicBool::new(true));
    let heart = beat(Arc::clone(&beats));
    let thread = std::thread::Builder::new()
        .name(format!("palisade-{name}"))
        .spawn(move || {
            runtime.block_on(async move {
                tokio::spawn(heart);
                let mut tasks: JoinSet<()> = tasks.into_iter().collect();
                while tasks.join_next().await.is_some() {}
            });
        })?;
    Ok(Worker { thread, beats })
}

async fn beat(beats: Arc<AtomicBool>) {
    loop {
        beats.store(true, Ordering::Relaxed);
        tokio::time::sleep(BEAT).await;
    }
}
