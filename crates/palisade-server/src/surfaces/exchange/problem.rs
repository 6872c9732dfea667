//! Errors of the HTTP surfaces as RFC 9457 problem documents. They name the field and never repeat
//! a value.

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{Response, StatusCode};
use http_body_util::Full;
use palisade::extract::ExtractError;
use palisade::wire::WireError;
use palisade_core::FieldError;
use serde::Serialize;

use super::Reply;
use super::ids::RequestId;

/// An error in a request, or in its processing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    kind: Kind,
    detail: String,
    field: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    InvalidJson,
    InvalidField,
    BodyTooLarge,
    UnsupportedMedia,
    Timeout,
    NotFound,
    MethodNotAllowed(&'static str),
    Unauthorized,
    Forbidden,
    Unavailable,
    BadGateway,
    GatewayTimeout,
    TooManyChallenges(u64),
}

impl Kind {
    const fn parts(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::InvalidJson => (
                StatusCode::BAD_REQUEST,
                "urn:palisade:problem:invalid-json",
                "The body cannot be read",
            ),
            Self::InvalidField => (
                StatusCode::BAD_REQUEST,
                "urn:palisade:problem:invalid-field",
                "A field is not valid",
            ),
            Self::BodyTooLarge => (
                StatusCode::PAYLOAD_TOO_LARGE,
                "urn:palisade:problem:body-too-large",
                "The body is too large",
            ),
            Self::UnsupportedMedia => (
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "urn:palisade:problem:unsupported-media",
                "The body is of a type that is not read here",
            ),
            Self::Timeout => (
                StatusCode::REQUEST_TIMEOUT,
                "urn:palisade:problem:timeout",
                "The request took too long to arrive",
            ),
            Self::NotFound => (
                StatusCode::NOT_FOUND,
                "urn:palisade:problem:not-found",
                "There is nothing at this path",
            ),
            Self::MethodNotAllowed(_) => (
                StatusCode::METHOD_NOT_ALLOWED,
                "urn:palisade:problem:method-not-allowed",
                "The path does not take this method",
            ),
            Self::Unauthorized => (
                StatusCode::UNAUTHORIZED,
                "urn:palisade:problem:unauthorized",
                "A caller token is required",
            ),
            Self::Forbidden => (
                StatusCode::FORBIDDEN,
                "urn:palisade:problem:forbidden",
                "The request is not accepted from here",
            ),
            Self::Unavailable => (
                StatusCode::SERVICE_UNAVAILABLE,
                "urn:palisade:problem:unavailable",
                "The service cannot answer now",
            ),
            Self::BadGateway => (
                StatusCode::BAD_GATEWAY,
                "urn:palisade:problem:bad-gateway",
                "The application cannot be reached",
            ),
            Self::TooManyChallenges(_) => (
                StatusCode::TOO_MANY_REQUESTS,
                "urn:palisade:problem:too-many-challenges",
                "The client has asked for too many challenges",
            ),
            Self::GatewayTimeout => (
                StatusCode::GATEWAY_TIMEOUT,
                "urn:palisade:problem:gateway-timeout",
                "The application took too long",
            ),
        }
    }
}

/// Problem document (RFC 9457).
#[derive(Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema), schema(as = Problem))]
pub(in crate::surfaces) struct Document<'a> {
    #[cfg_attr(test, schema(pattern = "^urn:palisade:problem:"))]
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<&'a str>,
    request_id: &'a str,
}

impl Problem {
    fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            detail: detail.into(),
            field: None,
        }
    }

    /// The status of the answer.
    pub(crate) const fn status(&self) -> StatusCode {
        self.kind.parts().0
    }

    /// Description of the problem for people.
    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    /// The field that it is about.
    pub(crate) fn named_field(&self) -> Option<&str> {
        self.field.as_deref()
    }

    pub(crate) fn not_found() -> Self {
        Self::new(
            Kind::NotFound,
            "check the path: decisions are asked for at `/v1/check`",
        )
    }

    pub(crate) fn method_not_allowed(allow: &'static str) -> Self {
        Self::new(Kind::MethodNotAllowed(allow), format!("use {allow}"))
    }

    pub(crate) fn body_too_large(bytes_max: usize) -> Self {
        Self::new(
            Kind::BodyTooLarge,
            format!("send at most {bytes_max} bytes"),
        )
    }

    pub(crate) fn unsupported_media(detail: &'static str) -> Self {
        Self::new(Kind::UnsupportedMedia, detail)
    }

    pub(crate) fn body_timeout() -> Self {
        Self::new(Kind::Timeout, "send the whole body at once")
    }

    pub(crate) fn body_broken() -> Self {
        Self::new(Kind::InvalidJson, "the body ended early or was malformed")
    }

    pub(crate) fn unauthorized() -> Self {
        Self::new(
            Kind::Unauthorized,
            "send the token of `[server] caller_token` as `X-Palisade-Caller`, or on `/v1` paths as a bearer token",
        )
    }

    pub(crate) fn from_a_browser() -> Self {
        Self::new(
            Kind::Forbidden,
            "this interface is for backends: requests of web pages are refused",
        )
    }

    pub(crate) fn from_another_site() -> Self {
        Self::new(
            Kind::Forbidden,
            "solutions are taken from the challenge page, and not from pages of other sites",
        )
    }

    pub(crate) fn bad_gateway() -> Self {
        Self::new(
            Kind::BadGateway,
            "the application did not answer; try again later",
        )
    }

    pub(crate) fn answer_coded() -> Self {
        Self::new(
            Kind::BadGateway,
            "the application answered in a transfer coding that it was not asked for",
        )
    }

    pub(crate) fn gateway_timeout() -> Self {
        Self::new(
            Kind::GatewayTimeout,
            "the application did not answer in time; try again later",
        )
    }

    /// The client's address has had its share of challenges, or of solutions.
    pub(crate) fn too_many_challenges(retry_after: u64) -> Self {
        Self::new(
            Kind::TooManyChallenges(retry_after),
            "the client's address has asked too often; try again later",
        )
    }

    pub(crate) fn unavailable(detail: &'static str) -> Self {
        Self::new(Kind::Unavailable, detail)
    }

    pub(crate) fn field(field: impl Into<String>, problem: &str) -> Self {
        let field = field.into();
        Self {
            kind: Kind::InvalidField,
            detail: format!("`{field}` {problem}"),
            field: Some(field),
        }
    }

    /// Returns the problem as one of a member of a list, with the member's place in the field's
    /// name.
    pub(crate) fn within(mut self, place: &str) -> Self {
        if let Some(field) = self.field.take() {
            let name = format!("{place}.{field}");
            self.detail = self
                .detail
                .replacen(&format!("`{field}`"), &format!("`{name}`"), 1);
            self.field = Some(name);
        }
        self
    }

    fn document<'a>(&'a self, id: &'a RequestId) -> Document<'a> {
        let (status, r#type, title) = self.kind.parts();
        Document {
            r#type,
            title,
            status: status.as_u16(),
            detail: &self.detail,
            field: self.field.as_deref(),
            request_id: id.as_str(),
        }
    }

    /// The problem as a member of a batch's answers.
    pub(crate) fn as_data(&self, id: &RequestId) -> serde_json::Value {
        serde_json::to_value(self.document(id)).unwrap_or_default()
    }

    /// The problem as an answer.
    pub(crate) fn respond(&self, id: &RequestId) -> Reply {
        let (status, ..) = self.kind.parts();
        let json = serde_json::to_vec(&self.document(id)).unwrap_or_default();
        let mut reply = Response::new(Full::new(Bytes::from(json)));
        *reply.status_mut() = status;
        let headers = reply.headers_mut();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        match self.kind {
            Kind::MethodNotAllowed(allow) => {
                headers.insert(ALLOW, HeaderValue::from_static(allow));
            }
            Kind::Unauthorized => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Kind::TooManyChallenges(retry_after) => {
                headers.insert(RETRY_AFTER, HeaderValue::from(retry_after));
            }
            Kind::Unavailable => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        reply
    }
}

impl From<FieldError> for Problem {
    fn from(error: FieldError) -> Self {
        Self::field(error.field, error.problem)
    }
}

impl From<WireError> for Problem {
    fn from(error: WireError) -> Self {
        match error {
            WireError::Syntax => Self::new(Kind::InvalidJson, "the body is not valid JSON"),
            WireError::Shape { field, problem } => Self::field(field, &problem),
            WireError::Field(error) => error.into(),
        }
    }
}

impl From<ExtractError> for Problem {
    fn from(error: ExtractError) -> Self {
        let kind = match error.status() {
            403 => Kind::Forbidden,
            413 => Kind::BodyTooLarge,
            415 => Kind::UnsupportedMedia,
            _ => Kind::InvalidField,
        };
        Self {
            kind,
            detail: error.to_string(),
            field: Some(error.field().to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_in_a_list_is_named_with_its_place() {
        let problem = Problem::field("ip", "is required").within("checks[3]");
        assert_eq!(problem.field.as_deref(), Some("checks[3].ip"));
        assert_eq!(problem.detail, "`checks[3].ip` is required");
    }

    #[test]
    fn a_refused_method_says_which_one_is_taken() {
        let reply = Problem::method_not_allowed("POST").respond(&RequestId::generate());
        assert_eq!(reply.status(), 405);
        assert_eq!(reply.headers()[ALLOW], "POST");
    }
}
