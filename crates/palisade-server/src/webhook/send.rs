//! Sending a message to the webhook's receiver.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::Message;
use crate::connect::{self, NamedFile};
use crate::failure::Failure;
use crate::outbound::{Destination, ExchangeBounds, OutboundError, Reach};

/// Bounds on one try. The receiver's body says nothing that is needed.
const BOUNDS: ExchangeBounds = ExchangeBounds {
    time: Duration::from_secs(10),
    bytes: 0,
};

/// Why a message was not taken. Names neither the receiver nor the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SendError {
    #[error("its address is private, and `webhook.private` does not allow that")]
    Private,
    #[error("it answered {0}")]
    Refused(u16),
    #[error("{0}")]
    Unanswered(OutboundError),
}

impl From<OutboundError> for SendError {
    fn from(error: OutboundError) -> Self {
        match error {
            OutboundError::Private => Self::Private,
            other => Self::Unanswered(other),
        }
    }
}

/// The receiver of messages.
pub(super) struct Receiver(Destination);

impl Receiver {
    pub(super) fn new(
        url: &str,
        authority: Option<&Path>,
        allows_private: bool,
    ) -> Result<Self, Failure> {
        let authority = authority.map(|path| NamedFile {
            name: "webhook.ca",
            path,
        });
        let config = Arc::new(connect::client(authority, None)?);
        let reach = if allows_private {
            Reach::Any
        } else {
            Reach::Public
        };
        let destination = Destination::parse(url, &config, reach).ok_or_else(|| {
            Failure::usage(
                "`webhook.url` must be an `https://` address with a host and without credentials",
                "write for example `https://hooks.example.com/palisade`",
            )
        })?;
        Ok(Self(destination))
    }

    /// Sends a message once.
    pub(super) async fn send(&self, message: &Message) -> Result<(), SendError> {
        let headers = headers(message).map_err(|_| OutboundError::Broken)?;
        let body = Bytes::from(message.body.clone());
        let answer = self.0.post("application/json", headers, body, BOUNDS);
        // A redirect is a refusal: the address that it names was never looked at.
        match answer.await?.status() {
            status if status.is_success() => Ok(()),
            status => Err(SendError::Refused(status.as_u16())),
        }
    }
}

fn headers(message: &Message) -> Result<HeaderMap, http::Error> {
    let name = HeaderName::from_static;
    Ok(HeaderMap::from_iter([
        (name("webhook-id"), HeaderValue::from_str(&message.id)?),
        (
            name("webhook-timestamp"),
            HeaderValue::from(message.unix_seconds),
        ),
        (
            name("webhook-signature"),
            HeaderValue::from_str(&message.signature)?,
        ),
    ]))
}
