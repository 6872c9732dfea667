//! The writer's thread: events → lines → sink, with patience when the sink fails.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::event::{Event, Rank};
use super::queue::{Queue, Woken};
use super::{Shared, Sink};

/// How long nothing has to come before a running second is closed.
const IDLE: Duration = Duration::from_secs(1);
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_LONGEST: Duration = Duration::from_secs(5);
/// Attempts that are left once the process ends.
const LAST_ATTEMPTS: u32 = 3;

pub(super) fn run(shared: &Shared, queue: &Queue, mut sink: Box<dyn Sink>) {
    let mut lines = Vec::with_capacity(64 * 1024);
    loop {
        match queue.take(IDLE) {
            Woken::Batch(events, up_to) => {
                lines.clear();
                for event in &events {
                    event.write_line(&mut lines);
                }
                write(shared, queue, &mut *sink, (&lines, &events));
                queue.settle(up_to);
            }
            // A place that keeps few events is idle while others are flooded.
            Woken::Idle if queue.keeps(Rank::Refusal) => shared.close_second(),
            Woken::Idle => {}
            Woken::Ended => break,
        }
    }
    if sink.sync().is_err() {
        shared.counts.sink_errors.fetch_add(1, Ordering::Relaxed);
    }
}

/// Tries until it succeeds; once the process ends, only a few times more.
fn write(shared: &Shared, queue: &Queue, sink: &mut dyn Sink, batch: (&[u8], &[Event])) {
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
