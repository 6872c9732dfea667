//! The original request as a proxy describes it in headers (forward-auth).
//!
//! Traefik and Caddy send `X-Forwarded-Method` and `X-Forwarded-Uri`; nginx is
//! usually told to send `X-Original-URI` and `X-Original-Method`. A proxy that
//! writes one family passes a client's copy of the other on. So method and URI
//! always come from the same family, and if both families are there they must
//! say the same, or the request is refused.

use http::{HeaderMap, HeaderName};
use palisade_core::FieldError;

use super::header;

/// The family of headers that describes the original request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OriginalHeaders {
    /// Either; if both are sent they must agree.
    #[default]
    Either,
    /// `X-Forwarded-Method` and `X-Forwarded-Uri` only.
    XForwarded,
    /// `X-Original-Method` and `X-Original-URI` only.
    XOriginal,
}

/// The original request's line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Original<'a> {
    pub(super) method: Option<&'a str>,
    pub(super) target: &'a str,
}

struct Family {
    method: HeaderName,
    target: HeaderName,
    field: &'static str,
}

const X_FORWARDED: Family = Family {
    method: HeaderName::from_static("x-forwarded-method"),
    target: HeaderName::from_static("x-forwarded-uri"),
    field: "X-Forwarded-Uri",
};

const X_ORIGINAL: Family = Family {
    method: HeaderName::from_static("x-original-method"),
    target: HeaderName::from_static("x-original-uri"),
    field: "X-Original-URI",
};

/// The original request. The caller has checked that the proxy is trusted.
pub(super) fn original(
    headers: &HeaderMap,
    which: OriginalHeaders,
) -> Result<Original<'_>, FieldError> {
    let missing = FieldError::new("X-Forwarded-Uri", "or `X-Original-URI` must be sent");
    let found = match which {
        OriginalHeaders::XForwarded => X_FORWARDED.read(headers)?,
        OriginalHeaders::XOriginal => X_ORIGINAL.read(headers)?,
        OriginalHeaders::Either => agree(X_FORWARDED.read(headers)?, X_ORIGINAL.read(headers)?)?,
    };
    found.ok_or(missing)
}

fn agree<'a>(
    forwarded: Option<Original<'a>>,
    original: Option<Original<'a>>,
) -> Result<Option<Original<'a>>, FieldError> {
    match (forwarded, original) {
        (Some(one), Some(other)) if one != other => Err(FieldError::new(
            "X-Forwarded-Uri",
            "and `X-Original-URI` describe different requests: remove one at the proxy",
        )),
        (one, other) => Ok(one.or(other)),
    }
}

impl Family {
    fn read<'a>(&self, headers: &'a HeaderMap) -> Result<Option<Original<'a>>, FieldError> {
        let method = header::single(headers, &self.method, "method")?;
        let target = header::single(headers, &self.target, self.field)?;
        Ok(target.map(|target| Original { method, target }))
    }
}
