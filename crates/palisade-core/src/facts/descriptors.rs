//! One call of an Envoy rate-limit service, validated: a value of these types is within
//! its bounds (R-IDS).

use std::fmt;
use std::num::NonZeroU64;

use super::{FieldError, ID_BYTES_MAX, Id, bounded};
use crate::limit::Window;

/// Most descriptors of a call.
pub const DESCRIPTORS_MAX: usize = 64;
/// Most entries of a descriptor.
pub const ENTRIES_MAX: usize = 16;
/// Longest value of an entry, in bytes: more than a proxy takes as a header. A proxy may let a call
/// through that is refused here, so every value that a client can send is accepted.
pub const VALUE_BYTES_MAX: usize = 64 * 1024;

/// The operation that a descriptor requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hits {
    /// Charges this many hits.
    Charge(NonZeroU64),
    /// Charges nothing; asks whether one hit would be admitted.
    Look,
    /// Gives this many hits back.
    Refund(NonZeroU64),
}

/// A limit that a descriptor carries in place of the policy's (R-OVERRIDE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnFigure {
    /// Hits per window; zero denies everything.
    pub amount: u64,
    /// The window.
    pub window: Window,
}

/// A key and its value. Both are bytes: a client need not send text, and its hits count all the
/// same.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DescriptorEntry<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value; an identifier.
    pub value: &'a [u8],
}

impl fmt::Debug for DescriptorEntry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DescriptorEntry(…)")
    }
}

/// One descriptor of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor<'a> {
    /// Entries of the descriptor, in order.
    pub entries: Vec<DescriptorEntry<'a>>,
    /// Requested operation; the call's hits if the descriptor states none.
    pub hits: Option<Hits>,
    /// A limit in place of the policy's.
    pub figure: Option<OwnFigure>,
}

impl<'a> Descriptor<'a> {
    /// A descriptor with these entries and without hits of its own.
    #[must_use]
    pub fn new<K, V>(entries: impl IntoIterator<Item = (&'a K, &'a V)>) -> Self
    where
        K: AsRef<[u8]> + ?Sized + 'a,
        V: AsRef<[u8]> + ?Sized + 'a,
    {
        let entry = |(key, value): (&'a K, &'a V)| DescriptorEntry {
            key: key.as_ref(),
            value: value.as_ref(),
        };
        Self {
            entries: entries.into_iter().map(entry).collect(),
            hits: None,
            figure: None,
        }
    }

    fn validate(&self) -> Result<(), FieldError> {
        match self.entries.len() {
            0 => {
                return Err(FieldError::new("descriptors.entries", "must not be empty"));
            }
            1..=ENTRIES_MAX => {}
            _ => {
                return Err(FieldError::new("descriptors.entries", "must be at most 16"));
            }
        }
        let key = |problem| Err(FieldError::new("descriptors.entries.key", problem));
        for entry in &self.entries {
            match entry.key.len() {
                0 => return key("must not be empty"),
                1..=ID_BYTES_MAX => {}
                _ => return key("is too long"),
            }
            if entry.value.len() > VALUE_BYTES_MAX {
                return Err(FieldError::new("descriptors.entries.value", "is too long"));
            }
        }
        Ok(())
    }
}

/// One call's facts.
#[derive(Clone, PartialEq, Eq)]
pub struct DescriptorFacts<'a> {
    domain: &'a str,
    descriptors: Vec<Descriptor<'a>>,
    /// Hits of every descriptor that states none of its own.
    pub hits: NonZeroU64,
    /// Echoed in the answer and in logs.
    pub request_id: Option<Id>,
}

impl<'a> DescriptorFacts<'a> {
    /// The facts of a call that asks for one hit.
    ///
    /// # Errors
    /// No domain, no descriptors, too many of them or of their entries, or an entry that is
    /// too long (R-DOMAIN, R-IDS).
    pub fn new(domain: &'a str, descriptors: Vec<Descriptor<'a>>) -> Result<Self, FieldError> {
        bounded("domain", domain, ID_BYTES_MAX)?;
        if descriptors.is_empty() {
            return Err(FieldError::new("descriptors", "must not be empty"));
        }
        if descriptors.len() > DESCRIPTORS_MAX {
            return Err(FieldError::new("descriptors", "must be at most 64"));
        }
        descriptors.iter().try_for_each(Descriptor::validate)?;
        Ok(Self {
            domain,
            descriptors,
            hits: NonZeroU64::MIN,
            request_id: None,
        })
    }

    /// The domain of the call.
    #[must_use]
    pub const fn domain(&self) -> &'a str {
        self.domain
    }

    /// The descriptors, in order.
    #[must_use]
    pub fn descriptors(&self) -> &[Descriptor<'a>] {
        &self.descriptors
    }

    /// Returns the operation that a descriptor requests: its own hits win over the call's (R-HITS).
    #[must_use]
    pub fn hits_of(&self, descriptor: &Descriptor<'_>) -> Hits {
        descriptor.hits.unwrap_or(Hits::Charge(self.hits))
    }
}

impl fmt::Debug for DescriptorFacts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DescriptorFacts").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(domain: &str, descriptors: Vec<Descriptor<'_>>) -> String {
        DescriptorFacts::new(domain, descriptors)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn r_domain_a_call_without_a_domain_or_descriptors_is_refused() {
        let one = || vec![Descriptor::new([("k", "v")])];
        assert_eq!(refused("", one()), "`domain` must not be empty");
        assert_eq!(refused("edge", vec![]), "`descriptors` must not be empty");
        assert!(DescriptorFacts::new("edge", one()).is_ok());
    }

    #[test]
    fn r_ids_bounds_of_a_call_name_the_field_and_never_its_value() {
        let entries = |count: usize| Descriptor::new(std::iter::repeat_n(("k", "canary"), count));
        let too_many = vec![entries(1); DESCRIPTORS_MAX + 1];
        assert_eq!(
            refused("edge", too_many),
            "`descriptors` must be at most 64"
        );
        assert!(DescriptorFacts::new("edge", vec![entries(16); 64]).is_ok());
        for (descriptor, message) in [
            (entries(0), "`descriptors.entries` must not be empty"),
            (entries(17), "`descriptors.entries` must be at most 16"),
            (
                Descriptor::new([("", "canary")]),
                "`descriptors.entries.key` must not be empty",
            ),
        ] {
            assert_eq!(refused("edge", vec![descriptor]), message);
        }
        let long = "x".repeat(VALUE_BYTES_MAX);
        let of = |value: &str| {
            DescriptorFacts::new("edge", vec![Descriptor::new([("k", value)])]).is_ok()
        };
        assert!(of(&long) && !of(&(long.clone() + "x")));
    }

    #[test]
    fn r_ids_debug_shows_no_value() {
        let descriptors = vec![Descriptor::new([("k", "canary")])];
        let shown = format!("{descriptors:?}");
        let facts = DescriptorFacts::new("edge", descriptors).unwrap();
        assert!(!format!("{shown}{facts:?}").contains("canary"));
    }

    #[test]
    fn r_hits_a_descriptors_own_win_over_the_calls() {
        let mut own = Descriptor::new([("k", "v")]);
        own.hits = Some(Hits::Look);
        let plain = Descriptor::new([("k", "v")]);
        let mut facts = DescriptorFacts::new("edge", vec![own.clone(), plain.clone()]).unwrap();
        let three = NonZeroU64::new(3).unwrap();
        facts.hits = three;
        assert_eq!(facts.hits_of(&own), Hits::Look);
        assert_eq!(facts.hits_of(&plain), Hits::Charge(three));
    }
}
