//! How a body comes along that is passed on as it arrives, and whose fault it is if it does not.

use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Frame;
use palisade::store::deadline;
use parking_lot::Mutex;
use tokio::time::Instant;

/// Each time so much has arrived the body has come along: a byte now and then is no progress.
const STEP_BYTES: usize = 16 * 1024;

/// A body on its way.
pub(crate) struct Upload(Mutex<State>);

struct State {
    /// When it last came along, or ended.
    since: Instant,
    /// What has arrived after that.
    bytes: usize,
    /// The client owes the next part. Otherwise the application has not taken the last one.
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
    /// The application was handed this of it, perhaps the last.
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

    /// When the time is up that it has for each step, and the application for its answer after
    /// the last; `None` if it is.
    pub(super) fn ends(&self, time: Duration) -> Option<Instant> {
        let ends = self.0.lock().since + time;
        (ends > deadline::now()).then_some(ends)
    }

    /// True if it is the client who keeps everybody waiting.
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
