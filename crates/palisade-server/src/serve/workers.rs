//! One thread and one runtime per worker, about one worker per core. Each has a socket of every
//! surface. A connection stays on its worker, and workers share nothing but the engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::passed::PassedSockets;
use super::stop::Stop;
use super::surface::Surface;
use super::task::{self, Task};
use crate::failure::Failure;

/// Interval at which a worker proves that its tasks get their turn.
const BEAT: Duration = Duration::from_millis(250);
/// Most surfaces that wait to be started by a worker.
const LATE_MAX: usize = 8;

/// The threads that serve.
#[derive(Default)]
pub(crate) struct Workers(Vec<Worker>);

struct Worker {
    thread: JoinHandle<()>,
    beats: Arc<AtomicBool>,
    late: mpsc::Sender<Task>,
}

/// A handle that adds surfaces to running workers.
#[derive(Clone)]
pub(crate) struct Late(Vec<mpsc::Sender<Task>>);

impl Late {
    /// Binds a surface and has each worker serve it, until `stop` as for all others.
    pub(crate) fn serve(&self, surface: &mut dyn Surface, stop: &Stop) -> Result<(), Failure> {
        // Passed sockets were taken at the start. None is left for a surface that is bound later.
        surface.bind(self.0.len(), &mut PassedSockets::default())?;
        for worker in &self.0 {
            // A worker that has ended, or whose queue is full, serves no connections of this
            // surface.
            let taken = surface.serve(stop).map(|task| worker.try_send(task));
            if let Some(Err(_)) = taken {
                tracing::warn!(
                    "a worker thread still serves the configuration from before the reload"
                );
            }
        }
        Ok(())
    }
}

impl Workers {
    /// Starts this many threads, each with a socket of every surface. Each thread first completes
    /// the future that `first` makes; connections wait for that.
    pub(crate) fn start(
        name: &'static str,
        count: usize,
        surfaces: &mut [Box<dyn Surface>],
        stop: &Stop,
        first: impl Fn() -> Task,
    ) -> Result<Self, Failure> {
        let mut workers = Self(Vec::with_capacity(count));
        for _ in 0..count {
            let tasks = surfaces
                .iter_mut()
                .filter_map(|surface| surface.serve(stop));
            let worker = thread(name, first(), tasks.collect()).map_err(|error| {
                Failure::unavailable(
                    format!("cannot start a worker thread: {error}"),
                    "raise the limits on threads and open files, or set `[server] workers`",
                )
            })?;
            workers.0.push(worker);
        }
        Ok(workers)
    }

    /// A handle that adds surfaces to these workers.
    pub(crate) fn late(&self) -> Late {
        Late(self.0.iter().map(|worker| worker.late.clone()).collect())
    }

    /// True if every thread runs and has given its tasks a turn since the last call. Call this at
    /// most once a second.
    pub(crate) fn are_alive(&self) -> bool {
        let is_alive = |worker: &Worker| {
            let has_beaten = worker.beats.swap(false, Ordering::Relaxed);
            has_beaten && !worker.thread.is_finished()
        };
        // No short circuit: the beats of every worker must be reset.
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

fn thread(name: &'static str, first: Task, tasks: Vec<Task>) -> std::io::Result<Worker> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let beats = Arc::new(AtomicBool::new(true));
    let heart = beat(Arc::clone(&beats));
    let (late, arriving) = mpsc::channel(LATE_MAX);
    let thread = std::thread::Builder::new()
        .name(format!("palisade-{name}"))
        .spawn(move || {
            runtime.block_on(async move {
                // Started before `first`, which may wait for a connection while the worker is
                // alive.
                task::spawn(heart);
                first.await;
                work(tasks.into_iter().collect(), arriving).await;
            });
        })?;
    Ok(Worker {
        thread,
        beats,
        late,
    })
}

/// Runs tasks until all have ended, including those that arrive meanwhile.
async fn work(mut tasks: JoinSet<()>, mut arriving: mpsc::Receiver<Task>) {
    loop {
        tokio::select! {
            ended = tasks.join_next() => match ended {
                Some(_) => {}
                None => return,
            },
            Some(task) = arriving.recv() => {
                tasks.spawn(task);
            }
        }
    }
}

async fn beat(beats: Arc<AtomicBool>) {
    loop {
        beats.store(true, Ordering::Relaxed);
        tokio::time::sleep(BEAT).await;
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::atomic::AtomicUsize;

    use super::super::stop;
    use super::super::surface::SurfaceAddress;
    use super::*;

    /// A surface that counts the workers that began and ended to serve it.
    #[derive(Default)]
    struct CountingSurface {
        sockets: usize,
        begun: Arc<AtomicUsize>,
        ended: Arc<AtomicUsize>,
    }

    impl Surface for CountingSurface {
        fn place(&self) -> SurfaceAddress {
            SurfaceAddress {
                name: "test",
                flag: "test",
                scheme: "test",
                address: SocketAddr::from(([127, 0, 0, 1], 0)).into(),
            }
        }

        fn bind(&mut self, workers: usize, _: &mut PassedSockets) -> Result<(), Failure> {
            self.sockets = workers;
            Ok(())
        }

        fn serve(&mut self, stop: &Stop) -> Option<Task> {
            self.sockets = self.sockets.checked_sub(1)?;
            let (begun, ended) = (Arc::clone(&self.begun), Arc::clone(&self.ended));
            let mut stop = stop.clone();
            Some(Box::pin(async move {
                begun.fetch_add(1, Ordering::SeqCst);
                stop.leaving().await;
                ended.fetch_add(1, Ordering::SeqCst);
            }))
        }
    }

    #[tokio::test]
    async fn what_comes_late_is_served_by_every_worker_and_ends_with_the_rest() {
        let (stopper, stop) = stop::stopper();
        let (first, mut second) = (CountingSurface::default(), CountingSurface::default());
        let mut surfaces: [Box<dyn Surface>; 1] = [Box::new(first)];
        surfaces[0].bind(3, &mut PassedSockets::default()).unwrap();
        let nothing = || task::boxed(async {});
        let workers = Workers::start("test", 3, &mut surfaces, &stop, nothing).unwrap();
        workers.late().serve(&mut second, &stop).unwrap();
        let all_serve = async {
            while second.begun.load(Ordering::SeqCst) < 3 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let patience = Duration::from_secs(20);
        tokio::time::timeout(patience, all_serve).await.unwrap();
        stopper.stop(Duration::ZERO).await;
        tokio::time::timeout(patience, workers.drain())
            .await
            .unwrap();
        assert_eq!(second.ended.load(Ordering::SeqCst), 3);
    }
}
