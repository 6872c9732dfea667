//! How a login ended, as the application's answer tells it.

use http::StatusCode;
use http::response::Parts;

/// What the application's answer says about the password.
///
/// ```
/// use http::Response;
/// use palisade::tower::{Outcome, by_status};
///
/// let (unauthorized, ()) = Response::builder().status(401).body(())?.into_parts();
/// assert_eq!(by_status(&unauthorized), Outcome::Failure);
/// # Ok::<(), http::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was right.
    Success,
    /// It was wrong.
    Failure,
    /// Nothing: it was not verified.
    Neither,
    /// Nobody can tell: from the third within ten minutes on each counts as a failure of its
    /// account (G-UNKNOWN).
    Unknown,
}

/// 2xx and 3xx are a success, 4xx other than 429 a failure: whoever guesses learns nothing
/// from an answer that nobody thought of. 429 is neither, and of everything else nobody can tell.
#[must_use]
pub fn by_status(parts: &Parts) -> Outcome {
    match parts.status {
        StatusCode::TOO_MANY_REQUESTS => Outcome::Neither,
        status if status.is_client_error() => Outcome::Failure,
        status if status.is_success() || status.is_redirection() => Outcome::Success,
        _ => Outcome::Unknown,
    }
}
