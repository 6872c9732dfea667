//! Bodies that pass through the proxy. They are streamed unless they had to be read first.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::headers::trailers_only;
use super::hold::HeldBody;
use super::kept::Arriving;
use super::upload::Upload;

/// A body from the client to the application.
pub(crate) enum Outgoing {
    /// A body that is streamed, with its progress. An empty one has no progress.
    Streamed(Incoming, Option<Arc<Upload>>),
    /// A body that was read beforehand, and its bytes again for code that inspects them.
    Buffered(Full<Bytes>, Bytes),
    /// A body that notes when the first part of it is taken, for a connection that there is.
    Noted(Box<Self>, Arc<AtomicBool>),
}

impl Outgoing {
    /// A body that is still to arrive.
    pub(super) fn streamed(body: Incoming) -> Self {
        let upload = (!body.is_end_stream()).then(Arc::default);
        Self::Streamed(body, upload)
    }

    /// The progress of the body, if it is still arriving.
    pub(super) fn upload(&self) -> Option<Arc<Upload>> {
        match self {
            Self::Streamed(_, upload) => upload.clone(),
            Self::Buffered(..) => None,
            Self::Noted(body, _) => body.upload(),
        }
    }

    /// A body of known bytes.
    pub(super) fn of(bytes: Bytes) -> Self {
        Self::Buffered(Full::new(bytes.clone()), bytes)
    }

    /// The bytes of a body that was read beforehand.
    pub(super) fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Streamed(..) => None,
            Self::Buffered(_, bytes) => Some(bytes),
            Self::Noted(body, _) => body.bytes(),
        }
    }
}

/// A body to the client, from the application or made here.
pub(crate) enum Relayed {
    /// The application's body, streamed.
    Upstream(Arriving),
    /// The application's body, streamed, with something that its request holds until the end.
    Held(Box<HeldBody>),
    /// A body made here.
    Own(Full<Bytes>),
}

/// The error of a body to the client: that of the application, or that it took too long.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;

type Polled<E> = Poll<Option<Result<Frame<Bytes>, E>>>;

fn never<T>(polled: Polled<std::convert::Infallible>) -> Polled<T> {
    polled.map(|frame| frame.map(|result| result.map_err(|error| match error {})))
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled<hyper::Error> {
        match self.get_mut() {
            Self::Streamed(body, upload) => {
                let polled = Pin::new(&mut *body).poll_frame(cx).map_ok(trailers_only);
                if let Some(upload) = upload {
                    upload.saw(&polled, body.is_end_stream());
                }
                polled
            }
            Self::Buffered(body, _) => never(Pin::new(body).poll_frame(cx)),
            Self::Noted(body, is_taken) => {
                is_taken.store(true, Ordering::Relaxed);
                Pin::new(&mut **body).poll_frame(cx)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Streamed(body, _) => body.is_end_stream(),
            Self::Buffered(body, _) => body.is_end_stream(),
            Self::Noted(body, _) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Streamed(body, _) => body.size_hint(),
            Self::Buffered(body, _) => body.size_hint(),
            Self::Noted(body, _) => body.size_hint(),
        }
    }
}

impl Body for Relayed {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled<BodyError> {
        match self.get_mut() {
            Self::Upstream(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Self::Held(body) => Pin::new(&mut **body).poll_frame(cx),
            Self::Own(body) => never(Pin::new(body).poll_frame(cx)),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Upstream(body) => body.is_end_stream(),
            Self::Held(body) => body.is_end_stream(),
            Self::Own(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Upstream(body) => body.size_hint(),
            Self::Held(body) => body.size_hint(),
            Self::Own(body) => body.size_hint(),
        }
    }
}
