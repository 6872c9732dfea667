//! Work that is finished whether or not somebody waits for it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tracing::Instrument;

/// Waits for a future that goes on in a task of its own if this one is dropped before it has
/// ended. While it is waited for it runs where it is, and nothing is spawned.
///
/// The task is one of the runtime that this was made in. Made in none, or dropped when that is
/// gone, the future ends where it was.
pub(super) struct Finished<T: 'static> {
    rest: Option<Rest<T>>,
    runtime: Option<Handle>,
}

type Rest<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl<T> Finished<T> {
    pub(super) fn new(work: impl Future<Output = T> + Send + 'static) -> Self {
        Self {
            rest: Some(Box::pin(work)),
            runtime: Handle::try_current().ok(),
        }
    }
}

impl<T> Future for Finished<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        // Not in its place meanwhile: what panics must not be polled again by a task.
        let Some(mut rest) = self.rest.take() else {
            return Poll::Pending;
        };
        let polled = rest.as_mut().poll(cx);
        if polled.is_pending() {
            self.rest = Some(rest);
        }
        polled
    }
}

impl<T> Drop for Finished<T> {
    fn drop(&mut self) {
        if let (Some(rest), Some(runtime)) = (self.rest.take(), &self.runtime) {
            let unheard = async {
                rest.await;
            };
            runtime.spawn(unheard.in_current_span());
        }
    }
}
