//! The requests of one HTTP/2 connection, each a task of its own.
//!
//! An answer waits for the window that its client grants, and the HTTP library waits for it
//! forever. Meanwhile the answer occupies the application's connection, which is read no further.
//! So a stream that delivers nothing for too long is reset. The connection's other streams go on.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;

use hyper::rt::Executor;

tokio::task_local! {
    /// The delivery of the answer that the current task makes.
    static DELIVERY: Arc<Delivery>;
}

/// The progress of one answer towards its client. Only the answer's own task changes it.
#[derive(Default)]
pub(super) struct Delivery {
    /// Number of parts that were handed over.
    parts: AtomicU32,
    /// Whether the last part is not delivered yet.
    waits: AtomicBool,
}

impl Delivery {
    /// The delivery of the answer that the current task makes; `None` on a connection of HTTP/1.
    pub(super) fn current() -> Option<Arc<Self>> {
        DELIVERY.try_with(Arc::clone).ok()
    }

    /// Notes that the next part was polled, so that the parts before it are delivered. `has_part`
    /// says whether a part was handed over or is not ready yet.
    pub(super) fn advance(&self, has_part: bool) {
        self.parts.fetch_add(1, Ordering::Relaxed);
        self.waits.store(has_part, Ordering::Relaxed);
    }

    /// Ends once a part has waited for `patience`. Must be polled whenever the answer's task is.
    async fn stalls(&self, patience: Duration) {
        loop {
            // Needs no waker, because it is polled together with the answer's own task.
            poll_fn(|_| match self.waits.load(Ordering::Relaxed) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            })
            .await;
            // One timer for all parts that are delivered meanwhile.
            let before = self.parts.load(Ordering::Relaxed);
            tokio::time::sleep(patience).await;
            let is_same = self.parts.load(Ordering::Relaxed) == before;
            if is_same && self.waits.load(Ordering::Relaxed) {
                return;
            }
        }
    }
}

/// Spawns the requests of one connection.
#[derive(Clone, Copy)]
pub(super) struct Streams {
    /// Time that a part of an answer may wait to be delivered.
    patience: Duration,
}

impl Streams {
    pub(super) const fn new(patience: Duration) -> Self {
        Self { patience }
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Streams {
    fn execute(&self, stream: F) {
        let patience = self.patience;
        // Not boxed, because requests are spawned often.
        tokio::spawn(async move {
            let delivery = Arc::<Delivery>::default();
            let mut stream = pin!(stream);
            let mut stalled = pin!(delivery.stalls(patience));
            // Dropping the stream resets it.
            poll_fn(|cx| {
                let mut turn = || stream.as_mut().poll(cx);
                match DELIVERY.sync_scope(Arc::clone(&delivery), &mut turn) {
                    Poll::Ready(()) => Poll::Ready(()),
                    Poll::Pending => stalled.as_mut().poll(cx),
                }
            })
            .await;
        });
    }
}
