//! The answer of a store, which is there at once or comes later.

use std::mem::replace;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;

use crate::StoreError;

/// The answer to a call, which is a future of either kind.
///
/// A store in this process answers [`Answer::Ready`]: nothing is allocated, and nobody needs
/// a deadline for it. A store on a network answers [`Answer::Later`]; the box that this costs
/// is nothing beside its round trip, and its code is compiled once, not again wherever it is
/// awaited.
#[must_use = "a call that is to be made later is not made until it is awaited"]
pub enum Answer<'a, T> {
    /// It is there: the call has been made.
    Ready(Result<T, StoreError>),
    /// It is on its way. The call is made when this is polled first: whoever drops it before
    /// has asked nothing.
    Later(BoxFuture<'a, Result<T, StoreError>>),
}

impl<'a, T> Answer<'a, T> {
    /// The answer of a store in this process.
    pub const fn ready(found: T) -> Self {
        Self::Ready(Ok(found))
    }

    /// The answer that `call` will have.
    pub fn later(call: impl Future<Output = Result<T, StoreError>> + Send + 'a) -> Self {
        Self::Later(Box::pin(call))
    }
}

impl<T: Unpin> Future for Answer<'_, T> {
    type Output = Result<T, StoreError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            // Nobody polls a future that is over: what is left in its place is not seen.
            Self::Ready(found) => Poll::Ready(replace(found, Err(StoreError::TimedOut))),
            Self::Later(call) => call.as_mut().poll(context),
        }
    }
}
