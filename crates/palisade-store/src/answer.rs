//! The answer of a store, which is ready at once or comes later.

use std::mem::replace;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;

use crate::StoreError;

/// The answer to a call; a future in either case.
///
/// A store in this process answers [`Answer::Ready`]: nothing is allocated, and no deadline is
/// needed. A store on a network answers [`Answer::Later`]: the box costs little compared with a
/// round trip, and the call's code is compiled once instead of wherever it is awaited.
#[must_use = "a call that is to be made later is not made until it is awaited"]
pub enum Answer<'a, T> {
    /// The call has been made, and this is its answer.
    Ready(Result<T, StoreError>),
    /// The answer comes later. The call is made when this is first polled: dropping it before that
    /// asks nothing.
    Later(BoxFuture<'a, Result<T, StoreError>>),
}

impl<'a, T> Answer<'a, T> {
    /// The answer of a store that never waits.
    pub const fn ready(found: T) -> Self {
        Self::Ready(Ok(found))
    }

    /// The answer that `call` will give once it is polled.
    pub fn later(call: impl Future<Output = Result<T, StoreError>> + Send + 'a) -> Self {
        Self::Later(Box::pin(call))
    }
}

impl<T: Unpin> Future for Answer<'_, T> {
    type Output = Result<T, StoreError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            // A future is not polled again after it is ready, so nobody sees the placeholder.
            Self::Ready(found) => Poll::Ready(replace(found, Err(StoreError::TimedOut))),
            Self::Later(call) => call.as_mut().poll(context),
        }
    }
}
