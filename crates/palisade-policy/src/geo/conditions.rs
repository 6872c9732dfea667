//! Conditions on country and network in `[[limit]]` and `[[route]]`.

use std::sync::Arc;

use palisade_core::geo::{Asn, Country, GeoFilter, NetworkKind, UNKNOWN};

use super::GeoSettings;
use crate::document::decode::{Decode, Problem, Problems, integer, text_of, wrong};
use crate::document::error::Sink;
use crate::document::tree::{Node, member_origin};
use crate::named;

/// A country in a policy; `None` is the unknown one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CountryName(pub(crate) Option<Country>);

impl Decode for CountryName {
    fn kind() -> String {
        "country code or `unknown`".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        let text = text_of(node)?;
        if text == UNKNOWN {
            return Ok(Self(None));
        }
        let country = Country::parse(text).filter(|country| country.is_assigned());
        match country {
            Some(country) if country.to_string() == text => Ok(Self(Some(country))),
            Some(country) => Err(vec![
                Problem::new("must be written in capital letters")
                    .hint(format!("did you mean `{country}`?")),
            ]),
            None if text.eq_ignore_ascii_case("uk") => Err(vec![
                Problem::new("must be a country code of ISO 3166").hint("did you mean `GB`?"),
            ]),
            None => Err(vec![
                Problem::new("must be a country code of ISO 3166, or `unknown`")
                    .hint("for example `DE`, `GB` or `US`"),
            ]),
        }
    }
}

/// A network in a policy; `None` is the unknown one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AsnName(pub(crate) Option<Asn>);

impl Decode for AsnName {
    fn kind() -> String {
        "network number or `unknown`".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        if node.as_str() == Some(UNKNOWN) {
            return Ok(Self(None));
        }
        let number = integer(node).and_then(|number| u32::try_from(number).ok());
        let network = number.and_then(Asn::new);
        match network.or_else(|| node.as_str().and_then(Asn::parse)) {
            Some(network) => Ok(Self(Some(network))),
            None => wrong("must be the number of a network, 1 to 4294967295, or `unknown`"),
        }
    }
}

named!(NetworkKind {
    "hosting" => Self::Hosting,
});

/// The keys of one limit or route.
pub(crate) struct Conditions<'a> {
    pub(crate) country: Option<&'a [CountryName]>,
    pub(crate) not_country: Option<&'a [CountryName]>,
    pub(crate) asn: Option<&'a [AsnName]>,
    pub(crate) network_kind: Option<NetworkKind>,
}

impl Conditions<'_> {
    /// Each key, and whether it is set.
    pub(crate) const fn keys(&self) -> [(&'static str, bool); 4] {
        [
            ("country", self.country.is_some()),
            ("not_country", self.not_country.is_some()),
            ("asn", self.asn.is_some()),
            ("network_kind", self.network_kind.is_some()),
        ]
    }

    /// The filter that the keys of `item`, a member of the array `table`, make; `None` if there is
    /// none.
    pub(crate) fn filter(
        &self,
        (table, item): (&str, &Node),
        geo: &GeoSettings,
        sink: &mut Sink,
    ) -> Option<Arc<GeoFilter>> {
        self.report((table, item), sink);
        if self.network_kind.is_some() && geo.hosting.is_none() {
            sink.report_with(
                &member_origin(item, "network_kind"),
                format!("`{table}.network_kind` needs a list of networks"),
                "name its file with `[places] hosting = …`; none is built in",
            );
        }
        self.warn((table, item), geo, sink);
        let countries = |names: Option<&[CountryName]>| {
            names
                .unwrap_or_default()
                .iter()
                .map(|name| name.0)
                .collect()
        };
        let asns = self.asn.unwrap_or_default().iter().map(|name| name.0);
        let filter = GeoFilter {
            countries: countries(self.country),
            not_countries: countries(self.not_country),
            asns: asns.collect(),
            of_kind: self.network_kind.and(geo.hosting.clone()),
        };
        (!filter.is_empty()).then(|| Arc::new(filter))
    }

    fn report(&self, (table, item): (&str, &Node), sink: &mut Sink) {
        let lists = [
            ("country", self.country.map(<[_]>::len)),
            ("not_country", self.not_country.map(<[_]>::len)),
            ("asn", self.asn.map(<[_]>::len)),
        ];
        for (key, _) in lists.into_iter().filter(|(_, length)| *length == Some(0)) {
            let message = format!("`{table}.{key}` must not be empty");
            let hint = "leave it out: without it every address is meant";
            sink.report_with(&member_origin(item, key), message, hint);
        }
        if self.country.is_some() && self.not_country.is_some() {
            sink.report_with(
                &member_origin(item, "not_country"),
                format!("`{table}.not_country` and `{table}.country` exclude each other"),
                "leave one of them out",
            );
        }
    }

    /// Warns of conditions on facts that only callers of the decision API can state.
    fn warn(&self, (table, item): (&str, &Node), geo: &GeoSettings, sink: &mut Sink) {
        for (key, is_set) in self.keys() {
            let (has_source, file, fact) = match key {
                "country" | "not_country" => (geo.has_countries(), "country", "country"),
                _ => (geo.has_networks(), "network", "network"),
            };
            if is_set && !has_source {
                sink.warn_with(
                    &member_origin(item, key),
                    format!("`{table}.{key}` is judged without a source of {fact} facts"),
                    format!(
                        "set `[places] {file} = …` or `{file}_header`; otherwise only callers of \
                         the decision API can state the {fact}"
                    ),
                );
            }
        }
    }
}
