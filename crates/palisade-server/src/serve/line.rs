//! One accepted connection: its bytes, its peer, and what is to become of it.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::server::TlsStream;

use super::activity::Activity;
use super::stop::Stop;

/// A connection as a protocol gets it.
pub(crate) struct Line {
    pub(crate) stream: Watched,
    pub(crate) peer: SocketAddr,
    /// What the connection is doing: a protocol says when a request begins and
    /// ends, and obeys the verdict.
    pub(crate) activity: Arc<Activity>,
    pub(crate) stop: Stop,
}

impl Line {
    pub(super) fn new(
        stream: Stream,
        peer: SocketAddr,
        permit: OwnedSemaphorePermit,
        activity: Arc<Activity>,
        stop: Stop,
    ) -> Self {
        Self {
            stream: Watched {
                stream,
                is_joined: false,
                activity: Arc::clone(&activity),
                _permit: permit,
            },
            peer,
            activity,
            stop,
        }
    }
}

/// Bytes as they are, or within TLS.
pub(super) enum Stream {
    Plain(TcpStream),
    Secure(Box<TlsStream<TcpStream>>),
    /// As they are, over a socket file.
    File(UnixStream),
}

/// The same call on each of them.
macro_rules! on_each {
    ($stream:expr, $inner:ident => $call:expr) => {
        match $stream {
            Stream::Plain($inner) => $call,
            Stream::Secure($inner) => $call,
            Stream::File($inner) => $call,
        }
    };
}

/// A stream that tells when bytes arrive, and counts as a connection for as long
/// as anybody holds it.
pub(crate) struct Watched {
    stream: Stream,
    /// Writes come joined, however many parts they have.
    is_joined: bool,
    activity: Arc<Activity>,
    _permit: OwnedSemaphorePermit,
}

/// Which version of HTTP a connection begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begins {
    One,
    Two,
}

/// What an HTTP/2 client begins with.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Pause while a part of the preface has arrived and the rest has not.
const PREFACE_PAUSE: Duration = Duration::from_millis(5);

impl Watched {
    /// The same for many short answers at once. The HTTP/2 library hands over each that has
    /// 256 bytes or more by itself where parts may be written as they are, and joins those of
    /// less than 1,024 where they may not: one write for all of them costs less than the
    /// copies.
    pub(super) fn joined(self) -> Self {
        Self {
            is_joined: true,
            ..self
        }
    }

    /// Looks at the first bytes and leaves them where they are: taken, they would have
    /// to be put back, and every later read would ask whether they were.
    pub(super) async fn begins(&self) -> io::Result<Begins> {
        let stream = match &self.stream {
            Stream::Plain(stream) => stream,
            Stream::Secure(stream) => return Ok(agreed(stream)),
            // Only gRPC is served on a file, and it is spoken in nothing else.
            Stream::File(_) => return Ok(Begins::Two),
        };
        let mut seen = [0; PREFACE.len()];
        loop {
            let length = stream.peek(&mut seen).await?;
            if length == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if !PREFACE.starts_with(&seen[..length]) {
                return Ok(Begins::One);
            }
            if length == PREFACE.len() {
                return Ok(Begins::Two);
            }
            // From here on the time for a head runs.
            self.activity.received();
            tokio::time::sleep(PREFACE_PAUSE).await;
        }
    }
}

/// Within TLS the two sides have agreed on the version beforehand (ALPN).
fn agreed(stream: &TlsStream<TcpStream>) -> Begins {
    match stream.get_ref().1.alpn_protocol() {
        Some(b"h2") => Begins::Two,
        _ => Begins::One,
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = on_each!(&mut self.stream, inner => Pin::new(inner).poll_read(cx, buf));
        if buf.filled().len() > before {
            self.activity.received();
        }
        result
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = on_each!(&mut self.stream, inner => Pin::new(inner).poll_write(cx, buf));
        self.activity.wrote(result.is_pending());
        result
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_each!(&mut self.stream, inner => Pin::new(inner).poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_each!(&mut self.stream, inner => Pin::new(inner).poll_shutdown(cx))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result =
            on_each!(&mut self.stream, inner => Pin::new(inner).poll_write_vectored(cx, bufs));
        self.activity.wrote(result.is_pending());
        result
    }

    fn is_write_vectored(&self) -> bool {
        !self.is_joined && on_each!(&self.stream, inner => inner.is_write_vectored())
    }
}
