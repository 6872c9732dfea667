//! A background thread that does a small piece of work at intervals, and ends with its owner.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// The thread, which ends when this is dropped.
pub(crate) struct Sweeper {
    ended: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Sweeper {
    /// Calls `turn` every `every` until it returns false or the sweeper is dropped. If the system
    /// refuses a thread, buckets expire on insertion only.
    pub(crate) fn start(every: Duration, mut turn: impl FnMut() -> bool + Send + 'static) -> Self {
        let ended = Arc::new((Mutex::new(false), Condvar::new()));
        let shared = Arc::clone(&ended);
        let run = move || {
            let (ended, changed) = &*shared;
            loop {
                let mut ended = ended.lock();
                if !*ended {
                    changed.wait_for(&mut ended, every);
                }
                if *ended {
                    return;
                }
                drop(ended);
                if !turn() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("palisade-sweep".to_owned())
            .spawn(run);
        if thread.is_err() {
            tracing::warn!("no thread for the background sweep; expiry happens on insertion only");
        }
        Self {
            ended,
            thread: thread.ok(),
        }
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        let (ended, changed) = &*self.ended;
        *ended.lock() = true;
        changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
