//! Country and network that a trusted proxy states in headers (P-BY).

use http::{HeaderMap, HeaderName};
use palisade_core::geo::{Asn, Country, Geo};

/// Names of the headers in which a trusted proxy states where a client is.
///
/// The proxy must set or remove each of them on every request: one that it lets through is the
/// client's own claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GeoHeaders {
    /// The country, by its code of two letters.
    pub country: Option<HeaderName>,
    /// The number of the network, with or without `AS` before it.
    pub network: Option<HeaderName>,
}

impl GeoHeaders {
    /// The headers themselves.
    pub fn names(&self) -> impl Iterator<Item = &HeaderName> {
        self.country.iter().chain(&self.network)
    }

    /// Reads what the proxy states. The caller has checked that the proxy is trusted. A header that
    /// is there twice, or that names no country (`XX`, `T1`), states nothing: the client cannot be
    /// blamed for it.
    pub(super) fn read(&self, headers: &HeaderMap) -> Geo {
        let single = |name: &Option<HeaderName>| {
            let mut lines = headers.get_all(name.as_ref()?).iter();
            let line = lines.next()?.to_str().ok()?;
            lines.next().is_none().then_some(line.trim())
        };
        Geo {
            country: single(&self.country)
                .and_then(Country::parse)
                .filter(|country| country.is_assigned()),
            asn: single(&self.network).and_then(Asn::parse),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[(&'static str, &'static str)]) -> Geo {
        let headers = GeoHeaders {
            country: Some(HeaderName::from_static("cf-ipcountry")),
            network: Some(HeaderName::from_static("x-asn")),
        };
        let mut sent = HeaderMap::new();
        for (name, value) in lines {
            sent.append(*name, value.parse().unwrap());
        }
        headers.read(&sent)
    }

    #[test]
    fn p_by_a_header_states_a_country_or_nothing() {
        let said = read(&[("cf-ipcountry", "es"), ("x-asn", "AS64496")]);
        assert_eq!(said.country, Country::parse("ES"));
        assert_eq!(said.asn, Asn::new(64496));
        for nothing in ["XX", "T1", "", "Spain"] {
            let said = read(&[("cf-ipcountry", nothing), ("x-asn", nothing)]);
            assert_eq!(said, Geo::UNKNOWN, "{nothing}");
        }
        let twice = read(&[("cf-ipcountry", "ES"), ("cf-ipcountry", "FR")]);
        assert_eq!(twice, Geo::UNKNOWN);
    }
}
