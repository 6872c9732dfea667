//! Whatever a request holds from its head to the last byte of its answer (B-SLOT).

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use hyper::body::{Body, Frame, SizeHint};
use palisade::engine::{ReservationGuard, TookTooLong};

use super::body::BodyError;
use super::kept::Arriving;
use super::spend::RequestCosts;
use crate::serve::HangUp;
use crate::surfaces::exchange::problem::Problem;

/// A reservation that ends with its request.
pub(super) struct Hold {
    guard: Box<ReservationGuard>,
    /// Tells that the client has hung up, where nothing else does.
    hang_up: Option<HangUp>,
    /// Its costs, on a route that says where to read them.
    spending: Option<Box<RequestCosts>>,
}

impl Hold {
    pub(super) fn new(
        mut guard: Box<ReservationGuard>,
        hang_up: Option<HangUp>,
        spending: Option<Box<RequestCosts>>,
    ) -> Self {
        // Costs that are read know by themselves whether the application got the request.
        if spending.is_none() {
            guard.begin();
        }
        Self {
            guard,
            hang_up,
            spending,
        }
    }

    /// Notes the head of the application's answer.
    pub(super) fn answered(&mut self, status: StatusCode, headers: &HeaderMap) {
        if let Some(spending) = &mut self.spending {
            spending.answered(status, headers);
        }
    }

    /// Reads a part of its body.
    fn saw(&mut self, frame: &Frame<Bytes>) {
        if let (Some(spending), Some(data)) = (&mut self.spending, frame.data_ref()) {
            spending.saw(data);
        }
    }

    /// Ready when the request is to end although its answer has not: it may not be held any
    /// longer, or nobody waits for it.
    pub(super) fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.guard.poll_over(cx).is_ready() {
            return Poll::Ready(());
        }
        self.poll_hang_up(cx)
    }

    fn poll_hang_up(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let hang_up = self.hang_up.as_mut();
        hang_up.map_or(Poll::Pending, |hang_up| hang_up.poll(cx))
    }

    /// Waits until a tunnel may not be held any longer. It notices a client that hangs up itself.
    pub(super) async fn over(&mut self) {
        self.guard.over().await;
    }

    /// Waits for the head of the application's answer, unless the request ends before.
    pub(super) async fn wait_for<T>(
        &mut self,
        mut asked: Pin<&mut impl Future<Output = Result<T, Problem>>>,
    ) -> Result<T, Problem> {
        poll_fn(|cx| match asked.as_mut().poll(cx) {
            Poll::Ready(answered) => Poll::Ready(answered),
            Poll::Pending => self
                .poll_over(cx)
                .map(|()| Err(Problem::unavailable("the request was held for too long"))),
        })
        .await
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(spending) = &self.spending {
            spending.end(&mut self.guard);
        }
    }
}

/// The body of an application's answer, with what its request holds.
pub(crate) struct HeldBody {
    body: Arriving,
    hold: Option<Hold>,
    /// The body was cut off.
    is_over: bool,
}

impl HeldBody {
    pub(super) const fn new(body: Arriving, hold: Hold) -> Self {
        Self {
            body,
            hold: Some(hold),
            is_over: false,
        }
    }
}

impl Body for HeldBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        if this.is_over {
            return Poll::Ready(None);
        }
        let is_over = |hold: &mut Hold| hold.poll_over(cx).is_ready();
        if this.hold.as_mut().is_some_and(is_over) {
            (this.hold, this.is_over) = (None, true);
            return Poll::Ready(Some(Err(TookTooLong.into())));
        }
        let polled = Pin::new(&mut this.body).poll_frame(cx);
        match (&polled, &mut this.hold) {
            (Poll::Ready(Some(Ok(frame))), Some(hold)) => hold.saw(frame),
            (Poll::Ready(None | Some(Err(_))), hold) => *hold = None,
            _ => {}
        }
        polled.map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.is_over || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
