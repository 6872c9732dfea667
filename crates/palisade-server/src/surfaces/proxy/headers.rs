//! Header changes of the proxy. Hop-by-hop headers are removed before anything else of a request is
//! read; the client's address and the decision are added.

use std::net::IpAddr;

use http::Method;
use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, COOKIE, HOST, HeaderMap, HeaderName, HeaderValue,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, SET_COOKIE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::request::Parts;
use hyper::body::Frame;
use palisade::engine::RequestAnswer;
use palisade::extract::EdgeConfig;
use palisade::extract::identity::IdentityHeaders;

use super::upgrade::{WEBSOCKET, is_websocket};
use crate::surfaces::exchange::ids::RequestId;
use crate::surfaces::exchange::proto::is_secure_before;
use crate::surfaces::exchange::reply::apply_headers;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Headers that belong to one connection and not to the request.
const HOP_BY_HOP: [HeaderName; 8] = [
    CONNECTION,
    KEEP_ALIVE,
    PROXY_CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Headers, besides all of `X-Forwarded-…`, that applications trust a proxy to set.
const OF_PROXIES: [&str; 4] = ["forwarded", "x-real-ip", "x-original-url", "x-rewrite-url"];

/// The origin of a request, as far as this hop knows it.
pub(super) struct Hop<'a> {
    pub(super) peer: IpAddr,
    /// `http` or `https`.
    pub(super) spoken: &'static str,
    /// The host of the request's target, which takes precedence over the header.
    pub(super) authority: Option<HeaderValue>,
    pub(super) edge: &'a EdgeConfig,
}

impl Hop<'_> {
    /// True if the client itself speaks TLS, either with us or with a trusted proxy before us.
    pub(super) fn is_secure(&self, headers: &HeaderMap) -> bool {
        self.spoken == "https" || is_secure_before(self.edge, self.peer, headers)
    }
}

/// Requests of a client about its own connection.
pub(super) struct Wishes {
    websocket: bool,
    trailers: bool,
}

impl Wishes {
    /// Removes the headers of the connection from a request, so that everything that is read from
    /// here on is also what the application gets.
    pub(super) fn taken_from(parts: &mut Parts) -> Self {
        let headers = &mut parts.headers;
        let said = headers.get(TE).and_then(|value| value.to_str().ok());
        let wishes = Self {
            websocket: parts.method == Method::GET && is_websocket(headers),
            trailers: said
                .is_some_and(|said| said.split(',').any(|part| part.trim() == "trailers")),
        };
        strip(headers);
        wishes
    }
}

/// Prepares a request's headers for the application.
pub(super) fn towards_upstream(
    headers: &mut HeaderMap,
    wishes: &Wishes,
    hop: &Hop<'_>,
    id: &RequestId,
) {
    if wishes.trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    if wishes.websocket {
        upgrade(headers);
    }
    join_cookies(headers);
    forward(headers, hop);
    id.mark(headers);
}

/// Announces a body of unknown length in chunks, whatever the method. Without this header the HTTP
/// library takes the body of a GET for none.
pub(super) fn announce_chunks(headers: &mut HeaderMap) {
    if !headers.contains_key(CONTENT_LENGTH) {
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
}

/// Joins cookies into one line. In HTTP/2 each cookie may have its own line, which HTTP/1 does not
/// permit (RFC 9113 §8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let lines = headers.get_all(COOKIE).iter();
    let lines: Vec<&[u8]> = lines.map(HeaderValue::as_bytes).collect();
    if lines.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&lines.join(&b"; "[..]))
    {
        headers.insert(COOKIE, joined);
    }
}

/// Sets the forwarding headers. A peer that is no trusted proxy cannot state where a request came
/// from, nor which identity it has.
fn forward(headers: &mut HeaderMap, hop: &Hop<'_>) {
    if let Some(authority) = &hop.authority {
        headers.insert(HOST, authority.clone());
    }
    let is_trusted = hop.edge.trusted_proxies.contains(hop.peer);
    let is_forged = |name: &&HeaderName| {
        of_proxies(name.as_str(), is_trusted) || states_identity(name, hop.edge, is_trusted)
    };
    let forged: Vec<HeaderName> = headers.keys().filter(is_forged).cloned().collect();
    remove(headers, &forged);
    if let Ok(value) = HeaderValue::from_str(&chain(headers, hop.peer)) {
        headers.insert(X_FORWARDED_FOR, value);
    }
    if let Some(host) = headers.get(HOST).cloned() {
        headers.entry(X_FORWARDED_HOST).or_insert(host);
    }
    headers
        .entry(X_FORWARDED_PROTO)
        .or_insert(HeaderValue::from_static(hop.spoken));
}

/// True for headers that only a trusted proxy may set. With underscores none may be set, even by a
/// trusted proxy: many applications take such a name for the same one, and no honest sender uses
/// it.
fn of_proxies(name: &str, by_trusted: bool) -> bool {
    if !name.starts_with(['x', 'f']) {
        return false;
    }
    let plain = name.replace('_', "-");
    let is_one = plain.starts_with("x-forwarded-") || OF_PROXIES.contains(&&*plain);
    is_one && (!by_trusted || plain != name)
}

/// True for the headers in which a trusted proxy states the identity or the country of the client,
/// if it is configured to. Spellings with underscores are removed from everybody.
fn states_identity(name: &HeaderName, edge: &EdgeConfig, by_trusted: bool) -> bool {
    let is_one = |own: &HeaderName| {
        own == name || own.as_str().replace('_', "-") == name.as_str().replace('_', "-")
    };
    let identity = edge.identity_headers.iter();
    let mut all = identity
        .flat_map(IdentityHeaders::names)
        .chain(edge.geo_headers.names());
    all.any(|own| is_one(own) && (!by_trusted || own != name))
}

/// Joins the forwarding chain into one line, because some applications only look at the first.
fn chain(headers: &HeaderMap, peer: IpAddr) -> String {
    let mut chain = String::new();
    for line in headers.get_all(X_FORWARDED_FOR) {
        if let Ok(line) = line.to_str() {
            chain.push_str(line);
            chain.push_str(", ");
        }
    }
    match peer.to_canonical() {
        // Without the formatting machinery, which costs as much as the rest of this function.
        IpAddr::V4(peer) => {
            let mut number = itoa::Buffer::new();
            for (index, octet) in peer.octets().into_iter().enumerate() {
                chain.push_str(if index > 0 { "." } else { "" });
                chain.push_str(number.format(octet));
            }
            chain
        }
        IpAddr::V6(peer) => chain + &peer.to_string(),
    }
}

/// Prepares an answer's headers for the client.
pub(super) fn towards_client(headers: &mut HeaderMap, answer: &RequestAnswer) {
    let websocket = is_websocket(headers);
    strip(headers);
    if websocket {
        upgrade(headers);
    }
    apply_headers(headers, answer);
}

/// Returns the headers of an interim answer for the client. It has no body that they could
/// describe.
pub(super) fn of_interim(headers: &HeaderMap) -> HeaderMap {
    let mut headers = headers.clone();
    strip(&mut headers);
    remove(&mut headers, &[CONTENT_LENGTH, TRAILER]);
    headers
}

/// Announces a websocket, the only upgrade that is passed on.
fn upgrade(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, WEBSOCKET);
}

fn strip(headers: &mut HeaderMap) {
    for name in named_by_connection(headers) {
        if !is_end_to_end(&name) {
            headers.remove(name);
        }
    }
    remove(headers, &HOP_BY_HOP);
}

/// True for headers that their sender cannot have removed on the way: they delimit or describe the
/// body, or state the sender's identity or the host. A `Connection` header that names one of them
/// is ignored, not refused: a confused client is served as if it had not, and a malicious one gains
/// nothing.
fn is_end_to_end(name: &HeaderName) -> bool {
    const NAMES: [HeaderName; 5] = [TRAILER, HOST, COOKIE, SET_COOKIE, AUTHORIZATION];
    let text = name.as_str();
    NAMES.contains(name) || text.starts_with("content-") || of_proxies(text, false)
}

/// Filters a part of a request's body. Trailers that may only be in a head are removed (RFC 9110
/// §6.5.1): some applications merge both, so that a client could state in a trailer what was
/// removed from its head.
pub(super) fn trailers_only<D>(mut part: Frame<D>) -> Frame<D> {
    if let Some(trailers) = part.trailers_mut() {
        let names = trailers.keys().filter(|name| is_end_to_end(name)).cloned();
        let names: Vec<HeaderName> = names.chain(HOP_BY_HOP).collect();
        remove(trailers, &names);
    }
    part
}

/// Removes headers by name. Most messages have hardly any of these, and a scan of the names is
/// faster than a lookup of each.
fn remove(headers: &mut HeaderMap, names: &[HeaderName]) {
    for name in names {
        if headers.keys().any(|known| known == name) {
            headers.remove(name);
        }
    }
}

pub(super) fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use palisade::extract::geo::GeoHeaders;
    use palisade::extract::identity::IdentityHeaders;

    use super::*;

    fn hop(edge: &EdgeConfig) -> Hop<'_> {
        Hop {
            peer: [192, 0, 2, 1].into(),
            spoken: "http",
            authority: None,
            edge,
        }
    }

    #[test]
    fn the_host_of_the_target_counts_for_more_than_the_header() {
        let mut headers = of(&[("host", "elsewhere")]);
        let authority = Some(HeaderValue::from_static("here:8000"));
        let edge = EdgeConfig::default();
        forward(
            &mut headers,
            &Hop {
                authority,
                ..hop(&edge)
            },
        );
        assert_eq!(headers["host"], "here:8000");
        assert_eq!(headers["x-forwarded-host"], "here:8000");
    }

    fn of(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    /// Returns the headers that the application gets from an untrusted client.
    fn sent_on(headers: &mut HeaderMap) -> HeaderMap {
        let (mut parts, ()) = http::Request::new(()).into_parts();
        std::mem::swap(&mut parts.headers, headers);
        let wishes = Wishes::taken_from(&mut parts);
        let edge = EdgeConfig::default();
        towards_upstream(
            &mut parts.headers,
            &wishes,
            &hop(&edge),
            &RequestId::generate(),
        );
        parts.headers
    }

    #[test]
    fn what_describes_a_request_is_not_removed_by_its_sender() {
        let kept = [
            "content-type",
            "content-encoding",
            "cookie",
            "authorization",
            "host",
        ];
        for name in kept {
            let mut headers = of(&[("connection", name), (name, "1")]);
            assert_eq!(sent_on(&mut headers)[name], "1", "{name}");
        }
    }

    #[test]
    fn hop_by_hop_headers_stay_behind_and_others_pass() {
        let mut headers = of(&[
            ("connection", "close, x-private"),
            ("x-private", "1"),
            ("keep-alive", "1"),
            ("te", "trailers, gzip"),
            ("x-kept", "1"),
        ]);
        let headers = sent_on(&mut headers);
        for gone in ["connection", "x-private", "keep-alive"] {
            assert!(!headers.contains_key(gone), "{gone}");
        }
        assert_eq!(headers["te"], "trailers");
        assert_eq!(headers["x-kept"], "1");
    }

    #[test]
    fn what_only_a_head_may_say_is_no_trailer() {
        let trailers = of(&[
            ("x-sum", "42"),
            ("x-forwarded-for", "10.0.0.1"),
            ("x_real_ip", "10.0.0.1"),
            ("authorization", "Basic YTpi"),
            ("cookie", "sid=1"),
            ("content-encoding", "gzip"),
            ("transfer-encoding", "chunked"),
        ]);
        let sent = trailers_only(Frame::<bytes::Bytes>::trailers(trailers));
        assert_eq!(sent.into_trailers().ok(), Some(of(&[("x-sum", "42")])));
        let data = trailers_only(Frame::data(bytes::Bytes::from_static(b"abc")));
        assert_eq!(data.into_data().ok().as_deref(), Some(&b"abc"[..]));
    }

    #[test]
    fn i_jwt_a_stranger_cannot_say_who_it_is_to_the_application_either() {
        let stated = |name: &'static str, edge: &EdgeConfig| {
            let mut headers = of(&[(name, "ann")]);
            forward(&mut headers, &hop(edge));
            headers.contains_key(name)
        };
        let stranger = EdgeConfig {
            identity_headers: Some(IdentityHeaders::default()),
            ..EdgeConfig::default()
        };
        let trusting = EdgeConfig {
            trusted_proxies: vec!["192.0.2.0/24".parse().unwrap()].into(),
            ..stranger.clone()
        };
        for name in ["x-palisade-user", "x-palisade-org", "x-palisade-scopes"] {
            assert!(!stated(name, &stranger), "{name}");
            assert!(stated(name, &trusting), "{name}");
            assert!(stated(name, &EdgeConfig::default()), "nobody reads it");
        }
        for edge in [&stranger, &trusting] {
            assert!(!stated("x_palisade_user", edge));
        }
    }

    #[test]
    fn p_by_a_stranger_cannot_say_where_it_is_to_the_application_either() {
        let stated = |name: &'static str, edge: &EdgeConfig| {
            let mut headers = of(&[(name, "ES")]);
            forward(&mut headers, &hop(edge));
            headers.contains_key(name)
        };
        let stranger = EdgeConfig {
            geo_headers: GeoHeaders {
                country: Some(HeaderName::from_static("cf-ipcountry")),
                network: Some(HeaderName::from_static("x-asn")),
            },
            ..EdgeConfig::default()
        };
        let trusting = EdgeConfig {
            trusted_proxies: vec!["192.0.2.0/24".parse().unwrap()].into(),
            ..stranger.clone()
        };
        for name in ["cf-ipcountry", "x-asn"] {
            assert!(!stated(name, &stranger), "{name}");
            assert!(stated(name, &trusting), "{name}");
            assert!(stated(name, &EdgeConfig::default()), "nobody reads it");
        }
        for edge in [&stranger, &trusting] {
            assert!(!stated("cf_ipcountry", edge));
        }
    }

    #[test]
    fn i_xff_a_stranger_cannot_write_the_chain() {
        let forged = [
            ("x-forwarded-for", "10.0.0.1"),
            ("forwarded", "for=10.0.0.1"),
        ];
        let mut headers = of(&forged);
        forward(&mut headers, &hop(&EdgeConfig::default()));
        assert_eq!(headers["x-forwarded-for"], "192.0.2.1");
        assert!(!headers.contains_key("forwarded"));

        let trusting = EdgeConfig {
            trusted_proxies: vec!["192.0.2.0/24".parse().unwrap()].into(),
            ..EdgeConfig::default()
        };
        let mut headers = of(&[("x-forwarded-for", "203.0.113.1")]);
        forward(&mut headers, &hop(&trusting));
        assert_eq!(headers["x-forwarded-for"], "203.0.113.1, 192.0.2.1");

        let names = [
            "x-real-ip",
            "x-original-url",
            "x-rewrite-url",
            "x-forwarded-user",
        ];
        let blurred = ["x_forwarded_for", "x-forwarded_for", "x_real_ip"];
        for name in names.into_iter().chain(blurred) {
            let forwarded = |edge: &EdgeConfig| {
                let mut headers = of(&[(name, "10.0.0.1"), ("x_other", "1")]);
                forward(&mut headers, &hop(edge));
                assert!(headers.contains_key("x_other"));
                headers.contains_key(name)
            };
            assert!(!forwarded(&EdgeConfig::default()), "{name}");
            assert_eq!(forwarded(&trusting), names.contains(&name), "{name}");
        }
    }
}
