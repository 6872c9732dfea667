//! Conditions on country and network, of a limit or a route.

use std::sync::Arc;

use super::{Asn, Country, Geo};

/// A kind of network that policies can name, by a list of networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkKind {
    /// Networks of data centres and hosting companies, where few people are and many scripts.
    Hosting,
}

impl NetworkKind {
    /// The name of the kind in policies.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hosting => "hosting",
        }
    }
}

/// The conditions under which a limit or a route applies. All of those that are set must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GeoFilter {
    /// Countries that it applies to; any if empty. `None` is the unknown country.
    pub countries: Vec<Option<Country>>,
    /// Countries that it does not apply to. An unknown country is none of them, unless it is
    /// listed.
    pub not_countries: Vec<Option<Country>>,
    /// Networks that it applies to; any if empty. `None` is the unknown network.
    pub asns: Vec<Option<Asn>>,
    /// Networks of the kind that it applies to, ascending; any if there is no kind.
    pub of_kind: Option<Arc<[Asn]>>,
}

impl GeoFilter {
    /// True if nothing is asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// True if an address of this country and network meets the conditions.
    #[must_use]
    pub fn matches(&self, geo: Geo) -> bool {
        let is_of_kind = |networks: &Arc<[Asn]>| {
            geo.asn
                .is_some_and(|asn| networks.binary_search(&asn).is_ok())
        };
        (self.countries.is_empty() || self.countries.contains(&geo.country))
            && !self.not_countries.contains(&geo.country)
            && (self.asns.is_empty() || self.asns.contains(&geo.asn))
            && self.of_kind.as_ref().is_none_or(is_of_kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geo(country: &str, asn: u32) -> Geo {
        Geo {
            country: Country::parse(country),
            asn: Asn::new(asn),
        }
    }

    #[test]
    fn p_by_conditions_hold_together_and_unknown_is_a_value() {
        let kp = GeoFilter {
            countries: vec![Country::parse("KP")],
            ..GeoFilter::default()
        };
        let not_kp = GeoFilter {
            not_countries: vec![Country::parse("KP")],
            ..GeoFilter::default()
        };
        let unknown = GeoFilter {
            countries: vec![None],
            ..GeoFilter::default()
        };
        let hosted = GeoFilter {
            of_kind: Some([1, 5, 9].into_iter().filter_map(Asn::new).collect()),
            ..not_kp.clone()
        };
        let own = GeoFilter {
            asns: vec![Asn::new(5), None],
            ..GeoFilter::default()
        };
        let of = |geo: Geo| [&kp, &not_kp, &unknown, &hosted, &own].map(|one| one.matches(geo));
        assert_eq!(of(geo("KP", 5)), [true, false, false, false, true]);
        assert_eq!(of(geo("ES", 5)), [false, true, false, true, true]);
        assert_eq!(of(geo("ES", 6)), [false, true, false, false, false]);
        assert_eq!(of(Geo::UNKNOWN), [false, true, true, false, true]);
        assert!(GeoFilter::default().matches(Geo::UNKNOWN));
    }
}
