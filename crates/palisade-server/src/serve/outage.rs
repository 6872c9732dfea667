//! `repair.exit_after`: ends the process after an outage of that length, so that its supervisor
//! starts it again, perhaps where the store can be reached.

use std::time::Duration;

use palisade::Engine;

use crate::failure::Failure;

/// Interval of the checks for an outage, whose limit is in minutes.
const TICK: Duration = Duration::from_secs(1);

/// Waits until the store has been away for `exit_after`, and returns the failure to end with.
/// Without a limit it waits forever.
pub(super) async fn outlasts(engine: &Engine, exit_after: Option<Duration>) -> Failure {
    let Some(longest) = exit_after else {
        return std::future::pending().await;
    };
    lasts(longest, TICK, || engine.store_silent_for()).await;
    tracing::error!("the store has been away for longer than `repair.exit_after`: ending");
    Failure::unavailable(
        "the store has been away for longer than `repair.exit_after`",
        "start the service where the store can be reached",
    )
}

/// Returns once the silence has lasted for `longest`. Any answer of the store restarts the count.
async fn lasts(longest: Duration, tick: Duration, silent_for: impl Fn() -> Option<Duration>) {
    while silent_for().is_none_or(|silent| silent < longest) {
        tokio::time::sleep(tick).await;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn f_fallback_only_an_outage_of_the_whole_time_ends_the_process() {
        const MINUTE: u64 = 60;
        // Minute by minute: available, unreachable for four, available again, then unreachable for
        // good.
        let story = |minute: u64| match minute {
            0 | 5 => None,
            1..5 => Some(minute),
            _ => Some(minute - 5),
        };
        let minute = Cell::new(0);
        let silent_for = || {
            let now = minute.replace(minute.get() + 1);
            story(now).map(|away| Duration::from_secs(away * MINUTE))
        };
        let longest = Duration::from_secs(5 * MINUTE);
        lasts(longest, Duration::from_micros(1), silent_for).await;
        assert_eq!(minute.get(), 11, "the fifth minute of the second outage");
    }
}
