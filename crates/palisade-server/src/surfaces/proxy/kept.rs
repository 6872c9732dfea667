//! Connections to one instance without TLS, kept by the worker that made them.
//!
//! Most applications run next to their proxy and speak plain HTTP/1. For these a pool that serves
//! all protocols, schemes and threads costs more than the rest of a request. Here a connection is
//! taken from a list and put back when the answer's body has ended.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{HOST, HeaderValue};
use http::{Request, Response, Uri};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::client::legacy::connect::HttpConnector;
use palisade::store::deadline;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tower::Service;

use super::body::Outgoing;
use super::connections::Unanswered;
use super::upstream::repeatable;
use crate::serve::task;

/// The connections of one worker to one instance.
pub(super) struct Kept {
    connector: HttpConnector,
    place: Uri,
    host: HeaderValue,
    list: Mutex<List>,
    idle_max: usize,
    idle_time: Duration,
}

/// Idle connections, the one that has been idle for longest first.
#[derive(Default)]
struct List {
    idle: Vec<Idle>,
    /// Whether a task is running that ends connections that idle for too long.
    is_swept: bool,
}

impl List {
    fn end_older_than(&mut self, time: Duration, now: Instant) {
        let old = self.idle.partition_point(|one| now - one.since > time);
        self.idle.drain(..old);
    }
}

struct Idle {
    sender: SendRequest<Outgoing>,
    since: Instant,
}

impl Kept {
    pub(super) fn new(
        connector: HttpConnector,
        place: Uri,
        host: HeaderValue,
        idle_max: usize,
        idle_time: Duration,
    ) -> Self {
        Self {
            connector,
            place,
            host,
            list: Mutex::default(),
            idle_max,
            idle_time,
        }
    }

    /// Sends a request, and waits for the head of its answer.
    ///
    /// A request that a kept connection did not take, because the instance had closed it, goes to
    /// another connection. If the request was already on its way when the connection ended, it is
    /// sent on a new one, once, provided it may be sent twice: `spare` is then a copy of it, made
    /// here if the caller has none.
    pub(super) async fn ask(
        self: &Arc<Self>,
        mut request: Request<Outgoing>,
        spare: &mut Option<Request<Outgoing>>,
    ) -> Result<Response<Arriving>, Unanswered> {
        let mut at_hand = self.take();
        // Copied before the host is named, because another instance has another host.
        if at_hand.is_some() && spare.is_none() {
            *spare = repeatable(&request);
        }
        self.name_host(&mut request);
        while let Some(mut sender) = at_hand {
            let mut error = match sender.try_send_request(request).await {
                Ok(response) => return Ok(self.arriving(response, sender)),
                Err(error) => error,
            };
            if let Some(not_sent) = error.take_message() {
                request = not_sent;
            } else {
                let again = spare.as_ref().and_then(repeatable);
                request = again.ok_or_else(|| Unanswered::of(error.error()))?;
                self.name_host(&mut request);
                break;
            }
            at_hand = self.take();
        }
        let mut sender = self.connect().await?;
        match sender.try_send_request(request).await {
            Ok(response) => Ok(self.arriving(response, sender)),
            Err(unsent) => Err(Unanswered::of(unsent.error())),
        }
    }

    fn name_host(&self, request: &mut Request<Outgoing>) {
        let headers = request.headers_mut();
        if !headers.contains_key(HOST) {
            headers.insert(HOST, self.host.clone());
        }
    }

    async fn connect(&self) -> Result<SendRequest<Outgoing>, Unanswered> {
        let connecting = self.connector.clone().call(self.place.clone());
        let stream = connecting
            .await
            .map_err(|error| Unanswered::unreachable(&error))?;
        let made = http1::handshake(stream).await;
        let (sender, connection) = made.map_err(|error| Unanswered::unreachable(&error))?;
        // Errors surface through the in-flight request.
        task::spawn(async { drop(connection.await) });
        Ok(sender)
    }

    /// Takes the free connection that was used last. A connection whose answer has just ended may
    /// not be free yet: it stays for the next request.
    fn take(&self) -> Option<SendRequest<Outgoing>> {
        let idle = &mut self.list.lock().idle;
        let mut place = idle.len();
        while place > 0 {
            place -= 1;
            let one = &idle[place];
            if one.sender.is_closed() {
                idle.remove(place);
            } else if one.sender.is_ready() {
                return Some(idle.remove(place).sender);
            }
        }
        None
    }

    /// Keeps a connection for the next request.
    fn keep(self: &Arc<Self>, sender: SendRequest<Outgoing>) {
        if sender.is_closed() {
            return;
        }
        let since = deadline::now();
        let mut list = self.list.lock();
        if list.idle.len() < self.idle_max {
            list.idle.push(Idle { sender, since });
        }
        // Without a runtime the service is stopping and keeps nothing.
        if !list.is_swept
            && let Ok(runtime) = Handle::try_current()
        {
            list.is_swept = true;
            runtime.spawn(task::boxed(sweep(Arc::downgrade(self), self.idle_time)));
        }
    }

    fn arriving(
        self: &Arc<Self>,
        response: Response<Incoming>,
        sender: SendRequest<Outgoing>,
    ) -> Response<Arriving> {
        let way = Some((sender, Arc::clone(self)));
        response.map(|body| Arriving { body, way })
    }
}

/// Ends connections that have been idle for this long, until none is left.
async fn sweep(kept: Weak<Kept>, time: Duration) {
    loop {
        tokio::time::sleep(time).await;
        let Some(kept) = kept.upgrade() else {
            return;
        };
        let mut list = kept.list.lock();
        list.end_older_than(time, deadline::now());
        if list.idle.is_empty() {
            list.is_swept = false;
            return;
        }
    }
}

/// The body of an application's answer, with the connection that it arrives on.
pub(crate) struct Arriving {
    body: Incoming,
    /// `None` if the connection is kept elsewhere.
    way: Option<(SendRequest<Outgoing>, Arc<Kept>)>,
}

impl From<Incoming> for Arriving {
    fn from(body: Incoming) -> Self {
        Self { body, way: None }
    }
}

impl Drop for Arriving {
    /// Keeps the connection only if the whole body has been read. With a rest of the body on it, it
    /// can be used for nothing else.
    fn drop(&mut self) {
        if let Some((sender, kept)) = self.way.take()
            && self.body.is_end_stream()
        {
            kept.keep(sender);
        }
    }
}

impl Body for Arriving {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(None) = polled
            && let Some((sender, kept)) = self.way.take()
        {
            kept.keep(sender);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use http_body_util::BodyExt;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;

    use super::*;

    const TIME: Duration = Duration::from_millis(100);

    /// An application that answers every request and closes no connection.
    async fn app() -> SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let answer =
                    service_fn(async |_| Ok::<_, hyper::Error>(Response::new("ok".to_owned())));
                let served = hyper::server::conn::http1::Builder::new();
                tokio::spawn(served.serve_connection(TokioIo::new(stream), answer));
            }
        });
        address
    }

    /// Connections to an application of their own.
    async fn kept(idle_max: usize, idle_time: Duration) -> Arc<Kept> {
        let place = format!("http://{}/", app().await).parse().unwrap();
        let (connector, host) = (HttpConnector::new(), HeaderValue::from_static("app"));
        Arc::new(Kept::new(connector, place, host, idle_max, idle_time))
    }

    async fn ask(kept: &Arc<Kept>) {
        let request = Request::new(Outgoing::of(Bytes::new()));
        let answer = kept.ask(request, &mut None).await.unwrap();
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "ok");
    }

    fn waiting(kept: &Kept) -> usize {
        kept.list.lock().idle.len()
    }

    #[tokio::test]
    async fn a_connection_that_nobody_uses_ends_and_the_next_request_makes_another() {
        let kept = kept(4, TIME).await;
        for _ in 0..2 {
            ask(&kept).await;
            ask(&kept).await;
            assert_eq!(waiting(&kept), 1, "one after another they use one");
            while waiting(&kept) > 0 {
                tokio::time::sleep(TIME / 10).await;
            }
        }
    }

    #[tokio::test]
    async fn no_more_connections_wait_than_may() {
        let kept = kept(3, TIME * 600).await;
        let all = (0..8).map(|_| ask(&kept));
        futures_util::future::join_all(all).await;
        assert_eq!(waiting(&kept), 3);
    }
}
