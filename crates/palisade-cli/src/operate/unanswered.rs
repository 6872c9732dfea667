//! Reasons why a server gave no answer, and the advice for each.

use std::error::Error;
use std::io;

use palisade_server::failure::Failure;

/// Reason why a server gave no answer.
pub(super) enum CallFailure {
    /// Nobody answered in time.
    Nobody,
    /// An error prevented or ended the connection.
    Met(Box<dyn Error + Send + Sync>),
}

impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for CallFailure {
    fn from(error: E) -> Self {
        Self::Met(error.into())
    }
}

const START: &str = "start the server with `palisade serve`, or pass its `--admin` address";
const IN_TIME: &str = "look whether the server hangs, or a firewall drops what is sent to it";
const SPEAKS_TLS: &str = "if it speaks TLS, pass `--admin https://HOST:PORT`, and its authority with `--ca` unless the system trusts it";
const SPEAKS_NONE: &str = "it speaks no TLS: pass `--admin http://HOST:PORT`";
const TRUST: &str = "pass the authority of its certificate with `--ca`, and in `--admin` the name or address that the certificate is for";
const SHOW: &str =
    "pass a certificate of the authority in `tls.client_ca` with `--cert` and `--cert-key`";

impl CallFailure {
    /// Turns the reason into the failure of a command that asked `whom`.
    pub(super) fn failure(self, whom: &str) -> Failure {
        let (why, todo) = match &self {
            Self::Nobody => ("nobody answers in time".to_owned(), IN_TIME),
            Self::Met(error) => met(error.as_ref()),
        };
        Failure::unavailable(format!("no answer from {whom}: {why}"), todo)
    }
}

fn met(error: &(dyn Error + 'static)) -> (String, &'static str) {
    if let Some(tls) = cause::<rustls::Error>(error) {
        let todo = match tls {
            rustls::Error::InvalidMessage(_) => SPEAKS_NONE,
            rustls::Error::AlertReceived(_) => SHOW,
            _ => TRUST,
        };
        return (tls.to_string(), todo);
    }
    match cause::<hyper::Error>(error) {
        Some(http) if http.is_parse() => ("what answers there is no HTTP".to_owned(), SPEAKS_TLS),
        Some(_) => ("the connection was closed".to_owned(), SPEAKS_TLS),
        None => match cause::<io::Error>(error) {
            Some(io) => (io.to_string(), START),
            None => (error.to_string(), START),
        },
    }
}

/// Returns the first error of this kind among the causes. A system error that wraps another error
/// skips that one in its `source`.
fn cause<'e, E: Error + 'static>(error: &'e (dyn Error + 'static)) -> Option<&'e E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        let wrapped = error.downcast_ref().and_then(io::Error::get_ref);
        next = match wrapped {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        };
    }
    None
}
