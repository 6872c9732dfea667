//! Health checks of instances, where a path for them is configured.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Uri};

use super::body::Outgoing;
use super::connections::{Connections, Unanswered};
use super::kept::Arriving;
use super::pool::Pool;
use super::upstream::Upstream;
use crate::serve::Stop;

/// Failures in a row after which an instance gets no requests.
const FAILURES: u32 = 2;

/// Checks every instance periodically until the service stops.
pub(super) async fn watch(upstream: Upstream, pool: Arc<Pool>, mut stop: Stop) {
    let path = upstream.health_path.as_deref().map(str::parse::<Uri>);
    let Some(Ok(path)) = path else {
        return;
    };
    let connections = Connections::new(&upstream);
    let mut looks = Looks::at(&pool);
    loop {
        for index in 0..pool.len() {
            let mut request = Request::new(Outgoing::of(Bytes::new()));
            request.uri_mut().clone_from(&path);
            let mut spare = None;
            let asked = connections.ask(index, request, &mut spare, false);
            let seen = look(asked, upstream.health_interval).await;
            looks.note(index, seen);
        }
        tokio::select! {
            () = tokio::time::sleep(upstream.health_interval) => {}
            () = stop.leaving() => return,
        }
    }
}

/// The results of health checks.
struct Looks<'a> {
    pool: &'a Pool,
    /// Failures in a row of each instance.
    failures: Vec<u32>,
}

impl<'a> Looks<'a> {
    fn at(pool: &'a Pool) -> Self {
        let failures = vec![0; pool.len()];
        Self { pool, failures }
    }

    fn note(&mut self, index: usize, seen: Result<(), Box<str>>) {
        let Some(failures) = self.failures.get_mut(index) else {
            return;
        };
        match seen {
            Ok(()) => {
                *failures = 0;
                self.pool.well(index);
            }
            Err(error) => {
                *failures = failures.saturating_add(1);
                if *failures >= FAILURES {
                    self.pool.unwell(index, &error);
                }
            }
        }
    }
}

/// Waits for the answer to a health check. Fails if it is late or an error.
async fn look(
    asked: impl Future<Output = Result<Response<Arriving>, Unanswered>>,
    time_max: Duration,
) -> Result<(), Box<str>> {
    match tokio::time::timeout(time_max, asked).await {
        Err(_) => Err("no answer within `proxy.health_interval`".into()),
        Ok(Err(Unanswered::Instance(fault))) => Err(fault.error),
        Ok(Err(Unanswered::Client)) => Err("it cannot be asked for `proxy.health_path`".into()),
        Ok(Ok(answer)) => match answer.status() {
            status if status.is_client_error() || status.is_server_error() => {
                Err(format!("status {}", status.as_u16()).into())
            }
            _ => Ok(()),
        },
    }
}

#[cfg(test)]
mod tests {
    use palisade_core::time::SECOND;

    use super::super::pool::tests::pool;
    use super::*;

    /// The default of `proxy.health_interval`, in seconds.
    const INTERVAL_S: u64 = 2;

    #[test]
    fn an_instance_gets_no_request_between_looks_that_find_it_unwell() {
        let (pool, clock) = pool(2);
        let mut looks = Looks::at(&pool);
        for look in 0..20 {
            looks.note(0, Err("status 500".into()));
            looks.note(1, Ok(()));
            for _ in 0..INTERVAL_S * 10 {
                clock.advance(SECOND / 10);
                let picked = pool.pick(&[]);
                assert!(look == 0 || picked == Some(1), "after look {look}");
                // Some request was answered with 500.
                picked.iter().for_each(|index| pool.answered(*index));
                pool.answered(0);
            }
        }
        looks.note(0, Ok(()));
        assert!(
            (0..2).any(|_| pool.pick(&[]) == Some(0)),
            "it is well again"
        );
    }
}
