//! Interim answers (1xx): heads that are passed on while the answer itself is still to come.
//!
//! The HTTP library has no call for them. But whenever it has asked a handler that is not done
//! yet, it flushes the connection, and that reaches us only when all that it had to write before
//! is written. While a request of HTTP/1 has no answer the connection then stands between two
//! messages: what waits here is written at that point and at no other.

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
/// Most bytes of all of them.
const BYTES_MAX: usize = 32 * 1024;

/// The interim answers of one connection.
#[derive(Default)]
pub(super) struct Interim {
    /// Answers so far: an interim one belongs to the next of them, or to none.
    answered: AtomicU64,
    /// Something is here to be written. Most connections never have anything, and find that out
    /// without the lock.
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
    /// The answer to a request begins: what waits has come too late.
    pub(super) fn ends(&self) {
        // By the connection's own task alone.
        let answered = self.answered.load(Ordering::Relaxed);
        self.answered.store(answered + 1, Ordering::Release);
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.waits.load(Ordering::Relaxed)
    }

    /// What is to be written now, at the end of a message and before the next answer. Asked by
    /// the connection's own task, as [`Self::ends`] is called: no answer begins in between.
    pub(super) fn take(&self) -> Bytes {
        let mut heads = self.heads.lock();
        self.waits.store(false, Ordering::Relaxed);
        let unwritten = heads.unwritten.split().freeze();
        match heads.of == self.answered.load(Ordering::Acquire) {
            true => unwritten,
            false => Bytes::new(),
        }
    }

    /// Keeps a head until it can be written; false if it may not be.
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

/// The way for interim answers to one request.
#[derive(Clone)]
pub(crate) struct Early {
    activity: Arc<Activity>,
    of: u64,
}

impl Early {
    /// To the request that the connection is answering.
    pub(super) fn of(activity: &Arc<Activity>) -> Self {
        Self {
            of: activity.interim.answered.load(Ordering::Relaxed),
            activity: Arc::clone(activity),
        }
    }

    /// Passes an interim answer on: at once if the client takes it, and never once the answer
    /// has begun. More than a few, and long ones, stay behind.
    pub(crate) fn tell(&self, status: StatusCode, headers: &HeaderMap) {
        if self.activity.interim.put(self.of, &head(status, headers)) {
            self.activity.wake();
        }
    }

    /// Lets the connection write what waits. It has one turn, which is all that it needs: a
    /// client that has not taken what came before gets the answer alone.
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
