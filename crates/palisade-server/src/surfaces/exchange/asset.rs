//! Files that are part of the binary, and the headers that protect pages.

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderName, HeaderValue,
    IF_NONE_MATCH, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{HeaderMap, Response, StatusCode};
use http_body_util::Full;
use sha2::{Digest, Sha256};

use super::Reply;

const OPENER: HeaderName = HeaderName::from_static("cross-origin-opener-policy");
const RESOURCE: HeaderName = HeaderName::from_static("cross-origin-resource-policy");
/// Browsers ask with every visit whether the file has changed.
const ASK_AGAIN: HeaderValue = HeaderValue::from_static("no-cache");

/// A file of a page. It contains nothing about anybody, so that it is served to everybody.
pub(crate) struct Asset {
    pub(crate) path: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) bytes: &'static [u8],
}

impl Asset {
    /// Answers with the file, or with 304 if the browser has this version.
    pub(crate) fn answer(&self, headers: &HeaderMap) -> Reply {
        let tag = self.tag();
        let is_known = headers
            .get(IF_NONE_MATCH)
            .is_some_and(|known| *known == tag);
        let mut reply = Response::new(Full::default());
        if is_known {
            *reply.status_mut() = StatusCode::NOT_MODIFIED;
        } else {
            *reply.body_mut() = Full::new(Bytes::from_static(self.bytes));
            let kind = HeaderValue::from_static(self.kind);
            reply.headers_mut().insert(CONTENT_TYPE, kind);
        }
        reply.headers_mut().insert(CACHE_CONTROL, ASK_AGAIN);
        if let Ok(tag) = HeaderValue::try_from(tag) {
            reply.headers_mut().insert(ETAG, tag);
        }
        reply
    }

    fn tag(&self) -> String {
        let digest: [u8; 32] = Sha256::digest(self.bytes).into();
        let tag: String = digest.iter().take(8).map(|b| format!("{b:02x}")).collect();
        format!("\"{tag}\"")
    }
}

/// Adds the security headers of a page with this content security policy.
pub(crate) fn harden(headers: &mut HeaderMap, policy: HeaderValue) {
    headers.insert(CONTENT_SECURITY_POLICY, policy);
    let fixed = [
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
