//! One thread, one runtime, one listening socket per core: a connection stays on
//! its worker, and workers share nothing but the engine.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::net::{SocketAddr, TcpListener};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, HeaderValue};
use http::{Request, Response, StatusCode};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use super::connection::{Activity, Live, Patience, Tracked, Verdict, Watched};
use super::stop::Stop;
use super::trace;
use crate::failure::Failure;

/// Longest request head, in bytes.
const HEAD_BYTES_MAX: usize = 32 * 1024;
/// Pause after the system refused to accept (too many open files).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Answers the requests of one address.
pub(crate) trait Handler: Send + Sync + 'static {
    /// What its answers consist of.
    type Body: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Send
        + Unpin
        + 'static;

    /// Answers a request of `peer`.
    fn answer(
        &self,
        peer: SocketAddr,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Self::Body>> + Send;
}

/// How an address is served.
#[derive(Clone)]
pub(crate) struct Serving {
    /// Bounds the connections of the address.
    pub(crate) gate: Arc<Semaphore>,
    pub(crate) patience: Patience,
    pub(crate) drain: Duration,
    pub(crate) stop: Stop,
}

/// Starts a worker thread, with a handler from `make`, for each listener.
pub(crate) fn spawn<H: Handler>(
    name: &'static str,
    listeners: Vec<TcpListener>,
    make: impl Fn() -> Arc<H>,
    serving: &Serving,
) -> Result<Vec<JoinHandle<()>>, Failure> {
    let refused = |error: std::io::Error| {
        Failure::unavailable(
            format!("cannot start a worker thread: {error}"),
            "raise the limits on threads and open files, or set `[server] workers`",
        )
    };
    let mut threads = Vec::with_capacity(listeners.len());
    for listener in listeners {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(refused)?;
        let (handler, serving) = (make(), serving.clone());
        let thread = std::thread::Builder::new()
            .name(format!("palisade-{name}"))
            .spawn(move || runtime.block_on(run(listener, handler, serving)))
            .map_err(refused)?;
        threads.push(thread);
    }
    Ok(threads)
}

/// Accepts until the process ends, then waits for what is under way.
pub(crate) async fn run<H: Handler>(listener: TcpListener, handler: Arc<H>, serving: Serving) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "a listening socket cannot be used");
            return;
        }
    };
    let live = Live::default();
    tokio::select! {
        () = accept_all(listener, handler, &serving, &live) => {}
        () = watch(&live, serving.patience, serving.stop.clone()) => {}
    }
}

/// Ends connections that wait too long, and all of them when the time has come.
/// Never done itself.
async fn watch(live: &Live, patience: Patience, mut stop: Stop) {
    let mut ticks = tokio::time::interval(patience.tick);
    let mut closing = pin!(stop.closing());
    let mut is_closing = false;
    loop {
        tokio::select! {
            () = closing.as_mut(), if !is_closing => {
                is_closing = true;
                live.close();
            }
            _ = ticks.tick() => live.tick(&patience),
        }
    }
}

async fn accept_all<H: Handler>(
    listener: tokio::net::TcpListener,
    handler: Arc<H>,
    serving: &Serving,
    live: &Live,
) {
    let mut connections = JoinSet::new();
    let mut stop = serving.stop.clone();
    loop {
        tokio::select! {
            biased;
            () = stop.draining() => break,
            Some(_) = connections.join_next() => {}
            accepted = accept(&listener, &serving.gate) => {
                start(&mut connections, accepted, &handler, serving, live);
            }
        }
    }
    sweep(&listener, &mut connections, &handler, serving, live);
    drop(listener);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(serving.drain, drained).await.is_err() {
        tracing::warn!("connections were cut off: they did not end within `drain_timeout`");
    }
}

type Accepted = (TcpStream, SocketAddr, OwnedSemaphorePermit);

async fn accept(listener: &tokio::net::TcpListener, gate: &Arc<Semaphore>) -> Option<Accepted> {
    let permit = Arc::clone(gate).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, peer)) => Some((stream, peer, permit)),
        Err(error) => {
            tracing::warn!(kind = ?error.kind(), "a connection could not be accepted");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

/// Connections that the kernel has already completed would otherwise be reset.
fn sweep<H: Handler>(
    listener: &tokio::net::TcpListener,
    connections: &mut JoinSet<()>,
    handler: &Arc<H>,
    serving: &Serving,
    live: &Live,
) {
    use std::task::{Context, Waker};
    let mut context = Context::from_waker(Waker::noop());
    while let Ok(permit) = Arc::clone(&serving.gate).try_acquire_owned() {
        match listener.poll_accept(&mut context) {
            Poll::Ready(Ok((stream, peer))) => {
                start(
                    connections,
                    Some((stream, peer, permit)),
                    handler,
                    serving,
                    live,
                );
            }
            Poll::Ready(Err(_)) | Poll::Pending => return,
        }
    }
}

fn start<H: Handler>(
    connections: &mut JoinSet<()>,
    accepted: Option<Accepted>,
    handler: &Arc<H>,
    serving: &Serving,
    live: &Live,
) {
    let Some((stream, peer, permit)) = accepted else {
        return;
    };
    let connection = Connection {
        handler: Arc::clone(handler),
        activity: live.add(),
        stop: serving.stop.clone(),
        peer,
    };
    connections.spawn(async move {
        connection.serve(stream).await;
        drop(permit);
    });
}

struct Connection<H> {
    handler: Arc<H>,
    activity: Arc<Activity>,
    stop: Stop,
    peer: SocketAddr,
}

impl<H: Handler> Connection<H> {
    async fn serve(self, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let activity = Arc::clone(&self.activity);
        let io = TokioIo::new(Watched::new(stream, Arc::clone(&activity)));
        let this = Arc::new(self);
        let service = service_fn(move |request| {
            let this = Arc::clone(&this);
            async move { Ok::<_, Infallible>(this.answer(request).await) }
        });
        let connection = http1::Builder::new()
            .max_buf_size(HEAD_BYTES_MAX)
            .pipeline_flush(true)
            .serve_connection(io, service)
            .with_upgrades();
        let mut connection = pin!(connection);
        let mut asked_to_close = false;
        // The connection comes first: a request that has arrived is read before the
        // connection is asked to close.
        poll_fn(|cx| {
            loop {
                if connection.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(());
                }
                match activity.verdict(cx) {
                    Verdict::Close if !asked_to_close => {
                        asked_to_close = true;
                        connection.as_mut().graceful_shutdown();
                    }
                    Verdict::Stay | Verdict::Close => return Poll::Pending,
                    Verdict::End => return Poll::Ready(()),
                }
            }
        })
        .await;
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Tracked<H::Body>> {
        self.activity.answering();
        let span = trace::span(&request);
        let mut response = trace::run(span, self.handler.answer(self.peer, request)).await;
        if self.stop.is_draining() && response.status() != StatusCode::SWITCHING_PROTOCOLS {
            response
                .headers_mut()
                .insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response.map(|body| Tracked::new(body, Arc::clone(&self.activity)))
    }
}
