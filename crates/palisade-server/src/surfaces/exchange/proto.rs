//! The protocol between the client and a proxy before us.

use std::net::IpAddr;

use http::HeaderMap;
use http::header::HeaderName;
use palisade::extract::EdgeConfig;

const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// True if a trusted proxy says that the client speaks TLS with it.
pub(crate) fn is_secure_before(edge: &EdgeConfig, peer: IpAddr, headers: &HeaderMap) -> bool {
    let said = headers.get(X_FORWARDED_PROTO);
    let is_https = said.is_some_and(|proto| proto.as_bytes().eq_ignore_ascii_case(b"https"));
    is_https && edge.trusted_proxies.contains(peer)
}
