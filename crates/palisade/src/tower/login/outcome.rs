//! The outcome of a login, read from the application's answer.

use http::StatusCode;
use http::response::Parts;

/// The outcome of checking a password, as the application's answer shows it.
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
    /// The password was right.
    Success,
    /// The password was wrong.
    Failure,
    /// The password was not verified.
    Neither,
    /// It cannot be told: from the third within ten minutes on each counts as a failure of its
    /// account (G-UNKNOWN).
    Unknown,
}

/// Reads the outcome from the status. 2xx and 3xx are a success, 4xx other than 429 a failure: a
/// client that guesses learns nothing from a status that was not thought of here. 429 is
/// [`Outcome::Neither`], any other status [`Outcome::Unknown`].
#[must_use]
pub fn by_status(parts: &Parts) -> Outcome {
    match parts.status {
        StatusCode::TOO_MANY_REQUESTS => Outcome::Neither,
        status if status.is_client_error() => Outcome::Failure,
        status if status.is_success() || status.is_redirection() => Outcome::Success,
        _ => Outcome::Unknown,
    }
}
