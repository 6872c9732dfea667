//! HTTP/1 and HTTP/2 on a connection: whichever the client begins with.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, HOST, HeaderMap, HeaderValue, TRANSFER_ENCODING};
use http::{Request, Response, StatusCode, Version};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};

use super::activity::{Activity, ConnectionVerdict, UnderWay};
use super::hang_up::HangUp;
use super::interim::Early;
use super::line::{Begins, Line};
use super::stop::Stop;
use super::streams::{Delivery, Streams};
use super::surface::Protocol;
use super::trace;

/// Longest request head of HTTP/1, in bytes. (hyper's option to join the answers to pipelined
/// requests is not used: with it hyper sends no answer to a head that it cannot parse.)
const HEAD_BYTES_MAX: usize = 32 * 1024;
/// Longest request head of HTTP/2, in bytes. That protocol counts it in 32 bits.
const HEADER_LIST_BYTES_MAX: u32 = 32 * 1024;
/// Most requests at once on one HTTP/2 connection.
const STREAMS_MAX: u32 = 256;

/// Interval and timeout of HTTP/2 pings. Without pings we would never notice that a peer is gone
/// while it waits for an answer of ours.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_PATIENCE: Duration = Duration::from_secs(20);

/// Marks a response as an endless stream, in its extensions. A connection that carries nothing else
/// is closed at its age.
#[derive(Clone, Copy)]
pub(crate) struct EndlessStream;

/// The sender of the requests on a connection.
pub(crate) struct Client {
    pub(crate) address: SocketAddr,
    activity: Arc<Activity>,
}

impl Client {
    /// Returns a sender of interim answers to the request being answered, if it is of HTTP/1.1.
    /// HTTP/1.0 has none (RFC 9110 §15.2), and the HTTP library gives no access to streams of
    /// HTTP/2.
    pub(crate) fn early(&self, version: Version) -> Option<Early> {
        (version == Version::HTTP_11).then(|| Early::of(&self.activity))
    }

    /// Tells a request of this version that the client has hung up. A request of HTTP/2 is dropped
    /// then, and needs nobody to tell it.
    pub(crate) fn hang_up(&self, version: Version) -> Option<HangUp> {
        (version < Version::HTTP_2).then(|| HangUp::new(&self.activity))
    }
}

/// Answers the requests of one surface that speaks HTTP.
pub(crate) trait Handler: Send + Sync + 'static {
    /// The body of an answer.
    type Body: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Send
        + Unpin
        + 'static;

    /// Whether answers are short, a few hundred bytes. Over HTTP/2 several are then written
    /// together.
    const IS_SHORT: bool = false;

    /// Answers a request of `client`.
    fn answer(
        &self,
        client: &Client,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Self::Body>> + Send;

    /// Waits, at shutdown, for work that continues without a client.
    fn settled(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

impl<H: Handler> Protocol for H {
    async fn settle(&self) {
        self.settled().await;
    }

    async fn converse(self: Arc<Self>, line: Line) {
        let Line {
            stream,
            peer,
            activity,
            stop,
        } = line;
        let exchange = Arc::new(Exchange {
            handler: self,
            client: Client {
                address: peer,
                activity: Arc::clone(&activity),
            },
            stop,
        });
        // The HTTP version that the client begins with, if its first bytes arrive in time.
        let begins = activity.unless_told(ConnectionVerdict::Close, stream.begins());
        match begins.await.and_then(Result::ok) {
            Some(Begins::One) => {
                let io = TokioIo::new(stream);
                let service = service_fn(move |request| {
                    let exchange = Arc::clone(&exchange);
                    async move { Ok::<_, Infallible>(exchange.answer(request).await) }
                });
                let connection = http1::Builder::new()
                    .max_buf_size(HEAD_BYTES_MAX)
                    // A client that closes its sending half still waits for the answer.
                    .half_close(true)
                    .serve_connection(io, service)
                    .with_upgrades();
                drive(
                    connection,
                    &activity,
                    http1::UpgradeableConnection::graceful_shutdown,
                )
                .await;
                // If the connection is still open, a websocket has it now.
                activity.hand_over();
            }
            Some(Begins::Two) => {
                activity.multiplex();
                // Each request becomes a task and is moved several times on the way there: a boxed
                // future moves a pointer and not kilobytes.
                let service = service_fn(move |request| {
                    let exchange = Arc::clone(&exchange);
                    // The box is allocated before the future is made in it, so that the future is
                    // never copied.
                    Box::into_pin(Box::write(Box::new_uninit(), async move {
                        Ok::<_, Infallible>(exchange.answer(request).await)
                    }))
                });
                let io = TokioIo::new(if H::IS_SHORT { stream.joined() } else { stream });
                let connection = http2::Builder::new(Streams::new(activity.stream_wait))
                    .max_header_list_size(HEADER_LIST_BYTES_MAX)
                    .max_concurrent_streams(STREAMS_MAX)
                    .timer(TokioTimer::new())
                    .keep_alive_interval(Some(PING_EVERY))
                    .keep_alive_timeout(PING_PATIENCE)
                    .serve_connection(io, service);
                drive(connection, &activity, http2::Connection::graceful_shutdown).await;
            }
            None => {}
        }
    }
}

/// Serves a connection until it ends or its verdict ends it.
async fn drive<C: Future>(connection: C, activity: &Activity, close: impl Fn(Pin<&mut C>)) {
    let mut connection = pin!(connection);
    let mut asked_to_close = false;
    // The connection is polled first, so that a request that has arrived is read before the
    // connection is asked to close.
    poll_fn(|cx| {
        loop {
            if connection.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            match activity.verdict(cx) {
                ConnectionVerdict::Close if !asked_to_close => {
                    asked_to_close = true;
                    close(connection.as_mut());
                }
                ConnectionVerdict::Stay | ConnectionVerdict::Close => return Poll::Pending,
                ConnectionVerdict::End => return Poll::Ready(()),
            }
        }
    })
    .await;
}

/// The state that all requests of a connection share.
struct Exchange<H> {
    handler: Arc<H>,
    client: Client,
    stop: Stop,
}

impl<H: Handler> Exchange<H> {
    async fn answer(&self, request: Request<Incoming>) -> Response<TrackedBody<H::Body>> {
        let mut under_way = UnderWay::begin(&self.client.activity);
        let one_at_a_time = request.version() < Version::HTTP_2;
        if !names_one_host(&request) {
            return TrackedBody::refusal(StatusCode::BAD_REQUEST, under_way);
        }
        if !is_only_chunked(request.headers()) {
            return TrackedBody::refusal(StatusCode::NOT_IMPLEMENTED, under_way);
        }
        let span = trace::span(&request);
        // Pinned on the stack: moving the future would copy kilobytes with every request.
        let answering = pin!(self.handler.answer(&self.client, request));
        let mut response = trace::run(span, answering).await;
        // Interim answers that still wait are too late now.
        self.client.activity.interim.ends();
        let switches = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        // On HTTP/2 a GOAWAY frame does this.
        if one_at_a_time && self.stop.is_leaving() && !switches {
            response
                .headers_mut()
                .insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if response.extensions().get::<EndlessStream>().is_some() {
            under_way.lasts();
        }
        response.map(|body| TrackedBody::new(Some(body), under_way))
    }
}

/// RFC 9112 §3.2: a request of HTTP/1.1 names its host exactly once, and no request names two. A
/// server behind us could otherwise choose another one of them than we do.
fn names_one_host<B>(request: &Request<B>) -> bool {
    let mut lines = request.headers().get_all(HOST).iter();
    let has_one = lines.next().is_some() || request.version() != Version::HTTP_11;
    has_one && lines.next().is_none()
}

/// True if the body that we read is the one its sender meant. The HTTP library decodes chunks and
/// ignores all other transfer codings (RFC 9112 §6.1).
pub(crate) fn is_only_chunked(headers: &HeaderMap) -> bool {
    let mut lines = headers.get_all(TRANSFER_ENCODING).iter();
    lines.next().is_none_or(|line| {
        line.as_bytes().eq_ignore_ascii_case(b"chunked") && lines.next().is_none()
    })
}

/// A body that notes when it has been handed over or given up.
struct TrackedBody<B> {
    /// `None` if no handler was asked.
    body: Option<B>,
    under_way: UnderWay,
    delivery: Option<Arc<Delivery>>,
}

impl<B> TrackedBody<B> {
    fn new(body: Option<B>, mut under_way: UnderWay) -> Self {
        under_way.waits_for_us(false);
        Self {
            body,
            under_way,
            delivery: Delivery::current(),
        }
    }

    /// An empty answer that closes the connection, as the HTTP library answers a head that it
    /// cannot read.
    fn refusal(status: StatusCode, under_way: UnderWay) -> Response<Self> {
        let mut response = Response::new(Self::new(None, under_way));
        *response.status_mut() = status;
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(CONNECTION, close);
        response
    }
}

impl<B: Body + Unpin> Body for TrackedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let polled = Pin::new(body).poll_frame(cx);
        self.under_way.waits_for_us(polled.is_pending());
        if let Some(delivery) = &self.delivery {
            delivery.advance(polled.is_ready());
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let none = || SizeHint::with_exact(0);
        self.body.as_ref().map_or_else(none, Body::size_hint)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::sync::Arc;

    use tokio::sync::Notify;

    use super::super::activity::{Live, Patience};
    use super::super::line::Stream;
    use super::super::slots::Slot;
    use super::super::stop;
    use super::*;

    /// A handler that never answers.
    #[derive(Default)]
    struct Never {
        asked: Notify,
    }

    impl Handler for Never {
        type Body = String;

        async fn answer(&self, _: &Client, _: Request<Incoming>) -> Response<String> {
            self.asked.notify_one();
            std::future::pending().await
        }
    }

    /// Begins a request of HTTP/2 and then sends nothing more. Returns all bytes it receives until
    /// the end.
    fn silent_peer(address: SocketAddr) -> Vec<u8> {
        const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        // `:method GET`, `:scheme http`, `:path /` and `:authority a`, the end of the stream.
        const HEAD: &[u8] = b"\0\0\x06\x01\x05\0\0\0\x01\x82\x86\x84\x41\x01a";
        let mut peer = std::net::TcpStream::connect(address).unwrap();
        peer.write_all(&[PREFACE, HEAD].concat()).unwrap();
        let mut told = Vec::new();
        let _ = peer.read_to_end(&mut told);
        told
    }

    fn has_ping(mut frames: &[u8]) -> bool {
        while let Some((head, rest)) = frames.split_first_chunk::<9>() {
            if head[3] == 6 && head[4] == 0 {
                return true;
            }
            let length = usize::from(head[1]) << 8 | usize::from(head[2]);
            frames = rest.get(length..).unwrap_or_default();
        }
        false
    }

    #[tokio::test]
    async fn a_peer_that_gives_no_sign_of_life_is_given_up_though_it_waits_for_an_answer() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let peer = std::thread::spawn(move || silent_peer(address));
        let (stream, _) = listener.accept().await.unwrap();
        let patience = Patience::new(Duration::from_secs(5), Duration::from_secs(60));
        let line = Line::new(
            Stream::Plain(stream),
            address,
            Slot::alone(),
            Live::default().add(&patience),
            stop::stopper().1,
        );
        let patience = PING_EVERY + PING_PATIENCE;
        let never = Arc::new(Never::default());
        let mut served = pin!(Arc::clone(&never).converse(line));
        tokio::select! {
            () = served.as_mut() => panic!("it ended"),
            () = never.asked.notified() => {}
        }
        // From here on no bytes arrive, so that time can be advanced freely.
        tokio::time::pause();
        let early = tokio::time::timeout(patience - Duration::from_secs(1), served.as_mut());
        assert!(early.await.is_err(), "it has its time");
        let late = tokio::time::timeout(patience, served);
        assert!(late.await.is_ok(), "it was kept");
        assert!(has_ping(&peer.join().unwrap()));
    }
}
