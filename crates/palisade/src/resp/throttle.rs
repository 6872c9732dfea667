//! `CL.THROTTLE key max_burst count period [quantity]`: arguments in, five numbers out, as
//! redis-cell defines them.

use std::num::NonZeroU64;

use palisade_core::decision::Mode;
use palisade_core::limit::{Algorithm, BucketSpec, FIGURE_MAX, SpecError, Window};
use palisade_core::time::{Micros, SECOND};
use palisade_store::Take;

use super::command::CommandError;
use crate::engine::{Keyed, KeyedAnswer};

/// Longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 1024;

/// A charge of one key, or a look at it, as a client's command states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttle<'a> {
    /// Key of the bucket.
    pub key: &'a [u8],
    spec: BucketSpec,
    quantity: u64,
    take: Take,
}

impl<'a> Throttle<'a> {
    /// Reads the arguments after the command's name.
    ///
    /// # Errors
    /// A wrong number of arguments, or a field that is not valid.
    pub fn read(name: &'static str, args: &[&'a [u8]], take: Take) -> Result<Self, CommandError> {
        let (key, max_burst, count, period, quantity) = match *args {
            [key, max_burst, count, period] => (key, max_burst, count, period, None),
            [key, max_burst, count, period, quantity] => {
                (key, max_burst, count, period, Some(quantity))
            }
            _ => return Err(CommandError::Arguments(name)),
        };
        let key = checked_key(key)?;
        let quantity = quantity.map_or(Ok(1), |text| number(text, "quantity", 0))?;
        Ok(Self {
            key,
            spec: figures(max_burst, count, period)?,
            quantity,
            take: if quantity == 0 { Take::Peek } else { take },
        })
    }

    /// Returns the charge for the engine.
    #[must_use]
    pub fn asked(&self) -> Keyed<'a> {
        Keyed {
            key: self.key,
            spec: self.spec,
            // A charge has no cost of zero. A quantity of zero only peeks, so its cost does not
            // matter.
            cost: self.quantity.max(1),
            take: self.take,
        }
    }

    /// Returns the five numbers of the answer: limited (1 or 0), the burst, the remaining units,
    /// seconds until this quantity fits (−1: now, or never), seconds until the whole burst is free.
    /// Seconds are rounded up.
    #[must_use]
    pub fn answer(&self, answer: &KeyedAnswer) -> [i64; 5] {
        let reading = &answer.reading;
        let retry_at = match self.quantity {
            0 => self.overdrawn_until(answer),
            _ => reading.retry_at.filter(|_| !answer.admitted),
        };
        let is_limited = match self.quantity {
            0 => retry_at.is_some(),
            _ => !answer.admitted,
        };
        let retry_after = match retry_at {
            None | Some(Micros(u64::MAX)) => -1,
            Some(at) => seconds(at.since(answer.now)),
        };
        [
            i64::from(is_limited),
            i64::try_from(self.spec.capacity()).unwrap_or(i64::MAX),
            i64::try_from(reading.remaining).unwrap_or(i64::MAX),
            retry_after,
            seconds(reading.reset_at.since(answer.now)),
        ]
    }

    /// Returns the instant at which a quantity of zero fits; `None` if it fits now. It always does,
    /// unless more was used under a larger limit than this command's, or the mode refuses
    /// everybody.
    fn overdrawn_until(&self, answer: &KeyedAnswer) -> Option<Micros> {
        let reading = &answer.reading;
        if answer.mode == Mode::FailClosed {
            return reading.retry_at;
        }
        let is_overdrawn = reading.used > self.spec.capacity();
        is_overdrawn.then(|| reading.reset_at.minus(self.spec.memory_us()))
    }
}

/// Returns a key within the bounds that all commands share.
pub(super) fn checked_key(key: &[u8]) -> Result<&[u8], CommandError> {
    match key.len() {
        1..=KEY_BYTES_MAX => Ok(key),
        _ => Err(CommandError::Field("key", "must be 1 to 1024 bytes long")),
    }
}

/// Returns the specification of a bucket that admits `count` per `period` seconds, and at once one
/// more than `max_burst`.
fn figures(max_burst: &[u8], count: &[u8], period: &[u8]) -> Result<BucketSpec, CommandError> {
    let max_burst = number(max_burst, "max_burst", 0)?;
    let count = number(count, "count", 1)?;
    let period = number(period, "period", 1)?;
    let burst = NonZeroU64::MIN.saturating_add(max_burst);
    let window = Window::Span(period.saturating_mul(SECOND));
    let limit = NonZeroU64::new(count).unwrap_or(NonZeroU64::MIN);
    BucketSpec::new(Algorithm::TokenBucket, limit, window, Some(burst)).map_err(|error| match error
    {
        SpecError::FigureTooLarge => {
            CommandError::Field("max_burst", "must be below 140737488355328")
        }
        SpecError::RateTooHigh => CommandError::Field("count", "is too high for this period"),
        _ => CommandError::Field("period", "is too long for these figures"),
    })
}

fn number(text: &[u8], field: &'static str, least: u64) -> Result<u64, CommandError> {
    let refused = match least {
        0 => CommandError::Field(field, "must be an integer from 0 to 140737488355328"),
        _ => CommandError::Field(field, "must be an integer from 1 to 140737488355328"),
    };
    let digits = text.len() <= 15 && text.iter().all(u8::is_ascii_digit);
    let number = std::str::from_utf8(text).ok().filter(|_| digits);
    let number = number.and_then(|digits| digits.parse().ok());
    let is_figure = |number: &u64| (least..=FIGURE_MAX).contains(number);
    number.filter(is_figure).ok_or(refused)
}

fn seconds(us: u64) -> i64 {
    i64::try_from(us.div_ceil(SECOND)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
