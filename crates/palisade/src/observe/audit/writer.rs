//! The writer's thread: turns events into lines and hands them to a sink, with retries while the
//! sink fails.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::event::{Event, Rank};
use super::queue::{Queue, WakeReason};
use super::{AuditState, Sink};

/// Time without events after which the current second is closed.
const IDLE: Duration = Duration::from_secs(1);
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_LONGEST: Duration = Duration::from_secs(5);
/// Attempts to write a batch once the process is ending.
const LAST_ATTEMPTS: u32 = 3;

pub(super) fn run(shared: &AuditState, queue: &Queue, mut sink: Box<dyn Sink>) {
    let mut lines = Vec::with_capacity(64 * 1024);
    loop {
        match queue.take(IDLE) {
            WakeReason::Batch(events, up_to) => {
                lines.clear();
                for event in &events {
                    event.write_line(&mut lines);
                }
                write(shared, queue, &mut *sink, (&lines, &events));
                queue.settle(up_to);
            }
            // Only queues that take everything may close a second: one that takes few events is
            // idle even in a flood.
            WakeReason::Idle if queue.keeps(Rank::Refusal) => shared.close_second(),
            WakeReason::Idle => {}
            WakeReason::Ended => break,
        }
    }
    if sink.sync().is_err() {
        shared.counts.sink_errors.fetch_add(1, Ordering::Relaxed);
    }
}

/// Writes a batch, and retries until it succeeds; once the process ends, only a few times more.
fn write(shared: &AuditState, queue: &Queue, sink: &mut dyn Sink, batch: (&[u8], &[Event])) {
    let (lines, events) = batch;
    let mut wait = RETRY_FIRST;
    let mut attempts_left = LAST_ATTEMPTS;
    while sink.write(lines).is_err() {
        shared.counts.sink_errors.fetch_add(1, Ordering::Relaxed);
        if queue.pause(wait) {
            attempts_left -= 1;
            if attempts_left == 0 {
                for event in events {
                    shared.counts.lost(event.rank().priority());
                }
                return;
            }
        }
        wait = (wait * 2).min(RETRY_LONGEST);
    }
    let count = events.len() as u64;
    shared.counts.written.fetch_add(count, Ordering::Relaxed);
}
