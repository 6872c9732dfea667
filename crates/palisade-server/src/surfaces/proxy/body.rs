//! Bodies on their way through the proxy, never held whole unless they had to be
//! read.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::kept::Arriving;

/// From the client to the application.
pub(crate) enum Outgoing {
    /// As it arrives.
    Streamed(Incoming),
    /// Read beforehand; the bytes once more, for whoever looks into them.
    Buffered(Full<Bytes>, Bytes),
}

impl Outgoing {
    /// What is known whole.
    pub(super) fn of(bytes: Bytes) -> Self {
        Self::Buffered(Full::new(bytes.clone()), bytes)
    }

    /// What was read beforehand.
    pub(super) fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Streamed(_) => None,
            Self::Buffered(_, bytes) => Some(bytes),
        }
    }
}

/// From the application, or from here, to the client.
pub(crate) enum Relayed {
    /// The application's, as it arrives.
    Upstream(Arriving),
    /// Made here.
    Own(Full<Bytes>),
}

type Polled<E> = Poll<Option<Result<Frame<Bytes>, E>>>;

fn never<T>(polled: Polled<std::convert::Infallible>) -> Polled<T> {
    polled.map(|frame| frame.map(|result| result.map_err(|error| match error {})))
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled<hyper::Error> {
        match self.get_mut() {
            Self::Streamed(body) => Pin::new(body).poll_frame(cx),
            Self::Buffered(body, _) => never(Pin::new(body).poll_frame(cx)),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Streamed(body) => body.is_end_stream(),
            Self::Buffered(body, _) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Streamed(body) => body.size_hint(),
            Self::Buffered(body, _) => body.size_hint(),
        }
    }
}

impl Body for Relayed {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled<hyper::Error> {
        match self.get_mut() {
            Self::Upstream(body) => Pin::new(body).poll_frame(cx),
            Self::Own(body) => never(Pin::new(body).poll_frame(cx)),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Upstream(body) => body.is_end_stream(),
            Self::Own(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Upstream(body) => body.size_hint(),
            Self::Own(body) => body.size_hint(),
        }
    }
}
