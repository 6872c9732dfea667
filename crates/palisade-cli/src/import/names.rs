//! Names of limits: unique, and made of keys only, since metrics and headers show them.

use std::collections::BTreeSet;

/// Longest name, in bytes.
const NAME_BYTES_MAX: usize = 64;
/// Bytes reserved for a number at the end of a name.
const NUMBER_BYTES: usize = 6;

/// Hands out names.
#[derive(Default)]
pub(super) struct Names(BTreeSet<String>);

impl Names {
    /// Returns the wanted name if it is free and well formed, else a similar one.
    pub(super) fn unique(&mut self, wanted: &str) -> String {
        let mut base: String = wanted.chars().map(plain).collect();
        base.truncate(NAME_BYTES_MAX - NUMBER_BYTES);
        if base.is_empty() {
            base.push_str("limit");
        }
        let numbered = (2..).map(|number: usize| format!("{base}-{number}"));
        let mut candidates = std::iter::once(base.clone()).chain(numbered);
        let name = candidates.find(|name| !self.0.contains(name));
        let name = name.unwrap_or(base);
        self.0.insert(name.clone());
        name
    }
}

fn plain(c: char) -> char {
    match c {
        c if c.is_ascii_alphanumeric() || "-_.".contains(c) => c,
        _ => '-',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_plain_and_bounded() {
        let mut names = Names::default();
        assert_eq!(names.unique("edge.remote address"), "edge.remote-address");
        assert_eq!(names.unique("edge.remote address"), "edge.remote-address-2");
        assert_eq!(names.unique(""), "limit");
        let long = "k".repeat(100);
        let first = names.unique(&long);
        let second = names.unique(&long);
        assert!(first.len() <= 64 && second.len() <= 64 && first != second);
    }
}
