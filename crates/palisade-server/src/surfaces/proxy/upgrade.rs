//! Websockets: after the handshake, bytes in both directions until one side closes or both are
//! silent for too long.
//!
//! No other protocol is passed on. One that carries further requests (HTTP/2 after `Upgrade: h2c`)
//! would take them past every limit for the price of one.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{HeaderMap, HeaderValue, UPGRADE};
use http::{Method, Request, Response};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};

use super::body::{Outgoing, Relayed};
use super::empty;
use super::headers::named_by_connection;
use super::hold::Hold;
use super::kept::Arriving;
use crate::serve::task;
use crate::surfaces::exchange::ids::RequestId;
use crate::surfaces::exchange::problem::Problem;

pub(super) const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");

/// Number of checks for silence within the longest silence.
const LOOKS: u32 = 4;

/// True if the headers request a websocket, or agree to one.
pub(super) fn is_websocket(headers: &HeaderMap) -> bool {
    let named = headers
        .get_all(UPGRADE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|protocol| protocol.trim().eq_ignore_ascii_case("websocket"));
    named && named_by_connection(headers).contains(&UPGRADE)
}

/// Takes the client's side of the connection, if the request is for a websocket.
pub(super) fn wanted(request: &mut Request<Outgoing>) -> Option<OnUpgrade> {
    let asks = *request.method() == Method::GET && is_websocket(request.headers());
    asks.then(|| hyper::upgrade::on(request))
}

/// Passes the application's agreement on and joins the two connections. An agreement that nobody
/// requested, or to another protocol, counts as no answer.
pub(super) fn join(
    client: Option<OnUpgrade>,
    mut response: Response<Arriving>,
    silence_max: Duration,
    hold: Option<Hold>,
    id: &RequestId,
) -> Result<Response<Relayed>, Problem> {
    let agreed = is_websocket(response.headers());
    let Some(client) = client.filter(|_| agreed) else {
        tracing::warn!(
            request_id = id.as_str(),
            "the application switched to a protocol that it was not asked for"
        );
        return Err(Problem::bad_gateway());
    };
    let upstream = hyper::upgrade::on(&mut response);
    task::spawn(async move {
        if let (Ok(client), Ok(upstream)) = (client.await, upstream.await) {
            tunnel(client, upstream, silence_max, hold).await;
        }
    });
    Ok(response.map(|_| empty()))
}

/// Copies bytes between both sides. The client's connection holds its slot until this ends, and
/// the request its place.
async fn tunnel(
    client: Upgraded,
    upstream: Upgraded,
    silence_max: Duration,
    mut hold: Option<Hold>,
) {
    let heard = Arc::new(AtomicBool::new(true));
    let (mut client, mut upstream) = (Heard::new(client, &heard), Heard::new(upstream, &heard));
    tokio::select! {
        _ = copy_bidirectional(&mut client, &mut upstream) => {}
        () = silence(&heard, silence_max) => {}
        () = over(&mut hold) => {}
    }
}

/// Waits until the request may not be held any longer; for ever if it holds nothing.
async fn over(hold: &mut Option<Hold>) {
    match hold {
        Some(hold) => hold.over().await,
        None => std::future::pending().await,
    }
}

/// Waits until no bytes have arrived for `longest`.
async fn silence(heard: &AtomicBool, longest: Duration) {
    let mut quiet = 0;
    while quiet < LOOKS {
        tokio::time::sleep(longest / LOOKS).await;
        quiet = match heard.swap(false, Ordering::Relaxed) {
            true => 0,
            false => quiet + 1,
        };
    }
}

/// One side of a tunnel, which notes when bytes arrive from its peer.
struct Heard {
    stream: TokioIo<Upgraded>,
    heard: Arc<AtomicBool>,
}

impl Heard {
    fn new(stream: Upgraded, heard: &Arc<AtomicBool>) -> Self {
        Self {
            stream: TokioIo::new(stream),
            heard: Arc::clone(heard),
        }
    }
}

impl AsyncRead for Heard {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if polled.is_ready() {
            self.heard.store(true, Ordering::Relaxed);
        }
        polled
    }
}

impl AsyncWrite for Heard {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(connection: &'static str, upgrade: &'static str) -> HeaderMap {
        HeaderMap::from_iter([
            (
                http::header::CONNECTION,
                HeaderValue::from_static(connection),
            ),
            (UPGRADE, HeaderValue::from_static(upgrade)),
        ])
    }

    #[test]
    fn only_a_websocket_is_one() {
        assert!(is_websocket(&of("keep-alive, Upgrade", "WebSocket")));
        assert!(is_websocket(&of("upgrade", "h2c, websocket")));
        assert!(!is_websocket(&of("upgrade", "h2c")));
        assert!(!is_websocket(&of("upgrade", "websockets")));
        assert!(!is_websocket(&of("keep-alive", "websocket")));
    }
}
