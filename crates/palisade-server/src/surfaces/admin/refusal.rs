//! Refusals of operators' requests. They never repeat a value.

use std::collections::BTreeMap;

use axum::Json;
use axum::http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use palisade::engine::AdminError;
use palisade::store::StoreError;
use serde::Serialize;

use super::access::AccessRefusal;
use crate::surfaces::exchange::problem::Problem;

/// Refusal of an administration request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct Refusal {
    #[serde(skip)]
    status: u16,
    /// Machine-readable cause.
    #[cfg_attr(test, schema(value_type = String, example = "invalid_request"))]
    error: &'static str,
    /// Message for people.
    #[cfg_attr(test, schema(value_type = String))]
    message: &'static str,
    /// Problem of each invalid field, by the field's name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(test, schema(value_type = BTreeMap<String, String>))]
    details: BTreeMap<&'static str, &'static str>,
    /// The kind of the store's error, for the log.
    #[serde(skip)]
    store_trouble: Option<StoreTrouble>,
}

/// Kind of the store's error behind a refusal. It travels on the response to where the
/// request's id is known, and is logged with it (I-ID).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoreTrouble(pub(super) &'static str);

impl Refusal {
    const fn new(status: StatusCode, error: &'static str, message: &'static str) -> Self {
        Self {
            status: status.as_u16(),
            error,
            message,
            details: BTreeMap::new(),
            store_trouble: None,
        }
    }

    /// A credential is missing or not sufficient. `path` is the path of the route, not of the
    /// request.
    pub(crate) fn denied(denied: AccessRefusal, path: &str) -> Self {
        match denied {
            AccessRefusal::TooManyGuesses => Self::too_many(),
            AccessRefusal::Unauthenticated | AccessRefusal::Expired => Self::new(
                StatusCode::UNAUTHORIZED,
                "unauthorized",
                "Admin authentication required",
            ),
            AccessRefusal::ReadOnly => Self::new(
                StatusCode::FORBIDDEN,
                "forbidden",
                "This credential may look and change nothing",
            ),
            AccessRefusal::Forged => Self::new(
                StatusCode::FORBIDDEN,
                "forbidden",
                "The request did not come from the page that is signed in; load it again",
            ),
            AccessRefusal::WithoutRole => Self::new(
                StatusCode::FORBIDDEN,
                "forbidden",
                if path.starts_with("/admin/rate-limit/allowlist") {
                    "Insufficient permissions to manage rate limit allowlist"
                } else {
                    "Insufficient permissions to administer rate limits"
                },
            ),
        }
    }

    /// Refuses a request with invalid fields; `details` maps each of them to its problem.
    pub(super) fn invalid(
        message: &'static str,
        details: BTreeMap<&'static str, &'static str>,
    ) -> Self {
        let mut refusal = Self::new(StatusCode::BAD_REQUEST, "invalid_request", message);
        refusal.details = details;
        refusal
    }

    pub(crate) fn invalid_field(
        message: &'static str,
        field: &'static str,
        problem: &'static str,
    ) -> Self {
        Self::invalid(message, [(field, problem)].into())
    }

    pub(super) const fn not_found(message: &'static str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// Too many concurrent requests, or too many wrong credentials from one address.
    pub(crate) const fn too_many() -> Self {
        Self::new(
            StatusCode::TOO_MANY_REQUESTS,
            "rate_limit_exceeded",
            "Too many at once. Wait a minute.",
        )
    }

    const fn too_large() -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "invalid_request",
            "The body is too large",
        )
    }

    /// The body could not be read.
    pub(crate) fn body(problem: &Problem) -> Self {
        match problem.status() {
            StatusCode::PAYLOAD_TOO_LARGE => Self::too_large(),
            StatusCode::REQUEST_TIMEOUT => Self::new(
                StatusCode::REQUEST_TIMEOUT,
                "request_timeout",
                "The body took too long to arrive",
            ),
            _ => Self::invalid_field("Invalid request", "body", "must be valid JSON"),
        }
    }

    /// The answer took too long to make.
    pub(super) const fn late() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "service_unavailable",
            "The answer took too long. Try again later.",
        )
    }

    pub(super) const fn method_not_allowed() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method_not_allowed",
            "The path does not take this method",
        )
    }

    /// The store failed. The error itself may name hosts, so that only its kind is kept, for the
    /// log.
    pub(super) fn store(error: &StoreError) -> Self {
        Self {
            store_trouble: Some(StoreTrouble(error.kind().name())),
            ..Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "service_unavailable",
                "The store cannot be asked now. Try again later.",
            )
        }
    }

    /// The engine refused, in the words of the route.
    pub(super) fn from_admin(
        error: &AdminError,
        invalid: &'static str,
        missing: &'static str,
    ) -> Self {
        match error {
            AdminError::Invalid { field, problem } => Self::invalid_field(invalid, field, problem),
            AdminError::NotFound(_) => Self::not_found(missing),
            AdminError::Store(error) => Self::store(error),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::BAD_REQUEST);
        let store_trouble = self.store_trouble;
        let mut response = (status, Json(self)).into_response();
        if let Some(store_trouble) = store_trouble {
            response.extensions_mut().insert(store_trouble);
        }
        let headers = response.headers_mut();
        match status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            StatusCode::TOO_MANY_REQUESTS => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("60"));
            }
            _ => {}
        }
        response
    }
}
