//! Asking instances how they do, where a path for it is named.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Uri};

use super::body::Outgoing;
use super::pool::{Address, Pool};
use super::upstream::{Connections, Upstream, connections};
use crate::serve::Stop;

/// So many failures in a row put an instance out.
const FAILURES: u32 = 2;

/// Asks every instance again and again until the service ends.
pub(super) async fn watch(upstream: Upstream, pool: Arc<Pool>, mut stop: Stop) {
    let Some(path) = upstream.health_path.clone() else {
        return;
    };
    let client = connections(&upstream, true);
    let mut failures = vec![0_u32; pool.len()];
    loop {
        for (index, failures) in failures.iter_mut().enumerate() {
            let Some(address) = pool.address(index) else {
                continue;
            };
            if is_well(&client, address, &path, upstream.health_interval).await {
                *failures = 0;
                pool.answered(index);
            } else {
                *failures = failures.saturating_add(1);
                if *failures >= FAILURES {
                    pool.failed(index);
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
async fn is_well(client: &Connections, address: &Address, path: &str, time_max: Duration) -> bool {
    let target = Uri::builder()
        .scheme(address.scheme.clone())
        .authority(address.authority.clone())
        .path_and_query(path)
        .build();
    let request = target.map(|target| {
        let mut request = Request::new(Outgoing::of(Bytes::new()));
        *request.method_mut() = Method::GET;
        *request.uri_mut() = target;
        request
    });
    let Ok(request) = request else {
        return false;
    };
    let answer = tokio::time::timeout(time_max, client.request(request)).await;
    let status = answer
        .ok()
        .and_then(Result::ok)
        .map(|answer| answer.status());
    status.is_some_and(|status| !status.is_client_error() && !status.is_server_error())
}
