//! Asking instances how they do, where a path for it is named.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Uri};
use palisade::engine::InstanceFailure;

use super::body::Outgoing;
use super::connections::{Connections, Unanswered};
use super::kept::Arriving;
use super::pool::Pool;
use super::upstream::Upstream;
use crate::serve::Stop;

/// So many failures in a row put an instance out.
const FAILURES: u32 = 2;

/// Asks every instance again and again until the service ends.
pub(super) async fn watch(upstream: Upstream, pool: Arc<Pool>, mut stop: Stop) {
    let path = upstream.health_path.as_deref().map(str::parse::<Uri>);
    let Some(Ok(path)) = path else {
        return;
    };
    let connections = Connections::new(&upstream);
    let mut failures = vec![0_u32; pool.len()];
    loop {
        for (index, failures) in failures.iter_mut().enumerate() {
            let mut request = Request::new(Outgoing::of(Bytes::new()));
            request.uri_mut().clone_from(&path);
            let mut spare = None;
            let asked = connections.ask(index, request, &mut spare, false);
            if is_well(asked, upstream.health_interval).await {
                *failures = 0;
                pool.answered(index);
            } else {
                *failures = failures.saturating_add(1);
                if *failures >= FAILURES {
                    pool.failed(index, InstanceFailure::Unwell);
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(upstream.health_interval) => {}
            () = stop.draining() => return,
        }
    }
}

/// True if it answers in time, with anything but an error.
async fn is_well(
    asked: impl Future<Output = Result<Response<Arriving>, Unanswered>>,
    time_max: Duration,
) -> bool {
    let answer = tokio::time::timeout(time_max, asked).await;
    let status = answer
        .ok()
        .and_then(Result::ok)
        .map(|answer| answer.status());
    status.is_some_and(|status| !status.is_client_error() && !status.is_server_error())
}
