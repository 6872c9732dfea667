//! The body of an answer: the application's own, or that of a refusal.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::service::{Held, Hold};
use crate::engine::TookTooLong;

/// The error of a body: that of the application, or [`TookTooLong`].
///
/// ```
/// use palisade::engine::TookTooLong;
/// use palisade::tower::BodyError;
///
/// let error: BodyError = TookTooLong.into();
/// assert!(error.is::<TookTooLong>());
/// ```
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

pin_project! {
    /// The body of what a layer answers with, for one an [`EdgeLayer`](super::EdgeLayer).
    pub struct Guarded<B> {
        #[pin]
        part: Part<B>,
        // Given back when the body has been sent, or is given up.
        held: Held,
    }
}

pin_project! {
    #[project = PartProjected]
    enum Part<B> {
        Application { #[pin] body: B },
        Own { bytes: Option<Bytes> },
    }
}

impl<B> Guarded<B> {
    pub(super) fn application(body: B, held: Held) -> Self {
        let part = Part::Application { body };
        Self { part, held }
    }

    pub(super) fn own(bytes: Vec<u8>) -> Self {
        let bytes = Some(Bytes::from(bytes)).filter(|bytes| !bytes.is_empty());
        Self {
            part: Part::Own { bytes },
            held: None,
        }
    }
}

impl<B: Default> Default for Guarded<B> {
    fn default() -> Self {
        Self::application(B::default(), None)
    }
}

impl<B> std::fmt::Debug for Guarded<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guarded").finish_non_exhaustive()
    }
}

impl<B: Body> Body for Guarded<B>
where
    B::Data: From<Bytes>,
    B::Error: Into<BodyError>,
{
    type Data = B::Data;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, BodyError>>> {
        let mut this = self.project();
        let is_over = |held: &mut Box<dyn Hold>| held.poll_over(cx).is_ready();
        if this.held.as_mut().is_some_and(is_over) {
            *this.held = None;
            this.part.set(Part::Own { bytes: None });
            return Poll::Ready(Some(Err(TookTooLong.into())));
        }
        let polled = match this.part.project() {
            PartProjected::Application { body } => body.poll_frame(cx).map_err(Into::into),
            PartProjected::Own { bytes } => {
                Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes.into()))))
            }
        };
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            *this.held = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &self.part {
            Part::Application { body } => body.is_end_stream(),
            Part::Own { bytes } => bytes.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.part {
            Part::Application { body } => body.size_hint(),
            Part::Own { bytes } => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
        }
    }
}
