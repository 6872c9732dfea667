//! Requests to services of others: over TLS, to an address that was looked at, with bounds on time
//! and size. Redirects are not followed.

mod address;

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderValue, USER_AGENT};
use http::uri::Authority;
use http::{Method, Request, Response, Uri};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use address::is_public;

/// Largest head of an answer, in bytes.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// The reason why a service gave no answer. It names neither the service nor the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OutboundError {
    #[error("its name cannot be looked up")]
    NotFound,
    #[error("its address is private, and that is not allowed")]
    Private,
    #[error("it cannot be reached")]
    Unreachable,
    #[error("its certificate is not trusted, or TLS failed")]
    Tls,
    #[error("it broke off")]
    Broken,
    #[error("its answer is too large")]
    TooLarge,
    #[error("it took too long")]
    Late,
}

/// The addresses at which a service may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Public addresses.
    Public,
    /// Any address.
    Any,
    /// Any address, and this machine without TLS.
    AnyOrPlainLoopback,
}

/// Bounds on one exchange.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExchangeBounds {
    /// From the look-up of the name to the end of the answer.
    pub(crate) time: Duration,
    /// Largest body of the answer, in bytes. With 0 the body is not read.
    pub(crate) bytes: usize,
}

/// A service that requests are sent to.
pub(crate) struct Destination {
    authority: Authority,
    path: Box<str>,
    name: ServerName<'static>,
    /// `None` for plain http.
    tls: Option<TlsConnector>,
    reach: Reach,
}

impl Destination {
    /// Reads an address; `None` if it has no host, has credentials, or is not `https://` where it
    /// has to be.
    pub(crate) fn parse(url: &str, config: &Arc<ClientConfig>, reach: Reach) -> Option<Self> {
        let uri: Uri = url.parse().ok()?;
        let authority = uri.authority()?.clone();
        let host = host_of(&authority);
        let is_plain = match uri.scheme_str()? {
            "https" => false,
            "http" if reach == Reach::AnyOrPlainLoopback && is_loopback(host) => true,
            _ => return None,
        };
        if authority.as_str().contains('@') {
            return None;
        }
        Some(Self {
            name: ServerName::try_from(host.to_owned()).ok()?,
            path: uri
                .path_and_query()
                .map_or("/", |path| path.as_str())
                .into(),
            tls: (!is_plain).then(|| TlsConnector::from(Arc::clone(config))),
            authority,
            reach,
        })
    }

    /// Sends a request once, and returns its answer.
    pub(crate) async fn post(
        &self,
        content_type: &'static str,
        headers: HeaderMap,
        body: Bytes,
        bounds: ExchangeBounds,
    ) -> Result<Response<Bytes>, OutboundError> {
        let request = self.request(content_type, headers, body);
        let request = request.map_err(|_| OutboundError::Broken)?;
        tokio::time::timeout(bounds.time, self.exchange(request, bounds.bytes))
            .await
            .map_err(|_| OutboundError::Late)?
    }

    async fn exchange(
        &self,
        request: Request<Full<Bytes>>,
        bytes_max: usize,
    ) -> Result<Response<Bytes>, OutboundError> {
        let stream = TokioIo::new(self.connect().await?);
        let handshake = http1::Builder::new()
            .max_buf_size(HEAD_BYTES_MAX)
            .handshake(stream);
        let (mut sender, connection) = handshake.await.map_err(|_| OutboundError::Broken)?;
        // The connection ends with this call, whatever the service still has to say.
        let mut answer = pin!(async move {
            let answer = sender.send_request(request).await;
            read(answer.map_err(|_| OutboundError::Broken)?, bytes_max).await
        });
        tokio::select! {
            answer = &mut answer => answer,
            // It may have ended with the answer.
            _ = connection => answer.await,
        }
    }

    async fn connect(&self) -> Result<Box<dyn Wire>, OutboundError> {
        let stream = TcpStream::connect(self.address().await?).await;
        let stream = stream.map_err(|_| OutboundError::Unreachable)?;
        let Some(tls) = &self.tls else {
            return Ok(Box::new(stream));
        };
        let stream = tls.connect(self.name.clone(), stream).await;
        Ok(Box::new(stream.map_err(|_| OutboundError::Tls)?))
    }

    /// The address to connect to. It is looked at here, so that a name that changes its address
    /// leads nowhere else.
    async fn address(&self) -> Result<SocketAddr, OutboundError> {
        let port = self.authority.port_u16();
        let port = port.unwrap_or(if self.tls.is_some() { 443 } else { 80 });
        let found = tokio::net::lookup_host((host_of(&self.authority), port)).await;
        let mut found = found.map_err(|_| OutboundError::NotFound)?.peekable();
        if found.peek().is_none() {
            return Err(OutboundError::NotFound);
        }
        found
            .find(|address| self.reach != Reach::Public || is_public(address.ip()))
            .ok_or(OutboundError::Private)
    }

    fn request(
        &self,
        content_type: &'static str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, http::Error> {
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(&*self.path)
            .body(Full::new(body))?;
        let head = request.headers_mut();
        *head = headers;
        head.insert(HOST, HeaderValue::from_str(self.authority.as_str())?);
        head.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        let agent = concat!("palisade/", env!("CARGO_PKG_VERSION"));
        head.insert(USER_AGENT, HeaderValue::from_static(agent));
        Ok(request)
    }
}

/// A connection, with TLS or without.
trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Wire for S {}

fn host_of(authority: &Authority) -> &str {
    authority.host().trim_matches(['[', ']'])
}

/// True for an address of this machine. A name could be anybody's.
fn is_loopback(host: &str) -> bool {
    host.parse()
        .is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

async fn read(
    answer: Response<Incoming>,
    bytes_max: usize,
) -> Result<Response<Bytes>, OutboundError> {
    let (head, body) = answer.into_parts();
    if bytes_max == 0 {
        return Ok(Response::from_parts(head, Bytes::new()));
    }
    let body = Limited::new(body, bytes_max).collect().await;
    let body = body.map_err(|error| match error.is::<LengthLimitError>() {
        true => OutboundError::TooLarge,
        false => OutboundError::Broken,
    })?;
    Ok(Response::from_parts(head, body.to_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_https_and_where_it_is_allowed_this_machine() {
        let parse = |url: &str, reach| {
            let roots = rustls::RootCertStore::empty();
            let config = ClientConfig::builder()
                .with_root_certificates(roots)
                .with_no_client_auth();
            Destination::parse(url, &Arc::new(config), reach).is_some()
        };
        for url in ["https://example.com/x", "https://127.0.0.1:1/"] {
            assert!(parse(url, Reach::Public), "{url}");
        }
        for url in ["http://127.0.0.1:1/", "http://[::1]/x"] {
            assert!(parse(url, Reach::AnyOrPlainLoopback), "{url}");
            assert!(!parse(url, Reach::Any), "{url}");
        }
        for url in [
            "http://example.com/",
            "http://localhost/",
            "http://10.0.0.1/",
            "https://u:p@example.com/",
            "ftp://example.com/",
            "/x",
            "",
        ] {
            assert!(!parse(url, Reach::AnyOrPlainLoopback), "{url}");
        }
    }
}
