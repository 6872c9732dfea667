//! `costs`: a JSON object of units and amounts.

use std::fmt;

use palisade_core::FieldError;
use palisade_core::budget::{COSTS_MAX, Costs};
use serde::de::{Error, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Costs as they were sent. A unit that is named twice is kept twice, so that it is refused later.
#[derive(Clone, Debug)]
pub struct RawCosts(Vec<(String, u64)>);

impl RawCosts {
    /// Validates the costs.
    ///
    /// # Errors
    /// See [`Costs::new`].
    pub fn into_costs(self) -> Result<Costs, FieldError> {
        Costs::new(self.0)
    }
}

impl<'de> Deserialize<'de> for RawCosts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Amounts;
        impl<'de> Visitor<'de> for Amounts {
            type Value = RawCosts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of units and whole numbers from 0 to 140737488355328")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawCosts, A::Error> {
                let mut amounts = Vec::new();
                while let Some(unit) = map.next_key::<String>()? {
                    // Keeps one cost beyond the bound, so that validation refuses the object and
                    // names it.
                    if amounts.len() > COSTS_MAX {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    let amount = map.next_value::<u64>().map_err(|_| {
                        A::Error::custom("must be whole numbers from 0 to 140737488355328")
                    })?;
                    amounts.push((unit, amount));
                }
                Ok(RawCosts(amounts))
            }
        }
        deserializer.deserialize_map(Amounts)
    }
}
