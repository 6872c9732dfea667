//! Deadlines that are free if there is nothing to wait for.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use tokio::task::unconstrained;
use tokio::time::{Instant, sleep_until};

/// Error of a future that was not ready by its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the time was up")]
pub struct TimeIsUp;

/// Waits for `future` until `ends`.
///
/// A timer is created only if the future has to wait, so calls of the embedded store and bodies
/// that arrived with their head need none. The future is passed pinned: by value it would become
/// part of the caller's future several times.
///
/// # Errors
/// [`TimeIsUp`].
pub async fn until<F: Future>(ends: Instant, future: Pin<&mut F>) -> Result<F::Output, TimeIsUp> {
    bounded(|| ends, future).await
}

/// Waits for `future` for at most `time`; otherwise like [`until`].
///
/// # Errors
/// [`TimeIsUp`].
pub async fn within<F: Future>(time: Duration, future: Pin<&mut F>) -> Result<F::Output, TimeIsUp> {
    bounded(|| palisade_store::deadline::after(time), future).await
}

async fn bounded<F: Future>(
    ends: impl Fn() -> Instant,
    mut future: Pin<&mut F>,
) -> Result<F::Output, TimeIsUp> {
    let mut timer = pin!(None);
    poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        if timer.is_none() {
            // Unconstrained, so that the timer is polled even if the future has used up the task's
            // cooperative budget.
            timer.set(Some(unconstrained(sleep_until(ends()))));
        }
        match timer.as_mut().as_pin_mut() {
            Some(timer) => timer.poll(cx).map(|()| Err(TimeIsUp)),
            None => Poll::Pending,
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_never_comes_ends_with_its_time() {
        let started = palisade_store::deadline::now();
        let never = std::future::pending::<()>();
        assert_eq!(
            within(Duration::from_secs(3), pin!(never)).await,
            Err(TimeIsUp)
        );
        assert_eq!(started.elapsed(), Duration::from_secs(3));
        let never = std::future::pending::<()>();
        let ends = started + Duration::from_secs(5);
        assert_eq!(until(ends, pin!(never)).await, Err(TimeIsUp));
        assert_eq!(started.elapsed(), Duration::from_secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_in_time_is_handed_on() {
        let later = async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            7
        };
        assert_eq!(within(Duration::from_secs(3), pin!(later)).await, Ok(7));
        let past = palisade_store::deadline::now();
        assert_eq!(until(past, pin!(std::future::ready(8))).await, Ok(8));
    }

    #[tokio::test]
    async fn a_future_that_is_always_busy_is_ended_too() {
        let gives_up = palisade_store::deadline::now() + Duration::from_secs(20);
        let busy = poll_fn(|cx| {
            while pin!(tokio::task::consume_budget()).poll(cx).is_ready() {}
            if palisade_store::deadline::now() < gives_up {
                Poll::Pending
            } else {
                Poll::Ready(())
            }
        });
        let ended = within(Duration::from_millis(50), pin!(busy)).await;
        assert_eq!(ended, Err(TimeIsUp));
    }

    #[test]
    fn what_is_ready_needs_no_runtime() {
        let mut one = pin!(std::future::ready(1));
        let mut ready = pin!(within(Duration::ZERO, one.as_mut()));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert_eq!(ready.as_mut().poll(&mut context), Poll::Ready(Ok(1)));
    }
}
