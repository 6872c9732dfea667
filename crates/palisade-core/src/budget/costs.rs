//! Costs in several units (B-UNIT).

use crate::facts::FieldError;
use crate::limit::FIGURE_MAX;

/// Largest cost: a Lua number and a database column hold sums of it exactly.
pub const AMOUNT_MAX: u64 = FIGURE_MAX;
/// Most units of one decision.
pub const COSTS_MAX: usize = 16;
/// Longest name of a unit, in bytes.
pub const UNIT_BYTES_MAX: usize = 32;

/// Whether `name` can be a unit's: a letter, then letters, digits, `-` and `_`, in lower
/// case.
#[must_use]
pub fn is_unit_name(name: &str) -> bool {
    let is_plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_');
    name.len() <= UNIT_BYTES_MAX
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.bytes().all(is_plain)
}

/// Costs of one decision by unit. Every unit is named once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Costs(Vec<(Box<str>, u64)>);

impl Costs {
    /// Validates costs that arrived as `costs`.
    ///
    /// # Errors
    /// None at all, too many, a unit that is named twice or cannot be one, an amount above
    /// [`AMOUNT_MAX`].
    pub fn new<N: AsRef<str>>(
        amounts: impl IntoIterator<Item = (N, u64)>,
    ) -> Result<Self, FieldError> {
        let refuse = |problem| Err(FieldError::new("costs", problem));
        let mut costs = Self::default();
        for (unit, amount) in amounts {
            let unit = unit.as_ref();
            if !is_unit_name(unit) {
                return refuse("has a name that no unit can have");
            }
            if amount > AMOUNT_MAX {
                return refuse("must be whole numbers from 0 to 140737488355328");
            }
            if costs.of(unit).is_some() {
                return refuse("names a unit twice");
            }
            if costs.0.len() == COSTS_MAX {
                return refuse("has too many members");
            }
            costs.0.push((unit.into(), amount));
        }
        if costs.0.is_empty() {
            return refuse("must name at least one unit");
        }
        Ok(costs)
    }

    /// The cost in `unit`, if it is among them.
    #[must_use]
    pub fn of(&self, unit: &str) -> Option<u64> {
        let mut amounts = self.0.iter();
        amounts
            .find(|(name, _)| **name == *unit)
            .map(|(_, amount)| *amount)
    }

    /// Each unit with its cost, in the order in which they were named.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, u64)> {
        self.0.iter().map(|(unit, amount)| (&**unit, *amount))
    }

    /// Replaces the cost of a unit that is among them.
    pub fn set(&mut self, unit: &str, amount: u64) {
        if let Some(known) = self.0.iter_mut().find(|(name, _)| **name == *unit) {
            known.1 = amount;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b_unit_costs_are_bounded_and_named_once() {
        let costs = Costs::new([("requests", 1), ("usd_micros", AMOUNT_MAX), ("tokens", 0)]);
        let costs = costs.unwrap();
        assert_eq!(costs.of("usd_micros"), Some(AMOUNT_MAX));
        assert_eq!(costs.of("tokens"), Some(0));
        assert_eq!(costs.of("bytes"), None);
        let refused: [Vec<(&str, u64)>; 8] = [
            vec![],
            vec![("tokens", AMOUNT_MAX + 1)],
            vec![("tokens", u64::MAX)],
            vec![("tokens", 1), ("tokens", 1)],
            vec![("", 1)],
            vec![("Tokens", 1)],
            vec![("a b", 1)],
            vec![("9lives", 1)],
        ];
        for amounts in refused {
            let error = Costs::new(amounts.clone()).unwrap_err();
            assert_eq!(error.field, "costs", "{amounts:?}");
        }
        let many = (0..=COSTS_MAX).map(|number| (format!("unit-{number}"), 1));
        assert!(Costs::new(many.clone()).is_err());
        assert!(Costs::new(many.take(COSTS_MAX)).is_ok());
    }
}
