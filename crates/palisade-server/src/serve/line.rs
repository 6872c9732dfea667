//! One accepted connection: its stream, its peer and its activity.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

use super::activity::Activity;
use super::hang_up::is_closed;
use super::slots::Slot;
use super::stop::Stop;

/// A connection as a protocol gets it.
pub(crate) struct Line {
    pub(crate) stream: WatchedStream,
    pub(crate) peer: SocketAddr,
    /// The phase and verdict of the connection. A protocol reports when a request begins and ends,
    /// and obeys the verdict.
    pub(crate) activity: Arc<Activity>,
    pub(crate) stop: Stop,
}

impl Line {
    pub(super) fn new(
        stream: Stream,
        peer: SocketAddr,
        slot: Slot,
        activity: Arc<Activity>,
        stop: Stop,
    ) -> Self {
        Self {
            stream: WatchedStream {
                stream,
                is_joined: false,
                activity: Arc::clone(&activity),
                interim: Bytes::new(),
                _slot: slot,
            },
            peer,
            activity,
            stop,
        }
    }
}

/// A plain stream, one within TLS, or one of a socket file.
pub(super) enum Stream {
    Plain(TcpStream),
    Secure(Box<TlsStream<TcpStream>>),
    /// Plain bytes over a socket file.
    File(UnixStream),
}

/// Makes the same call on each variant of `Stream`.
macro_rules! on_each {
    ($stream:expr, $inner:ident => $call:expr) => {
        match $stream {
            Stream::Plain($inner) => $call,
            Stream::Secure($inner) => $call,
            Stream::File($inner) => $call,
        }
    };
}

/// A stream that notes when bytes arrive, and holds the connection's slot until it is dropped.
pub(crate) struct WatchedStream {
    stream: Stream,
    /// Writes of several parts are joined.
    is_joined: bool,
    activity: Arc<Activity>,
    /// The rest of an interim answer that was partly written.
    interim: Bytes,
    _slot: Slot,
}

/// The HTTP version that a connection begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begins {
    One,
    Two,
}

/// The first bytes of an HTTP/2 client.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Pause before looking again when only a part of the preface has arrived.
const PREFACE_PAUSE: Duration = Duration::from_millis(5);

impl WatchedStream {
    /// Returns a stream for many short answers at once. The HTTP/2 library writes each answer of
    /// 256 bytes or more by itself where vectored writes are supported, and joins those of less
    /// than 1,024 bytes where they are not: one write for all of them costs less than the copies.
    pub(super) fn joined(self) -> Self {
        Self {
            is_joined: true,
            ..self
        }
    }

    /// Peeks at the first bytes. If they were consumed, they would have to be put back, and every
    /// later read would check for them.
    pub(super) async fn begins(&self) -> io::Result<Begins> {
        let stream = match &self.stream {
            Stream::Plain(stream) => stream,
            Stream::Secure(stream) => return Ok(agreed(stream)),
            // Only gRPC is served on a file, and gRPC is only spoken over HTTP/2.
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
            tokio::time::sleep(PREFACE_PAUSE).await;
        }
    }

    /// Looks whether the client has hung up, and has the request that asked for it polled again.
    fn look(&self) {
        let is_gone = match &self.stream {
            Stream::Plain(stream) => is_closed(stream),
            Stream::Secure(stream) => is_closed(stream.get_ref().0),
            // Requests on files are of HTTP/2, which tells by itself.
            Stream::File(_) => false,
        };
        self.activity.looks.saw(is_gone);
        if is_gone {
            self.activity.wake();
        }
    }

    /// Writes the rest of an interim answer. Nothing else may be written before its end.
    fn poll_interim(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.interim.is_empty() {
            let rest = &self.interim;
            let written = on_each!(&mut self.stream, inner => Pin::new(inner).poll_write(cx, rest));
            self.activity.wrote(written.is_pending());
            match ready!(written)? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.interim.advance(written),
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// Returns the version that both sides agreed on in the TLS handshake (ALPN).
fn agreed(stream: &TlsStream<TcpStream>) -> Begins {
    match stream.get_ref().1.alpn_protocol() {
        Some(b"h2") => Begins::Two,
        _ => Begins::One,
    }
}

impl AsyncRead for WatchedStream {
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

impl AsyncWrite for WatchedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if !self.interim.is_empty() {
            ready!(self.poll_interim(cx))?;
        }
        let result = on_each!(&mut self.stream, inner => Pin::new(inner).poll_write(cx, buf));
        self.activity.wrote(result.is_pending());
        result
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.activity.looks.are_wanted() {
            self.look();
        }
        if self.activity.interim.is_waiting() && self.interim.is_empty() {
            self.interim = self.activity.interim.take();
        }
        if !self.interim.is_empty() {
            ready!(self.poll_interim(cx))?;
        }
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
        if !self.interim.is_empty() {
            ready!(self.poll_interim(cx))?;
        }
        let result =
            on_each!(&mut self.stream, inner => Pin::new(inner).poll_write_vectored(cx, bufs));
        self.activity.wrote(result.is_pending());
        result
    }

    fn is_write_vectored(&self) -> bool {
        !self.is_joined && on_each!(&self.stream, inner => inner.is_write_vectored())
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use http::{HeaderMap, StatusCode};
    use socket2::SockRef;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::super::activity::{Live, Patience};
    use super::super::interim::Early;
    use super::super::stop;
    use super::*;

    /// The two ends of a connection with buffers of a few kilobytes.
    async fn narrow() -> (Line, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        SockRef::from(&listener).set_recv_buffer_size(4096).unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        SockRef::from(&near).set_send_buffer_size(4096).unwrap();
        let (far, peer) = listener.accept().await.unwrap();
        let patience = Patience::new(Duration::from_secs(1), Duration::from_secs(1));
        let activity = Live::default().add(&patience);
        let (_, stop) = stop::stopper();
        (
            Line::new(Stream::Plain(near), peer, Slot::alone(), activity, stop),
            far,
        )
    }

    #[tokio::test]
    async fn an_interim_answer_that_was_begun_ends_before_anything_else_is_written() {
        let (mut line, mut far) = narrow().await;
        let early = Early::of(&line.activity);
        let long = "x".repeat(30_000).parse().unwrap();
        early.tell(
            StatusCode::EARLY_HINTS,
            &HeaderMap::from_iter([("x-long".parse().unwrap(), long)]),
        );
        let flush = |cx: &mut Context<'_>| Poll::Ready(Pin::new(&mut line.stream).poll_flush(cx));
        let flushed = poll_fn(flush).await;
        assert!(flushed.is_pending(), "it fits whole");
        early.tell(StatusCode::PROCESSING, &HeaderMap::new());
        line.activity.interim.ends();
        let writing = tokio::spawn(async move {
            line.stream
                .write_all(b"HTTP/1.1 200 OK\r\n\r\n")
                .await
                .unwrap();
            line.stream.flush().await.unwrap();
        });
        let mut said = String::new();
        far.read_to_string(&mut said).await.unwrap();
        writing.await.unwrap();
        let heads: Vec<_> = said
            .split("\r\n\r\n")
            .map(|head| (&head[..head.len().min(12)], head.len()))
            .collect();
        assert_eq!(
            heads,
            [("HTTP/1.1 103", 30_034), ("HTTP/1.1 200", 15), ("", 0)]
        );
    }
}
