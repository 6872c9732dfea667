//! A list of networks in a file: one number on each line.

use std::path::Path;
use std::sync::Arc;

use palisade_core::geo::Asn;

use crate::policy::load::read_file;

/// Most networks in a list.
const NETWORKS_MAX: usize = 100_000;

/// Reads a list. Empty lines, and what follows a `#`, are comments. The error continues "`key` …".
pub(super) fn read(path: &Path) -> Result<Arc<[Asn]>, String> {
    let text = read_file(path).map_err(|_| "cannot be read".to_owned())?;
    parse(&text)
}

fn parse(text: &str) -> Result<Arc<[Asn]>, String> {
    let mut networks = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        if networks.len() >= NETWORKS_MAX {
            return Err(format!("has more than {NETWORKS_MAX} networks"));
        }
        let number = index + 1;
        let network = Asn::parse(line);
        networks.push(network.ok_or_else(|| format!("has no network's number on line {number}"))?);
    }
    // Ascending, because requests search it.
    networks.sort_unstable();
    networks.dedup();
    Ok(networks.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p_by_a_list_of_networks_is_one_number_a_line() {
        let list = "# hosting\nAS64500  # one\n\n64496\n64500\n";
        let numbers = |list: &[Asn]| list.iter().map(|asn| asn.number()).collect::<Vec<_>>();
        assert_eq!(numbers(&parse(list).unwrap()), [64496, 64500]);
        assert_eq!(numbers(&parse("").unwrap()), [0; 0]);
        assert_eq!(
            parse("1\ncanary\n").unwrap_err(),
            "has no network's number on line 2"
        );
    }
}
