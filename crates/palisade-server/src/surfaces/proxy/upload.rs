//! Progress of a body that is streamed, and which side stalls if there is none.

use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Frame;
use palisade::store::deadline;
use parking_lot::Mutex;
use tokio::time::Instant;

/// Bytes that count as one step of progress: a byte now and then is none.
const STEP_BYTES: usize = 16 * 1024;

/// The progress of a streamed body.
pub(crate) struct Upload(Mutex<State>);

struct State {
    /// When the last step, or the body, was complete.
    since: Instant,
    /// Bytes since then.
    bytes: usize,
    /// Whether the client owes the next part. Otherwise the application has not taken the last one.
    waits_for_client: bool,
}

impl Default for Upload {
    fn default() -> Self {
        Self(Mutex::new(State {
            since: deadline::now(),
            bytes: 0,
            waits_for_client: false,
        }))
    }
}

impl Upload {
    /// Notes a part that was handed to the application. `is_last` if the body ends with it.
    pub(super) fn saw<E>(&self, polled: &Poll<Option<Result<Frame<Bytes>, E>>>, is_last: bool) {
        let mut state = self.0.lock();
        state.waits_for_client = polled.is_pending();
        match polled {
            Poll::Pending => return,
            Poll::Ready(Some(Ok(frame))) => {
                state.bytes += frame.data_ref().map_or(0, Bytes::len);
                if state.bytes < STEP_BYTES && !is_last {
                    return;
                }
            }
            Poll::Ready(_) => {}
        }
        state.bytes = 0;
        state.since = deadline::now();
    }

    /// Returns when the time for the current step (after the last part, for the application's
    /// answer) is up; `None` if it is up already.
    pub(super) fn ends(&self, time: Duration) -> Option<Instant> {
        let ends = self.0.lock().since + time;
        (ends > deadline::now()).then_some(ends)
    }

    /// True if the client stalls, and not the application.
    pub(super) fn waits_for_client(&self) -> bool {
        self.0.lock().waits_for_client
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    const TIME: Duration = Duration::from_secs(60);

    fn part(bytes: usize) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(Some(Ok(Frame::data(vec![0; bytes].into()))))
    }

    #[tokio::test(start_paused = true)]
    async fn time_starts_anew_with_each_step_and_with_the_end() {
        let upload = Upload::default();
        let start = deadline::now();
        let later = async || tokio::time::advance(TIME / 2).await;
        later().await;
        upload.saw(&part(STEP_BYTES - 1), false);
        assert_eq!(upload.ends(TIME), Some(start + TIME), "not enough");
        upload.saw(&part(1), false);
        assert_eq!(upload.ends(TIME), Some(start + TIME * 3 / 2));
        later().await;
        upload.saw::<Infallible>(&Poll::Ready(None), true);
        assert_eq!(upload.ends(TIME), Some(start + TIME * 2));
        later().await;
        later().await;
        assert_eq!(upload.ends(TIME), None);
    }

    #[test]
    fn who_owes_the_next_part_is_known() {
        let upload = Upload::default();
        assert!(!upload.waits_for_client(), "nobody has asked for it");
        upload.saw::<Infallible>(&Poll::Pending, false);
        assert!(upload.waits_for_client());
        upload.saw(&part(1), false);
        assert!(!upload.waits_for_client());
    }
}
