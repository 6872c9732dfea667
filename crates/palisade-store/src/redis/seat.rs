//! The connection of a store that the calling thread uses.
//!
//! The thread that makes a connection also drives it: the connection's task runs on the runtime of
//! the first call. If all threads shared the connections alike, most calls would wake another
//! thread to be sent and again to be answered, which costs more than the call. So each thread
//! keeps to one connection, and where every thread has a runtime of its own and there are enough
//! connections, a call never leaves its thread.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Threads are numbered in the order of their first calls.
static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static NUMBER: usize = THREADS.fetch_add(1, Relaxed);
}

/// The one of `seats` that belongs to the calling thread.
pub(super) fn own<T>(seats: &[T]) -> &T {
    // A thread that is ending has lost its number.
    let number = NUMBER.try_with(|number| *number).unwrap_or(0);
    &seats[number % seats.len()]
}
