//! Rates.

use std::num::NonZeroU32;

use palisade_core::limit::Window;

use crate::document::decode::{Decode, Problem, Problems, UNITS, digits, text_of};
use crate::document::error::nearest;
use crate::document::tree::Node;

/// `N/window`, as in `250/min`, `5/15min`, `1_000_000/day`, `1000/month`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// How many.
    pub limit: NonZeroU32,
    /// In how long.
    pub window: Window,
}

impl Rate {
    /// Parses a rate.
    ///
    /// # Errors
    /// What is wrong, as the end of a sentence, without the text itself.
    pub fn parse(text: &str) -> Result<Self, String> {
        parse_rate(text).map_err(|problem| problem.message)
    }
}

fn parse_rate(text: &str) -> Result<Rate, Problem> {
    const EXAMPLE: &str = "for example \"250/min\", \"5/15min\", \"1_000_000/day\", \"1000/month\"";
    let shape = || Problem::new("must be `N/window`").hint(EXAMPLE);
    let (count, window) = text.split_once('/').ok_or_else(shape)?;
    let count = digits_or_overflow(count.trim()).ok_or_else(shape)?;
    let limit = match u32::try_from(count) {
        Ok(count) => NonZeroU32::new(count)
            .ok_or_else(|| Problem::new("must not be zero").hint("a rate is at least 1"))?,
        Err(_) => return Err(Problem::new(format!("must be at most {}", u32::MAX))),
    };
    Ok(Rate {
        limit,
        window: parse_window(window.trim())?,
    })
}

/// A number too long for any type counts as the largest.
fn digits_or_overflow(text: &str) -> Option<u128> {
    let plain = !text.is_empty()
        && text
            .split('_')
            .all(|group| !group.is_empty() && group.bytes().all(|b| b.is_ascii_digit()));
    plain.then(|| text.replace('_', "").parse().unwrap_or(u128::MAX))
}

fn parse_window(text: &str) -> Result<Window, Problem> {
    let split = text
        .find(|c: char| !c.is_ascii_digit() && c != '_')
        .unwrap_or(text.len());
    let (count, unit) = text.split_at(split);
    if unit == "month" {
        return match count {
            "" | "1" => Ok(Window::Month),
            _ => Err(Problem::new("must count by one calendar month").hint("write \"N/month\"")),
        };
    }
    let Some((_, micros)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        let known = UNITS.iter().map(|(name, _)| *name).chain(["month"]);
        let problem = Problem::new("must end in a unit: ms, s, min, h, day or month");
        return Err(match nearest(unit, known) {
            Some(name) => problem.hint(format!("did you mean `{name}`?")),
            None => problem,
        });
    };
    let overflow = || Problem::new("must not have a window longer than 10 years");
    let count = match count {
        "" => 1,
        count => u64::try_from(digits(count).ok_or_else(overflow)?).map_err(|_| overflow())?,
    };
    if count == 0 {
        return Err(Problem::new("must not have a window of zero"));
    }
    count
        .checked_mul(*micros)
        .map(Window::Span)
        .ok_or_else(overflow)
}

impl Decode for Rate {
    fn kind() -> String {
        "rate".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        parse_rate(text_of(node)?.trim()).map_err(|problem| vec![problem])
    }
}
