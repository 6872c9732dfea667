//! Requests by country and network, of policies that ask for them. The first values get labels of
//! their own, all others share one (P-PRIVACY).

use std::collections::BTreeMap;

use palisade_core::geo::{Geo, UNKNOWN};
use parking_lot::Mutex;

use super::cells::LabelCount;

/// Most countries with a label of their own.
pub(super) const COUNTRIES_MAX: usize = 64;
/// Most networks with a label of their own.
pub(super) const NETWORKS_MAX: usize = 64;
/// Label of all others.
const OTHER: &str = "other";

#[derive(Debug, Default)]
pub(super) struct GeoCounts(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    countries: Labels<COUNTRIES_MAX>,
    networks: Labels<NETWORKS_MAX>,
}

/// Admitted and refused requests by label.
#[derive(Debug, Default)]
struct Labels<const MAX: usize>(BTreeMap<Box<str>, [u64; 2]>);

impl<const MAX: usize> Labels<MAX> {
    fn count(&mut self, label: Option<String>, is_refused: bool) {
        let label = label.unwrap_or_else(|| UNKNOWN.to_owned());
        // What everybody else shares is not among those with a label of their own.
        let is_full = self.0.len() > MAX;
        let label = match self.0.contains_key(&*label) || !is_full {
            true => label,
            false => OTHER.to_owned(),
        };
        let counts = self.0.entry(label.into()).or_default();
        counts[usize::from(is_refused)] += 1;
    }

    fn read(&self) -> Vec<LabelCount<2>> {
        let counted = |label: &str, decision: &str, count: u64| LabelCount {
            labels: [label.to_owned(), decision.to_owned()],
            count,
        };
        let both = self.0.iter().flat_map(|(label, [admitted, refused])| {
            [
                counted(label, "allow", *admitted),
                counted(label, "deny", *refused),
            ]
        });
        both.filter(|one| one.count > 0).collect()
    }
}

impl GeoCounts {
    /// Counts a request.
    pub(super) fn count(&self, geo: Geo, is_refused: bool) {
        let mut counts = self.0.lock();
        let country = geo.country.map(|country| country.to_string());
        counts.countries.count(country, is_refused);
        let network = geo.asn.map(|asn| asn.number().to_string());
        counts.networks.count(network, is_refused);
    }

    pub(super) fn countries(&self) -> Vec<LabelCount<2>> {
        self.0.lock().countries.read()
    }

    pub(super) fn networks(&self) -> Vec<LabelCount<2>> {
        self.0.lock().networks.read()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use palisade_core::geo::Asn;

    #[test]
    fn p_privacy_countries_and_networks_have_a_bounded_number_of_labels() {
        let counts = GeoCounts::default();
        for number in 1..=1_000 {
            let geo = Geo {
                country: None,
                asn: Asn::new(number),
            };
            counts.count(geo, number % 2 == 0);
        }
        let networks = counts.networks();
        let labels = |one: &LabelCount<2>| one.labels.clone();
        assert_eq!(networks.iter().map(|one| one.count).sum::<u64>(), 1_000);
        assert!(
            networks.len() <= 2 * (NETWORKS_MAX + 2),
            "{}",
            networks.len()
        );
        assert!(networks.iter().any(|one| labels(one)[0] == OTHER));
        let countries = counts.countries();
        let said: Vec<_> = countries
            .iter()
            .map(|one| (labels(one), one.count))
            .collect();
        let unknown = |decision: &str| [UNKNOWN.to_owned(), decision.to_owned()];
        assert_eq!(said, [(unknown("allow"), 500), (unknown("deny"), 500)]);
    }
}
