//! Work that is finished whether or not its caller still waits for it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tracing::Instrument;

/// A future that goes on in a task of its own if this one is dropped before it has ended. As long
/// as it is polled it runs in place, and nothing is spawned.
///
/// The task runs on the runtime in which this future was created. Created without a runtime, or
/// dropped after the runtime's end, the inner future is dropped unfinished.
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
        // Taken out while it is polled: a future that panicked must not be polled again by a task.
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
