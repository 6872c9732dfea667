//! Ranges that a destination belongs to: its country and the digits that a policy names, or its
//! mail domain.

use std::sync::Arc;

use arrayvec::ArrayVec;

use super::Destination;

/// Most ranges that a policy names.
pub const RANGES_MAX: usize = 1_000;

/// Most ranges of one destination.
pub const RANGES_OF_ONE: usize = 2;

/// A range that a destination belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range<'a> {
    /// The calling code or first digits with `+`, or the mail domain.
    pub name: &'a str,
    /// True for a whole calling code, and for a mail domain that the policy does not name: it is
    /// never refused outright, because that would lock a country, or a mail provider, out.
    pub is_wide: bool,
}

/// Ranges that a policy names, such as `+3460` and `example.com`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeTable(Vec<Arc<str>>);

impl RangeTable {
    /// A table of these names; the longest that fits counts.
    #[must_use]
    pub fn new(names: impl IntoIterator<Item = Arc<str>>) -> Self {
        let mut names: Vec<Arc<str>> = names.into_iter().collect();
        names.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        names.dedup();
        Self(names)
    }

    /// The names, the longest first.
    #[must_use]
    pub fn names(&self) -> &[Arc<str>] {
        &self.0
    }

    /// The longest name that covers a destination.
    #[must_use]
    pub fn longest(&self, destination: &Destination) -> Option<&Arc<str>> {
        self.0.iter().find(|name| covers(name, destination))
    }

    /// The ranges of a destination: its calling code and, if the policy names one, the longest
    /// prefix; or its mail domain.
    #[must_use]
    pub fn of<'a>(&'a self, destination: &'a Destination) -> ArrayVec<Range<'a>, RANGES_OF_ONE> {
        let named = self.longest(destination).map(|name| &**name);
        let wide = destination.calling_code().or(destination.domain());
        let is_country = destination.domain().is_none();
        let mut ranges = ArrayVec::new();
        if let Some(name) = wide {
            let is_named = named == Some(name) && !is_country;
            ranges.push(Range {
                name,
                is_wide: !is_named,
            });
        }
        if let Some(name) = named.filter(|name| Some(*name) != wide) {
            ranges.push(Range {
                name,
                is_wide: false,
            });
        }
        ranges
    }
}

/// Whether a name of a range covers a destination.
#[must_use]
pub fn covers(name: &str, destination: &Destination) -> bool {
    match destination.domain() {
        Some(domain) => domain == name,
        None => name.starts_with('+') && destination.as_str().starts_with(name),
    }
}

/// Whether a text can be a range: `+` and digits that start with a calling code, or a mail domain.
#[must_use]
pub fn is_range(name: &str) -> bool {
    match name.strip_prefix('+') {
        Some(digits) => {
            let is_number = (1..=15).contains(&digits.len())
                && digits.bytes().all(|byte| byte.is_ascii_digit());
            is_number && super::calling_codes::length(digits).is_some()
        }
        None => {
            let is_plain = |c: char| c.is_alphanumeric() || "-_.".contains(c);
            name.len() <= 253
                && name.contains('.')
                && name.split('.').all(|label| !label.is_empty())
                && name.chars().all(is_plain)
                && crate::spelling::one(name) == name
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(table: &[&str], destination: &str) -> Vec<(String, bool)> {
        let table = RangeTable::new(table.iter().map(|name| Arc::from(*name)));
        let destination = Destination::new(destination).unwrap();
        let ranges = table.of(&destination);
        let named = ranges.iter().map(|one| (one.name.to_owned(), one.is_wide));
        named.collect()
    }

    #[test]
    fn a_number_belongs_to_its_country_and_the_longest_prefix_that_is_named() {
        let table = ["+34", "+346", "+3460", "+35", "+44"];
        let found = names(&table, "+34600123456");
        assert_eq!(
            found,
            [("+34".to_owned(), true), ("+3460".to_owned(), false)]
        );
        let found = names(&table, "+34910123456");
        assert_eq!(
            found,
            [("+34".to_owned(), true)],
            "a whole country, though named"
        );
        assert_eq!(names(&[], "+12125550100"), [("+1".to_owned(), true)]);
    }

    #[test]
    fn a_mail_address_belongs_to_its_domain() {
        let found = names(&["+34"], "ann@example.com");
        assert_eq!(found, [("example.com".to_owned(), true)]);
        let found = names(&["example.com"], "ann@example.com");
        assert_eq!(found, [("example.com".to_owned(), false)], "it is named");
        let found = names(&["example.com"], "ann@mail.example.com");
        assert_eq!(found, [("mail.example.com".to_owned(), true)]);
    }

    #[test]
    fn a_range_starts_with_a_calling_code_or_is_a_domain() {
        for name in [
            "+34",
            "+3460",
            "+1",
            "+44",
            "example.com",
            "mail.example.co",
        ] {
            assert!(is_range(name), "{name}");
        }
        for name in [
            "34",
            "+",
            "+3",
            "+999",
            "+34x",
            "example",
            ".com",
            "Example.com",
            "a b.com",
        ] {
            assert!(!is_range(name), "{name}");
        }
    }
}
