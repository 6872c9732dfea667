//! The files of the page, built beforehand and part of the binary. They contain nothing about
//! anybody, so that they are served without a credential.

use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderName, HeaderValue,
    IF_NONE_MATCH, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

/// A file of the page.
pub(super) struct Asset {
    pub(super) path: &'static str,
    kind: &'static str,
    bytes: &'static [u8],
}

macro_rules! assets {
    ($($path:literal = $file:literal $kind:literal;)*) => {
        pub(super) const ALL: &[Asset] = &[$(Asset {
            path: $path,
            kind: $kind,
            bytes: include_bytes!(concat!("../../../dashboard/dist/", $file)),
        }),*];
    };
}

assets! {
    "/" = "index.html" "text/html; charset=utf-8";
    "/assets/app.js" = "assets/app.js" "text/javascript; charset=utf-8";
    "/assets/app.css" = "assets/app.css" "text/css; charset=utf-8";
    "/assets/icon.svg" = "assets/icon.svg" "image/svg+xml";
}

/// Content security policy: nothing from elsewhere, no inline code, no frame around the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

const OPENER: HeaderName = HeaderName::from_static("cross-origin-opener-policy");
const RESOURCE: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// Adds the security headers that every answer of the admin address carries.
pub(super) fn harden(headers: &mut HeaderMap) {
    let fixed = [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
        (OPENER, "same-origin"),
        (RESOURCE, "same-origin"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

impl Asset {
    /// Answers with the file, or with 304 if the browser has this version. Browsers ask again with
    /// every visit.
    pub(super) fn answer(&self, headers: &HeaderMap) -> Response {
        let digest: [u8; 32] = Sha256::digest(self.bytes).into();
        let tag: String = digest.iter().take(8).map(|b| format!("{b:02x}")).collect();
        let tag = format!("\"{tag}\"");
        let known = headers.get(IF_NONE_MATCH);
        let common = [(ETAG, tag.as_str()), (CACHE_CONTROL, "no-cache")];
        if known.is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
            return (StatusCode::NOT_MODIFIED, common).into_response();
        }
        (common, [(CONTENT_TYPE, self.kind)], self.bytes).into_response()
    }
}
