//! The live dashboard: server-sent events, one a second, to a bounded number of viewers.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use bytes::{BufMut, Bytes, BytesMut};
use hyper::body::Frame;
use tokio::sync::{Semaphore, mpsc};

use super::Board;
use super::sessions::{Sessions, Watch};
use crate::serve::{Stop, task};

/// Most viewers at once.
pub(super) const VIEWERS_MAX: usize = 64;
/// Frames that are queued for a viewer who does not read. If there are more, the stream ends and
/// the page connects again.
const BEHIND_MAX: usize = 4;

/// State that all viewers share.
#[derive(Clone)]
pub(super) struct Stage {
    seats: Arc<Semaphore>,
    stop: Stop,
}

impl Stage {
    pub(super) fn new(stop: Stop) -> Self {
        Self {
            seats: Arc::new(Semaphore::new(VIEWERS_MAX)),
            stop,
        }
    }

    /// Streams frames from now on, until the viewer leaves or falls behind, its session or token
    /// ends, or the process stops. Returns `None` if there are [`VIEWERS_MAX`] viewers.
    pub(super) fn show(
        &self,
        board: &Arc<Board>,
        sessions: &Arc<Sessions>,
        watch: Watch,
    ) -> Option<Response> {
        let seat = Arc::clone(&self.seats).try_acquire_owned().ok()?;
        let (sender, frames) = mpsc::channel(BEHIND_MAX);
        let (board, mut stop) = (Arc::clone(board), self.stop.clone());
        let sessions = Arc::clone(sessions);
        task::spawn(async move {
            let _seat = seat;
            tokio::select! {
                () = tell(&board, &sender, &sessions, &watch) => {}
                () = sender.closed() => {}
                () = stop.draining() => {}
            }
        });
        let headers = [
            (CONTENT_TYPE, "text/event-stream"),
            (CACHE_CONTROL, "no-store"),
        ];
        Some((headers, Body::new(Frames(frames))).into_response())
    }
}

async fn tell(board: &Board, sender: &mpsc::Sender<Bytes>, sessions: &Sessions, watch: &Watch) {
    let mut frames = board.follow();
    let mut frame = board.frame();
    loop {
        // A full channel means that the viewer does not read.
        if sender.try_send(event(&frame)).is_err() || frames.changed().await.is_err() {
            return;
        }
        // Checked with every frame, because a session may end and a token may expire.
        if !sessions.allows(watch) {
            return;
        }
        frame = frames.borrow_and_update().clone();
    }
}

fn event(json: &Bytes) -> Bytes {
    let mut event = BytesMut::with_capacity(json.len() + 8);
    event.put_slice(b"data: ");
    event.put_slice(json);
    event.put_slice(b"\n\n");
    event.freeze()
}

struct Frames(mpsc::Receiver<Bytes>);

impl hyper::body::Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let polled = self.0.poll_recv(cx);
        polled.map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}
