//! The host that a request names (I-ROUTE). It is read only where a route names a host. There a
//! request whose host different readers read differently is refused.

use http::header::HOST;
use http::{HeaderMap, HeaderName, Uri};
use palisade_core::FieldError;
use palisade_core::policy::Host;

use super::header;

const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// Returns the host of a request that reached an enforcing surface itself: that of its target, else
/// that of its `Host` header. Both must name the same host, since applications read either.
pub(super) fn of_request(uri: &Uri, headers: &HeaderMap) -> Result<Option<Host>, FieldError> {
    let target = uri.authority().map(|authority| read(authority.as_str()));
    let sent = header::single(headers, &HOST, "Host")?.map(read);
    match (target.transpose()?, sent.transpose()?) {
        (Some(target), Some(sent)) if target != sent => Err(FieldError::new(
            "Host",
            "does not name the host of the request's target",
        )),
        (target, sent) => Ok(target.or(sent)),
    }
}

/// Returns the host of the original request that a trusted proxy asks about. The header must be
/// sent: without it no route with a host would ever match, and nobody would notice.
pub(super) fn of_forwarded(headers: &HeaderMap) -> Result<Host, FieldError> {
    let missing = FieldError::new("X-Forwarded-Host", "must be sent: a route names a host");
    read(header::single(headers, &X_FORWARDED_HOST, "X-Forwarded-Host")?.ok_or(missing)?)
}

fn read(authority: &str) -> Result<Host, FieldError> {
    Host::parse(authority).ok_or(FieldError::new("Host", "is not a host name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let parsed = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), value.parse().unwrap())
        };
        pairs.iter().map(parsed).collect()
    }

    #[test]
    fn i_route_target_and_header_must_name_one_host() {
        let of = |uri: &str, sent: &[(&'static str, &'static str)]| {
            let host = of_request(&uri.parse().unwrap(), &headers(sent));
            host.map(|host| host.map(|host| host.as_str().to_owned()))
        };
        assert_eq!(of("/x", &[]), Ok(None));
        assert_eq!(
            of("/x", &[("host", "A.example:80")]),
            Ok(Some("a.example".into()))
        );
        let both = of("http://a.example/x", &[("host", "a.example:80")]);
        assert_eq!(both, Ok(Some("a.example".into())));
        assert!(of("http://a.example/x", &[("host", "b.example")]).is_err());
        assert!(of("/x", &[("host", "a b")]).is_err());
    }

    #[test]
    fn i_route_a_proxy_that_asks_must_say_the_host() {
        assert!(of_forwarded(&headers(&[("host", "inner")])).is_err());
        let said = of_forwarded(&headers(&[("x-forwarded-host", "Shop.example")]));
        assert_eq!(said.unwrap().as_str(), "shop.example");
    }
}
