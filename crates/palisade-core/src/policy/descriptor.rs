//! Limits that answer calls of Envoy's rate-limit service: their part of the policy.

/// The values that an entry matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueMatch {
    /// This value only.
    Exact(Box<str>),
    /// Values with this prefix.
    Prefix(Box<str>),
    /// Any value.
    Any,
}

impl ValueMatch {
    /// Whether the value matches; letter case counts (R-DEPTH).
    #[must_use]
    pub fn matches(&self, value: &str) -> bool {
        self.matches_bytes(value.as_bytes())
    }

    /// Whether the value, which need not be text, matches.
    #[must_use]
    pub fn matches_bytes(&self, value: &[u8]) -> bool {
        match self {
            Self::Exact(exact) => exact.as_bytes() == value,
            Self::Prefix(prefix) => value.starts_with(prefix.as_bytes()),
            Self::Any => true,
        }
    }

    /// Orders matches of one value, the most specific highest: the exact one, then the
    /// longest prefix, then any (R-VALUE).
    #[must_use]
    pub fn specificity(&self) -> (u8, usize) {
        match self {
            Self::Exact(_) => (2, 0),
            Self::Prefix(prefix) => (1, prefix.len()),
            Self::Any => (0, 0),
        }
    }

    /// Whether more than one value matches.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        !matches!(self, Self::Exact(_))
    }
}

/// An entry of a descriptor: a key, and the values that match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryMatch {
    /// The key.
    pub key: Box<str>,
    /// The values that match.
    pub value: ValueMatch,
}

/// Whether a limit counts, denies everything or admits everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// The limit counts, up to its amount.
    #[default]
    Counted,
    /// The limit denies everything: `rate = "0/s"` (R-ZERO).
    Denies,
    /// The limit admits everything without a call to the store: `unlimited = true` (R-UNLIMITED).
    Admits,
}

/// The part of a limit's definition that only limits of a domain have.
/// [`LimitDef::by`](super::LimitDef::by) names the entries whose values get buckets of their own;
/// with `share` there are none (R-VALUE).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescriptorRule {
    /// The domain whose calls the limit answers (R-DOMAIN).
    pub domain: Box<str>,
    /// The entries that a descriptor must have, exactly these and in this order (R-DEPTH).
    pub entries: Box<[EntryMatch]>,
    /// Whether the limit counts.
    pub standing: Standing,
    /// Limits that are neither evaluated nor charged where this one matches the same call
    /// (R-REPLACES).
    pub replaces: Box<[Box<str>]>,
}

/// `[rls]`: settings that all limits of domains share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RlsSettings {
    /// All limits are evaluated, charged and reported, and none is ever over (R-SHADOW).
    pub shadow: bool,
    /// If one descriptor of a call is over its limit, the others are charged all the same
    /// (R-ATOMIC).
    pub count_denied: bool,
    /// Negative hits are given back, whichever call charged them (R-HITS).
    pub refunds: bool,
    /// Whether answers carry metadata (R-META).
    pub metadata: bool,
    /// Key of the entry that names an organisation: to limits that count by this entry, the
    /// organisation's own amounts apply.
    pub org_key: Option<Box<str>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r_value_exact_before_the_longest_prefix_before_any() {
        let mut matches = [
            ValueMatch::Any,
            ValueMatch::Prefix("/a".into()),
            ValueMatch::Exact("/a/b".into()),
            ValueMatch::Prefix("/a/".into()),
        ];
        matches.sort_by_key(|value| std::cmp::Reverse(value.specificity()));
        assert!(matches.iter().all(|value| value.matches("/a/b")));
        assert_eq!(matches[0], ValueMatch::Exact("/a/b".into()));
        assert_eq!(matches[1], ValueMatch::Prefix("/a/".into()));
        assert_eq!(matches[3], ValueMatch::Any);
        assert!(!ValueMatch::Exact("a".into()).matches("A"));
        assert!(!ValueMatch::Prefix("a".into()).matches("A"));
    }
}
