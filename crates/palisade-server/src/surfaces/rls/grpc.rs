//! gRPC on an HTTP/2 request: one framed message in, one out, and a status at the end.

use std::convert::Infallible;
use std::fmt::Write;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::Stream;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use palisade::deadline::within;
use prost::Message;

use crate::serve::EndlessStream;

/// Largest message that is read, in bytes.
pub(crate) const MESSAGE_BYTES_MAX: usize = 256 * 1024;
/// Length of the prefix of a message: a flag and the length of the message.
const PREFIX_BYTES: usize = 5;

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");

/// Status of a call that ends without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Code {
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Unavailable = 14,
    Unauthenticated = 16,
}

/// A call without an answer, with a message for the caller's log. The message never contains a
/// value of the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GrpcError {
    pub(crate) code: Code,
    pub(crate) message: String,
}

impl GrpcError {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    /// The response: only headers.
    pub(crate) fn response(&self) -> Response<Answer> {
        let mut response = Response::new(Answer::Empty);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, GRPC);
        self.put(headers);
        if self.code == Code::Unimplemented {
            headers.insert(GRPC_ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        response
    }

    /// The failure as trailers of an answer that has begun.
    pub(crate) fn trailers(&self) -> HeaderMap {
        let mut trailers = HeaderMap::with_capacity(2);
        self.put(&mut trailers);
        trailers
    }

    fn put(&self, headers: &mut HeaderMap) {
        headers.insert(GRPC_STATUS, HeaderValue::from(self.code as u16));
        if let Ok(text) = HeaderValue::try_from(escaped(&self.message)) {
            headers.insert(GRPC_MESSAGE, text);
        }
    }
}

/// Escapes a message for `grpc-message`: byte by byte whatever is not printable ASCII, and `%`.
fn escaped(message: &str) -> String {
    let mut text = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b'%' => text.push_str("%25"),
            b' '..=b'~' => text.push(char::from(byte)),
            _ => {
                let _ = write!(text, "%{byte:02X}");
            }
        }
    }
    text
}

fn invalid(message: &str) -> GrpcError {
    GrpcError::new(Code::InvalidArgument, message)
}

/// The trailers of a call that was answered.
pub(crate) fn done() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(GRPC_STATUS, HeaderValue::from_static("0"));
    trailers
}

/// Returns an HTTP answer for requests that are no gRPC calls, and `None` for calls.
pub(crate) fn refuse_plain<B>(request: &Request<B>) -> Option<Response<Answer>> {
    let plain = |status: StatusCode| {
        let mut response = Response::new(Answer::Empty);
        *response.status_mut() = status;
        Some(response)
    };
    if request.version() != http::Version::HTTP_2 {
        return plain(StatusCode::HTTP_VERSION_NOT_SUPPORTED);
    }
    if request.method() != http::Method::POST {
        return plain(StatusCode::METHOD_NOT_ALLOWED);
    }
    let kind = request.headers().get(CONTENT_TYPE);
    let is_grpc = kind.is_some_and(|kind| {
        let kind = kind.as_bytes();
        let rest = kind.strip_prefix(b"application/grpc".as_slice());
        rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
    });
    if is_grpc {
        None
    } else {
        plain(StatusCode::UNSUPPORTED_MEDIA_TYPE)
    }
}

/// Parses the caller's timeout, if there is one: up to eight digits and a unit.
pub(crate) fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, GrpcError> {
    let Some(value) = headers.get(GRPC_TIMEOUT) else {
        return Ok(None);
    };
    let wrong = || invalid("`grpc-timeout` must be up to eight digits and one of H, M, S, m, u, n");
    let text = value.to_str().map_err(|_| wrong())?;
    let (digits, unit) = text
        .split_at_checked(text.len().saturating_sub(1))
        .ok_or_else(wrong)?;
    let is_plain = (1..=8).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
    let amount: u64 = digits.parse().map_err(|_| wrong())?;
    let of = match unit {
        "H" => Duration::from_secs(amount * 3600),
        "M" => Duration::from_secs(amount * 60),
        "S" => Duration::from_secs(amount),
        "m" => Duration::from_millis(amount),
        "u" => Duration::from_micros(amount),
        "n" => Duration::from_nanos(amount),
        _ => return Err(wrong()),
    };
    if is_plain { Ok(Some(of)) } else { Err(wrong()) }
}

/// Reads messages from a request's body, each within [`MESSAGE_BYTES_MAX`].
pub(crate) struct Messages {
    body: Incoming,
    rest: BytesMut,
}

impl Messages {
    pub(crate) fn of(body: Incoming) -> Self {
        Self {
            body,
            rest: BytesMut::new(),
        }
    }

    /// Returns the next message, or `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, GrpcError> {
        loop {
            if let Some(message) = cut(&mut self.rest)? {
                return Ok(Some(message));
            }
            match data(&mut self.body).await? {
                Some(part) => self.rest.extend_from_slice(&part),
                None if self.rest.is_empty() => return Ok(None),
                None => return Err(invalid("the message ends before its length")),
            }
        }
    }
}

/// Cuts one message off the buffer, if it has arrived completely.
fn cut(bytes: &mut BytesMut) -> Result<Option<Bytes>, GrpcError> {
    let Some(length) = length(bytes)? else {
        return Ok(None);
    };
    if bytes.len() < PREFIX_BYTES + length {
        return Ok(None);
    }
    bytes.advance(PREFIX_BYTES);
    Ok(Some(bytes.split_to(length).freeze()))
}

/// Returns the length of the message at the start of the buffer, if its prefix is complete.
fn length(bytes: &[u8]) -> Result<Option<usize>, GrpcError> {
    let Some((prefix, _)) = bytes.split_first_chunk::<PREFIX_BYTES>() else {
        return Ok(None);
    };
    let [flag, length @ ..] = prefix;
    if *flag != 0 {
        let message = "compressed messages are not read; send `grpc-encoding: identity`";
        return Err(GrpcError::new(Code::Unimplemented, message));
    }
    let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
    if length > MESSAGE_BYTES_MAX {
        let message = "the message is longer than 262144 bytes";
        return Err(GrpcError::new(Code::ResourceExhausted, message));
    }
    Ok(Some(length))
}

async fn data(body: &mut Incoming) -> Result<Option<Bytes>, GrpcError> {
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| invalid("the message could not be received"))?;
        if let Ok(data) = frame.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

/// Reads the only message of a unary call, which must arrive within `time_max`.
pub(crate) async fn only(body: Incoming, time_max: Duration) -> Result<Bytes, GrpcError> {
    within(time_max, pin!(read_only(body)))
        .await
        .unwrap_or_else(|_| {
            Err(GrpcError::new(
                Code::DeadlineExceeded,
                "the message did not arrive in time",
            ))
        })
}

async fn read_only(mut body: Incoming) -> Result<Bytes, GrpcError> {
    let first = data(&mut body).await?;
    let mut first = first.ok_or_else(|| invalid("there is no message"))?;
    // Usually a message is one frame, and nothing is copied.
    if let Some(length) = length(&first)?
        && first.len() == PREFIX_BYTES + length
        && ended(&mut body).await?
    {
        first.advance(PREFIX_BYTES);
        return Ok(first);
    }
    let mut messages = Messages {
        body,
        rest: first.into(),
    };
    let message = messages.next().await?;
    let message = message.ok_or_else(|| invalid("there is no message"))?;
    match messages.next().await? {
        None => Ok(message),
        Some(_) => Err(invalid("there is more than one message")),
    }
}

/// Whether the body ends here.
async fn ended(body: &mut Incoming) -> Result<bool, GrpcError> {
    if body.is_end_stream() {
        return Ok(true);
    }
    match data(body).await? {
        None => Ok(true),
        Some(more) if more.is_empty() => Ok(true),
        Some(_) => Err(invalid("there is more than one message")),
    }
}

/// Encodes a message with its prefix.
pub(crate) fn framed(message: &impl Message) -> Bytes {
    framed_as(message.encoded_len(), |bytes| {
        // The buffer grows: encoding into it does not fail.
        let _ = message.encode(bytes);
    })
}

/// Returns the message that `write` appends, with its prefix. `usual` is its expected length in
/// bytes.
pub(crate) fn framed_as(usual: usize, write: impl FnOnce(&mut Vec<u8>)) -> Bytes {
    let mut bytes = Vec::with_capacity(PREFIX_BYTES + usual);
    bytes.extend_from_slice(&[0; PREFIX_BYTES]);
    write(&mut bytes);
    let length = u32::try_from(bytes.len() - PREFIX_BYTES).unwrap_or(u32::MAX);
    bytes[1..PREFIX_BYTES].copy_from_slice(&length.to_be_bytes());
    bytes.into()
}

/// The successful response to a unary call.
pub(crate) fn answered(framed: Bytes) -> Response<Answer> {
    with_body(Answer::Unary(Some(framed), false))
}

/// A response of several messages that may never end.
pub(crate) fn stream(messages: Frames) -> Response<Answer> {
    let mut response = with_body(Answer::Stream(messages));
    response.extensions_mut().insert(EndlessStream);
    response
}

fn with_body(body: Answer) -> Response<Answer> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

/// Frames as they become ready. The last one carries the status.
pub(crate) type Frames = Pin<Box<dyn Stream<Item = Frame<Bytes>> + Send>>;

/// The body of a response.
pub(crate) enum Answer {
    /// Empty: the headers say everything.
    Empty,
    /// One message, then the status; true once the status was sent.
    Unary(Option<Bytes>, bool),
    /// Messages, then the status.
    Stream(Frames),
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let frame = match &mut *self {
            Self::Empty | Self::Unary(None, true) => None,
            Self::Unary(message, said) => Some(match message.take() {
                Some(message) => Frame::data(message),
                None => {
                    *said = true;
                    Frame::trailers(done())
                }
            }),
            Self::Stream(frames) => return frames.as_mut().poll_next(cx).map(|f| f.map(Ok)),
        };
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Empty | Self::Unary(None, true))
    }

    fn size_hint(&self) -> SizeHint {
        // A known length would become a header, and some clients do not accept trailers beside it.
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Unary(..) | Self::Stream(_) => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_cut_off_once_it_is_there_whole() {
        let mut bytes = BytesMut::from(&[0, 0, 0, 0, 2, b'h'][..]);
        assert_eq!(cut(&mut bytes), Ok(None));
        bytes.extend_from_slice(b"i\0\0");
        assert_eq!(cut(&mut bytes), Ok(Some(Bytes::from_static(b"hi"))));
        assert_eq!(bytes.as_ref(), b"\0\0");
    }

    #[test]
    fn a_message_is_escaped_as_grpc_spells_it() {
        let failed = GrpcError::new(Code::Unauthenticated, "send `Bearer \u{2026}`: 100%\n");
        let trailers = failed.trailers();
        assert_eq!(trailers[GRPC_MESSAGE], "send `Bearer %E2%80%A6`: 100%25%0A");
    }

    #[test]
    fn compressed_and_overlong_messages_are_refused_before_they_are_read() {
        let code = |bytes: &[u8]| length(bytes).unwrap_err().code;
        assert_eq!(code(&[1, 0, 0, 0, 2]), Code::Unimplemented);
        assert_eq!(code(&[0, 0, 4, 0, 1]), Code::ResourceExhausted);
        assert_eq!(length(&[0, 0, 4, 0, 0]), Ok(Some(MESSAGE_BYTES_MAX)));
    }

    #[test]
    fn a_deadline_is_read_in_every_unit_and_nothing_else_is() {
        let of = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(GRPC_TIMEOUT, text.parse().unwrap());
            timeout(&headers)
        };
        assert_eq!(of("2S"), Ok(Some(Duration::from_secs(2))));
        assert_eq!(of("1H"), Ok(Some(Duration::from_secs(3600))));
        assert_eq!(of("3M"), Ok(Some(Duration::from_secs(180))));
        assert_eq!(of("99999999n"), Ok(Some(Duration::from_nanos(99_999_999))));
        assert_eq!(of("5u"), Ok(Some(Duration::from_micros(5))));
        assert_eq!(of("5m"), Ok(Some(Duration::from_millis(5))));
        for wrong in ["", "S", "5", "5x", "+5S", "999999999S", "5.0S"] {
            assert_eq!(
                of(wrong).unwrap_err().code,
                Code::InvalidArgument,
                "{wrong}"
            );
        }
        assert_eq!(timeout(&HeaderMap::new()), Ok(None));
    }

    #[test]
    fn what_is_no_call_is_answered_in_http() {
        let status = |version, method: &str, kind: &str| {
            let request = Request::builder()
                .version(version)
                .method(method)
                .header(CONTENT_TYPE, kind)
                .body(())
                .unwrap();
            refuse_plain(&request).map(|response| response.status().as_u16())
        };
        let two = http::Version::HTTP_2;
        assert_eq!(status(two, "POST", "application/grpc"), None);
        assert_eq!(status(two, "POST", "application/grpc+proto"), None);
        assert_eq!(status(two, "POST", "application/grpcx"), Some(415));
        assert_eq!(status(two, "POST", "application/json"), Some(415));
        assert_eq!(status(two, "GET", "application/grpc"), Some(405));
        let one = http::Version::HTTP_11;
        assert_eq!(status(one, "POST", "application/grpc"), Some(505));
    }
}
