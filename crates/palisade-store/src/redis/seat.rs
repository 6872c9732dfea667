//! Which of a store's connections the calling thread uses.
//!
//! Whoever makes a connection also drives it: its task runs on the runtime of the first
//! call. Were connections shared by all threads alike, most calls would wake another
//! thread to be sent and again to be answered, which costs more than the call. So each
//! thread keeps to one connection, and where every thread has a runtime of its own and
//! there are connections enough, a call never leaves its thread.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Threads are numbered in the order in which they first ask.
static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static NUMBER: usize = THREADS.fetch_add(1, Relaxed);
}

/// The calling thread's among `seats`.
pub(super) fn own<T>(seats: &[T]) -> &T {
    // A thread that is ending has no number any more.
    let number = NUMBER.try_with(|number| *number).unwrap_or(0);
    &seats[number % seats.len()]
}
