//! Reading of bodies, bounded in size and time.

use std::pin::pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Body;
use palisade::deadline::within;

use super::problem::Problem;

/// A body that is too large is still read up to this many times the bound. A client that is busy
/// sending would otherwise not see why it was refused.
const DRAIN_FACTOR: usize = 16;

/// Reads the whole body, which may have at most `bytes_max` bytes and must arrive in `time_max`.
pub(crate) async fn read(
    body: impl Body<Data = Bytes> + Unpin,
    bytes_max: usize,
    time_max: Duration,
) -> Result<Bytes, Problem> {
    within(time_max, pin!(read_bounded(body, bytes_max)))
        .await
        .unwrap_or_else(|_| Err(Problem::body_timeout()))
}

async fn read_bounded(
    mut body: impl Body<Data = Bytes> + Unpin,
    bytes_max: usize,
) -> Result<Bytes, Problem> {
    // The declared length is enough to refuse.
    if body.size_hint().lower() > bytes_max as u64 {
        return refuse(body, bytes_max, 0).await;
    }
    let first = next(&mut body).await?.unwrap_or_default();
    // Most bodies are a single frame and need no copy.
    if first.len() <= bytes_max && body.is_end_stream() {
        return Ok(first);
    }
    let mut whole = BytesMut::from(first);
    while whole.len() <= bytes_max {
        match next(&mut body).await? {
            Some(part) => whole.extend_from_slice(&part),
            None => return Ok(whole.freeze()),
        }
    }
    refuse(body, bytes_max, whole.len()).await
}

async fn refuse(
    mut body: impl Body<Data = Bytes> + Unpin,
    bytes_max: usize,
    taken: usize,
) -> Result<Bytes, Problem> {
    let drain_max = bytes_max.saturating_mul(DRAIN_FACTOR);
    let mut taken = taken;
    // A body that is declared to be longer than that is not drained at all.
    if body.size_hint().lower() <= drain_max as u64 {
        while taken <= drain_max
            && let Some(part) = next(&mut body).await?
        {
            taken += part.len();
        }
    }
    Err(Problem::body_too_large(bytes_max))
}

/// Reads the next part of the data. Trailers end a body.
async fn next(body: &mut (impl Body<Data = Bytes> + Unpin)) -> Result<Option<Bytes>, Problem> {
    match body.frame().await {
        None => Ok(None),
        Some(Ok(frame)) => Ok(frame.into_data().ok()),
        Some(Err(_)) => Err(Problem::body_broken()),
    }
}
