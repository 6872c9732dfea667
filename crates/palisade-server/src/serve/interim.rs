//! Interim answers (1xx): heads that are sent while the final answer is still to come.
//!
//! The HTTP library has no call for them. But after it has polled a handler that is not ready, it
//! flushes the connection. Our stream sees that flush only once everything before it has been
//! written. While a request of HTTP/1 has no answer the connection is then between two messages:
//! interim answers are written at that point and at no other.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;

use super::activity::Activity;

/// Most interim answers to one request.
const HEADS_MAX: u32 = 8;
/// Most bytes of all interim answers to one request.
const BYTES_MAX: usize = 32 * 1024;

/// The interim answers of one connection.
#[derive(Default)]
pub(super) struct Interim {
    /// Number of answers so far. An interim answer belongs to the next one, or is discarded.
    answered: AtomicU64,
    /// Whether an interim answer waits to be written. Most connections never have one, and this
    /// flag spares them the lock.
    waits: AtomicBool,
    heads: Mutex<Heads>,
}

/// The interim answers to one request.
#[derive(Default)]
struct Heads {
    of: u64,
    count: u32,
    bytes: usize,
    unwritten: BytesMut,
}

impl Interim {
    /// Notes that the answer to a request begins. Interim answers that still wait are too late.
    pub(super) fn ends(&self) {
        // Only the connection's own task stores here.
        let answered = self.answered.load(Ordering::Relaxed);
        self.answered.store(answered + 1, Ordering::Release);
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.waits.load(Ordering::Relaxed)
    }

    /// Takes the bytes to write now, between a message and the next answer. The connection's own
    /// task calls this and [`Self::ends`], so that no answer begins in between.
    pub(super) fn take(&self) -> Bytes {
        let mut heads = self.heads.lock();
        self.waits.store(false, Ordering::Relaxed);
        // Taken even if it is too late, so that nothing is left for a later request.
        let unwritten = heads.unwritten.split().freeze();
        match heads.of == self.answered.load(Ordering::Acquire) {
            true => unwritten,
            false => Bytes::new(),
        }
    }

    /// Queues a head, and returns false if it is too late or over the bounds.
    fn put(&self, of: u64, head: &[u8]) -> bool {
        let mut heads = self.heads.lock();
        if self.answered.load(Ordering::Acquire) != of {
            return false;
        }
        if heads.of != of {
            *heads = Heads {
                of,
                ..Heads::default()
            };
        }
        if heads.count == HEADS_MAX || heads.bytes + head.len() > BYTES_MAX {
            return false;
        }
        heads.count += 1;
        heads.bytes += head.len();
        heads.unwritten.extend_from_slice(head);
        self.waits.store(true, Ordering::Relaxed);
        true
    }
}

/// A sender of interim answers to one request.
#[derive(Clone)]
pub(crate) struct Early {
    activity: Arc<Activity>,
    of: u64,
}

impl Early {
    /// A sender for the request that the connection is answering.
    pub(super) fn of(activity: &Arc<Activity>) -> Self {
        Self {
            of: activity.interim.answered.load(Ordering::Relaxed),
            activity: Arc::clone(activity),
        }
    }

    /// Passes an interim answer on: at once if the client accepts it, and never once the answer has
    /// begun. Interim answers beyond the bounds are discarded.
    pub(crate) fn tell(&self, status: StatusCode, headers: &HeaderMap) {
        if self.activity.interim.put(self.of, &head(status, headers)) {
            self.activity.wake();
        }
    }

    /// Lets the connection write interim answers that wait. One poll is enough: a client that has
    /// not taken earlier bytes by then gets only the final answer.
    pub(crate) async fn told(&self) {
        let mut had_its_turn = !self.activity.interim.is_waiting();
        poll_fn(|cx| {
            if std::mem::replace(&mut had_its_turn, true) {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}

fn head(status: StatusCode, headers: &HeaderMap) -> BytesMut {
    let mut head = BytesMut::new();
    head.put_slice(b"HTTP/1.1 ");
    head.put_slice(status.as_str().as_bytes());
    head.put_u8(b' ');
    head.put_slice(status.canonical_reason().unwrap_or_default().as_bytes());
    head.put_slice(b"\r\n");
    for (name, value) in headers {
        head.put_slice(name.as_str().as_bytes());
        head.put_slice(b": ");
        head.put_slice(value.as_bytes());
        head.put_slice(b"\r\n");
    }
    head.put_slice(b"\r\n");
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    const HINT: &[u8] = b"HTTP/1.1 103 Early Hints\r\n\r\n";

    #[test]
    fn what_has_come_too_late_is_not_written() {
        let interim = Interim::default();
        assert!(interim.put(0, HINT));
        interim.ends();
        assert_eq!(interim.take(), "", "the answer has begun");
        assert!(!interim.put(0, HINT), "nobody waits for it");
        assert!(interim.put(1, HINT), "the next request");
        assert_eq!(interim.take(), HINT);
        assert_eq!(interim.take(), "", "once");
    }

    #[test]
    fn what_one_request_left_behind_is_not_the_next_ones() {
        let interim = Interim::default();
        assert!(interim.put(0, HINT));
        interim.ends();
        assert!(interim.put(1, b"other"));
        assert_eq!(interim.take(), "other");
    }

    #[test]
    fn one_request_has_a_few_interim_answers_however_fast_they_are_written() {
        let interim = Interim::default();
        for _ in 0..HEADS_MAX {
            assert!(interim.put(0, HINT));
            assert_eq!(interim.take(), HINT);
        }
        assert!(!interim.put(0, HINT));
        interim.ends();
        assert!(!interim.put(1, &[b'x'; BYTES_MAX + 1]));
        assert!(interim.put(1, &[b'x'; BYTES_MAX]));
        assert!(!interim.put(1, b"x"));
    }
}
