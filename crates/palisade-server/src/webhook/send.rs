//! Sending a message: over TLS, to an address that was looked at, without following redirects.

use std::net::SocketAddr;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, USER_AGENT};
use http::{Method, Request, Uri};
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::Message;
use super::address::is_public;
use crate::connect::{self, NamedFile};
use crate::failure::Failure;

/// Time for one try, from the look-up of the name to the head of the answer.
const TRY_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a message was not taken. Names neither the receiver nor the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SendError {
    #[error("its name cannot be looked up")]
    NotFound,
    #[error("its address is private, and `webhook.private` does not allow that")]
    Private,
    #[error("it cannot be reached")]
    Unreachable,
    #[error("its certificate is not trusted, or TLS failed")]
    Tls,
    #[error("it broke off")]
    Broken,
    #[error("it answered {0}")]
    Refused(u16),
    #[error("it took longer than 10 s")]
    Late,
}

/// The receiver of messages.
pub(super) struct Receiver {
    host: Box<str>,
    port: u16,
    path: Box<str>,
    name: ServerName<'static>,
    tls: TlsConnector,
    allows_private: bool,
}

impl Receiver {
    pub(super) fn new(
        url: &str,
        authority: Option<&Path>,
        allows_private: bool,
    ) -> Result<Self, Failure> {
        let refused = || {
            Failure::usage(
                "`webhook.url` must be an `https://` address with a host and without credentials",
                "write for example `https://hooks.example.com/palisade`",
            )
        };
        let uri: Uri = url.parse().map_err(|_| refused())?;
        let authority_part = uri.authority().ok_or_else(refused)?;
        if uri.scheme_str() != Some("https") || authority_part.as_str().contains('@') {
            return Err(refused());
        }
        let host = authority_part.host().trim_matches(['[', ']']);
        let name = ServerName::try_from(host.to_owned()).map_err(|_| refused())?;
        let authority = authority.map(|path| NamedFile {
            name: "webhook.ca",
            path,
        });
        let config = connect::client(authority, None)?;
        Ok(Self {
            host: host.into(),
            port: authority_part.port_u16().unwrap_or(443),
            path: uri
                .path_and_query()
                .map_or("/", |path| path.as_str())
                .into(),
            name,
            tls: TlsConnector::from(Arc::new(config)),
            allows_private,
        })
    }

    /// Sends a message once.
    pub(super) async fn send(&self, message: &Message) -> Result<(), SendError> {
        let sent = tokio::time::timeout(TRY_TIMEOUT, self.try_send(message)).await;
        sent.map_err(|_| SendError::Late)?
    }

    async fn try_send(&self, message: &Message) -> Result<(), SendError> {
        let address = self.address().await?;
        let stream = TcpStream::connect(address);
        let stream = stream.await.map_err(|_| SendError::Unreachable)?;
        let stream = self.tls.connect(self.name.clone(), stream);
        let stream = stream.await.map_err(|_| SendError::Tls)?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|_| SendError::Broken)?;
        let request = self.request(message).map_err(|_| SendError::Broken)?;
        // The connection ends with this call, whatever the receiver still has to say.
        let mut answer = pin!(sender.send_request(request));
        let answer = tokio::select! {
            answer = &mut answer => answer,
            // It may have ended with the answer.
            _ = connection => answer.await,
        };
        let answer = answer.map_err(|_| SendError::Broken)?;
        // A redirect is a refusal: the address that it names was never looked at.
        match answer.status() {
            status if status.is_success() => Ok(()),
            status => Err(SendError::Refused(status.as_u16())),
        }
    }

    /// The address to connect to. It is looked at here, so that a name that changes its address
    /// leads nowhere else.
    async fn address(&self) -> Result<SocketAddr, SendError> {
        let found = tokio::net::lookup_host((&*self.host, self.port)).await;
        let mut found = found.map_err(|_| SendError::NotFound)?.peekable();
        if found.peek().is_none() {
            return Err(SendError::NotFound);
        }
        found
            .find(|address| self.allows_private || is_public(address.ip()))
            .ok_or(SendError::Private)
    }

    fn request(&self, message: &Message) -> Result<Request<Full<Bytes>>, http::Error> {
        let host = match self.port {
            443 => self.host.to_string(),
            port => format!("{}:{port}", self.host),
        };
        Request::builder()
            .method(Method::POST)
            .uri(&*self.path)
            .header(HOST, host)
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, concat!("palisade/", env!("CARGO_PKG_VERSION")))
            .header("webhook-id", &message.id)
            .header("webhook-timestamp", message.unix_seconds)
            .header("webhook-signature", &message.signature)
            .body(Full::new(Bytes::from(message.body.clone())))
    }
}
