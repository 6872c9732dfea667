//! Limiters that can be asked: Palisade's check, any HTTP endpoint, or Envoy's rate-limit service.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::{http1, http2};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::rt::TokioExecutor;
use palisade_server::connect;
use palisade_server::failure::Failure;
use tower_service::Service;

/// Largest answer that is read.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Longest time for a connection and for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Path of Palisade's check, and the only request that it is asked.
const CHECK_PATH: &str = "/v1/check";
const CHECK: &str = r#"{"ip":"10.0.0.1","method":"GET","path":"/bench"}"#;
/// Path of Envoy's rate-limit service, version 3.
const RLS_PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// A limiter.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// Where to connect.
    address: Uri,
    request: Request<Full<Bytes>>,
    protocol: Protocol,
}

/// Way in which a limiter answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    /// `"decision":"allow"`.
    Check,
    /// A status of success, or 429 or 503.
    Http,
    /// A message whose first field is 1 or 2.
    Rls,
}

/// A decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Admitted,
    Refused,
}

impl Target {
    /// Reads a target: host:port or a URL that ends in `/v1/check`, another URL, or
    /// `grpc://HOST:PORT/DOMAIN/KEY=VALUE`.
    pub(super) fn new(text: &str, caller: Option<&str>) -> Result<Self, Failure> {
        let text = match text.contains("://") {
            true => text.to_owned(),
            false => format!("http://{text}{CHECK_PATH}"),
        };
        let uri: Uri = text.parse().map_err(|_| unreadable())?;
        let host = uri
            .authority()
            .map(ToString::to_string)
            .ok_or_else(unreadable)?;
        let protocol = match uri.scheme_str() {
            Some("grpc") => Protocol::Rls,
            _ if uri.path() == CHECK_PATH => Protocol::Check,
            Some("http" | "https") => Protocol::Http,
            _ => return Err(unreadable()),
        };
        let mut request = match protocol {
            Protocol::Rls => rls_request(&uri)?,
            Protocol::Check => post(uri.path(), "application/json", CHECK.into()),
            Protocol::Http => Request::new(Full::default()),
        };
        if protocol == Protocol::Http {
            let path = uri.path_and_query().map(ToString::to_string);
            *request.uri_mut() = path.unwrap_or_default().parse().map_err(|_| unreadable())?;
        }
        if protocol != Protocol::Rls {
            let host = HeaderValue::from_str(&host).map_err(|_| unreadable())?;
            request.headers_mut().insert(header::HOST, host);
        }
        if let Some(caller) = caller {
            let name = HeaderName::from_static("x-palisade-caller");
            let value = HeaderValue::from_str(caller).map_err(|_| unreadable())?;
            request.headers_mut().insert(name, value);
        }
        let scheme = match uri.scheme_str() {
            Some("https") => "https",
            _ => "http",
        };
        let address = format!("{scheme}://{host}/")
            .parse()
            .map_err(|_| unreadable())?;
        Ok(Self {
            address,
            request,
            protocol,
        })
    }

    /// A connection of one caller; dropping it hangs up.
    pub(super) async fn connect(&self) -> Option<Caller<'_>> {
        tokio::time::timeout(PATIENCE, self.open()).await.ok()?
    }

    async fn open(&self) -> Option<Caller<'_>> {
        let tls = connect::client(None, None).ok()?;
        let mut connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .build();
        let stream = connector.call(self.address.clone()).await.ok()?;
        let sender = match self.protocol {
            Protocol::Rls => {
                let shaken = http2::handshake(TokioExecutor::new(), stream).await;
                let (sender, connection) = shaken.ok()?;
                tokio::spawn(connection);
                Sender::Two(sender)
            }
            Protocol::Check | Protocol::Http => {
                let (sender, connection) = http1::handshake(stream).await.ok()?;
                tokio::spawn(connection);
                Sender::One(sender)
            }
        };
        Some(Caller {
            target: self,
            sender,
        })
    }
}

enum Sender {
    One(http1::SendRequest<Full<Bytes>>),
    Two(http2::SendRequest<Full<Bytes>>),
}

/// A caller with a connection of its own.
pub(super) struct Caller<'t> {
    target: &'t Target,
    sender: Sender,
}

impl Caller<'_> {
    /// Asks once; `None` if there is no decision.
    pub(super) async fn ask(&mut self) -> Option<Decision> {
        tokio::time::timeout(PATIENCE, self.answer()).await.ok()?
    }

    async fn answer(&mut self) -> Option<Decision> {
        let request = self.target.request.clone();
        let answer = match &mut self.sender {
            Sender::One(sender) => {
                sender.ready().await.ok()?;
                sender.send_request(request).await
            }
            Sender::Two(sender) => {
                sender.ready().await.ok()?;
                sender.send_request(request).await
            }
        };
        let (head, body) = answer.ok()?.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await.ok()?;
        self.target.protocol.decision(head.status, &body.to_bytes())
    }
}

impl Protocol {
    fn decision(self, status: StatusCode, body: &[u8]) -> Option<Decision> {
        let is_admitted = match self {
            Self::Check if status == StatusCode::OK => {
                let answer: serde_json::Value = serde_json::from_slice(body).ok()?;
                answer.get("decision")?.as_str()? == "allow"
            }
            Self::Http if status.is_success() => true,
            Self::Http
                if status == StatusCode::TOO_MANY_REQUESTS
                    || status == StatusCode::SERVICE_UNAVAILABLE =>
            {
                false
            }
            // A flag, a length, then the field `overall_code`, which comes first.
            Self::Rls => match body.get(5..7)? {
                [0x08, 1] => true,
                [0x08, 2] => false,
                _ => return None,
            },
            Self::Check | Self::Http => return None,
        };
        Some(match is_admitted {
            true => Decision::Admitted,
            false => Decision::Refused,
        })
    }
}

fn unreadable() -> Failure {
    Failure::usage(
        "the target cannot be asked",
        "write host:port, http://host:port/path, or grpc://host:port/domain/key=value",
    )
}

fn post(path: &str, content: &'static str, body: Bytes) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = path.parse().unwrap_or_default();
    let content = HeaderValue::from_static(content);
    request.headers_mut().insert(header::CONTENT_TYPE, content);
    request
}

/// A call of `ShouldRateLimit` with one descriptor of one entry.
fn rls_request(uri: &Uri) -> Result<Request<Full<Bytes>>, Failure> {
    let mut parts = uri.path().trim_start_matches('/').splitn(2, '/');
    let domain = parts.next().filter(|domain| !domain.is_empty());
    let entry = parts.next().and_then(|entry| entry.split_once('='));
    let (Some(domain), Some((key, value))) = (domain, entry) else {
        return Err(unreadable());
    };
    let mut entry = BytesMut::new();
    field(&mut entry, 1, key.as_bytes());
    field(&mut entry, 2, value.as_bytes());
    let mut descriptor = BytesMut::new();
    field(&mut descriptor, 1, &entry);
    let mut message = BytesMut::new();
    field(&mut message, 1, domain.as_bytes());
    field(&mut message, 2, &descriptor);
    let mut body = BytesMut::new();
    body.put_u8(0);
    body.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    body.put(message);
    let host = uri.authority().map(ToString::to_string).unwrap_or_default();
    let mut request = post(
        &format!("http://{host}{RLS_PATH}"),
        "application/grpc",
        body.freeze(),
    );
    let trailers = HeaderValue::from_static("trailers");
    request.headers_mut().insert(header::TE, trailers);
    Ok(request)
}

/// Appends a field of bytes of a protobuf message.
fn field(out: &mut BytesMut, number: u8, bytes: &[u8]) {
    out.put_u8(number << 3 | 2);
    let mut length = bytes.len();
    while length >= 0x80 {
        out.put_u8(u8::try_from(length & 0x7f).unwrap_or(0) | 0x80);
        length >>= 7;
    }
    out.put_u8(u8::try_from(length).unwrap_or(0));
    out.put_slice(bytes);
}
