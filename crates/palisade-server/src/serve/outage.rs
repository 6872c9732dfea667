//! An outage that does not end: `repair.exit_after` ends the process for its
//! supervisor to start it anew, perhaps where the store can be reached.

use std::time::Duration;

use palisade::Engine;

use crate::failure::Failure;
use crate::store::AnyStore;

/// How often the outage is looked at; it is counted in minutes.
const TICK: Duration = Duration::from_secs(1);

/// Waits until the store has been away for longer than the process should live
/// without it; for ever if it should always.
pub(super) async fn outlasts(engine: &Engine<AnyStore>, exit_after: Option<Duration>) -> Failure {
    let Some(longest) = exit_after else {
        return std::future::pending().await;
    };
    while engine
        .store_silent_for()
        .is_none_or(|silent| silent < longest)
    {
        tokio::time::sleep(TICK).await;
    }
    tracing::error!("the store has been away for longer than `repair.exit_after`: ending");
    Failure::unavailable(
        "the store has been away for longer than `repair.exit_after`",
        "start the service where the store can be reached",
    )
}
