//! Rates and the numbers in them.

use std::num::NonZeroU64;

use palisade_core::limit::{FIGURE_MAX, Window};

use crate::document::decode::{
    Decode, Problem, Problems, UNITS, digits, integer, meant_unit, text_of, wrong,
};
use crate::document::tree::Node;

/// `N/window`, as in `250/min`, `5/15min`, `1_000_000/day`, `1000/month`, `1000/year`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Number per window.
    pub limit: NonZeroU64,
    /// The window.
    pub window: Window,
}

impl Rate {
    /// The lowest rate in this window.
    pub(crate) const fn one_in(window: Window) -> Self {
        Self {
            limit: NonZeroU64::MIN,
            window,
        }
    }

    /// Parses a rate.
    ///
    /// # Errors
    /// The problem, as the end of a sentence, without the text itself.
    pub fn parse(text: &str) -> Result<Self, String> {
        parse_rate(text).map_err(|problem| problem.message)
    }
}

/// A number of units: 1 to [`FIGURE_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Figure(pub(crate) NonZeroU64);

impl Figure {
    /// The figure in an integer, if it can be one.
    pub(crate) fn of(number: i128) -> Option<Self> {
        let number = u64::try_from(number).ok()?;
        NonZeroU64::new(number)
            .filter(|_| number <= FIGURE_MAX)
            .map(Self)
    }
}

impl Decode for Figure {
    fn kind() -> String {
        "integer".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        let Some(number) = integer(node) else {
            return wrong("must be a whole number");
        };
        Self::of(number).map_or_else(|| wrong(format!("must be 1 to {FIGURE_MAX}")), Ok)
    }

    fn show(text: &str) -> String {
        text.to_owned()
    }
}

fn parse_rate(text: &str) -> Result<Rate, Problem> {
    match parse_maybe_zero(text)? {
        MaybeZero::Rate(rate) => Ok(rate),
        MaybeZero::Zero(_) => Err(Problem::new("must not be zero").hint("a rate is at least 1")),
    }
}

/// A rate, or none at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MaybeZero {
    /// `0/window`.
    Zero(Window),
    /// At least one.
    Rate(Rate),
}

impl Decode for MaybeZero {
    fn kind() -> String {
        Rate::kind()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        parse_maybe_zero(text_of(node)?.trim()).map_err(|problem| vec![problem])
    }
}

fn parse_maybe_zero(text: &str) -> Result<MaybeZero, Problem> {
    const EXAMPLE: &str = "for example \"250/min\", \"5/15min\", \"1_000_000/day\", \"1000/month\"";
    let shape = || Problem::new("must be `N/window`").hint(EXAMPLE);
    let (count, window) = text.split_once('/').ok_or_else(shape)?;
    if window.contains('/') {
        return Err(Problem::new("must be a single rate").hint("write a `[[limit]]` for each"));
    }
    let count = digits_or_overflow(count.trim()).ok_or_else(shape)?;
    let count = u64::try_from(count)
        .ok()
        .filter(|count| *count <= FIGURE_MAX);
    let count = count.ok_or_else(|| Problem::new(format!("must be at most {FIGURE_MAX}")))?;
    let window = parse_window(window.trim())?;
    Ok(match NonZeroU64::new(count) {
        Some(limit) => MaybeZero::Rate(Rate { limit, window }),
        None => MaybeZero::Zero(window),
    })
}

/// Reads digits; a number too long for any type counts as the largest.
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
    // Months and years differ in length, so a multiple of them is no span of time.
    let calendar = match unit {
        "month" => Some((
            Window::Month,
            "must count by one calendar month",
            "write \"N/month\"",
        )),
        "year" => Some((
            Window::Year,
            "must count by one calendar year",
            "write \"N/year\"",
        )),
        _ => None,
    };
    if let Some((window, problem, hint)) = calendar {
        return match count {
            "" | "1" => Ok(window),
            _ => Err(Problem::new(problem).hint(hint)),
        };
    }
    let Some((_, micros)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        let problem = Problem::new("must end in a unit: ms, s, min, h, day, week, month or year");
        return Err(match meant_unit(unit) {
            Some(name) => problem.hint(format!("did you mean `{name}`?")),
            None => problem.hint("for example \"10/5min\" or \"100/h\""),
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
