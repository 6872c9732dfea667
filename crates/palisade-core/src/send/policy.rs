//! Figures of the send budgets. The defaults come from the specification (spec/answers.md).

use std::sync::Arc;

use super::{Destination, RangeTable};
use crate::decision::Level;
use crate::facts::FieldError;
use crate::guard::policy::GuardMode;
use crate::limit::BucketSpec;
use crate::policy::{Family, LimitDef, OnStoreFailure, QuotaUnit};
use crate::time::{DAY, HOUR, MINUTE, SECOND};

/// Most sends that a figure of a destination may allow. Known devices have twice as many.
pub const DESTINATION_MAX: usize = 32;
/// Most sends that the figure of an account may allow.
pub const ACCOUNT_MAX: usize = 64;
/// Most sends and destinations that the figures of a network may allow.
pub const NETWORK_MAX: usize = 256;
/// Longest `window` and longest `hold` of a range.
pub const RANGE_SPAN_MAX: u64 = 2 * HOUR;
/// Longest time in which a send may be verified.
pub const VERIFY_WITHIN_MAX: u64 = 30 * MINUTE;

/// Settings of the send budgets.
#[derive(Clone, Debug, PartialEq)]
pub struct SendPolicy {
    /// If off, every send is allowed and nothing is kept.
    pub enabled: bool,
    /// Whether the answers bind; the mode of the OTP flow if `None`.
    pub mode: Option<GuardMode>,
    /// Time after a send before the next one to its destination (S-PAUSE); 0 switches that off.
    pub pause: u64,
    /// Longest such time: it doubles with each send that is not verified.
    pub pause_max: u64,
    /// Sends per destination in an hour (S-DEST); 0 switches that off.
    pub destination_hour: u32,
    /// Sends per destination in a day (S-DEST); 0 switches that off.
    pub destination_day: u32,
    /// Sends per account in an hour (S-ACCOUNT); 0 switches that off.
    pub account_hour: u32,
    /// Sends per address prefix in an hour (S-IP); 0 switches that off.
    pub ip_hour: u32,
    /// Distinct destinations per address prefix in a day (S-IP); 0 switches that off.
    pub ip_destinations_day: u32,
    /// Pumping (S-RANGE).
    pub range: RangePolicy,
    /// Ranges narrower than a country that are judged on their own, and mail domains that may be
    /// refused.
    pub ranges: RangeTable,
    /// Money that may be spent (S-SPEND).
    pub spend: Option<Arc<SpendPolicy>>,
}

impl Default for SendPolicy {
    fn default() -> Self {
        Self {
            enabled: true,
            mode: None,
            pause: 30 * SECOND,
            pause_max: 10 * MINUTE,
            destination_hour: 5,
            destination_day: 10,
            account_hour: 5,
            ip_hour: 10,
            ip_destinations_day: 20,
            range: RangePolicy::default(),
            ranges: RangeTable::default(),
            spend: None,
        }
    }
}

impl SendPolicy {
    /// Refuses figures that do not fit in the records or that could never take effect.
    ///
    /// # Errors
    /// The figure that is out of bounds, and its bounds.
    pub fn validate(&self) -> Result<(), FieldError> {
        let range = &self.range;
        let within = |figure: u32, most: usize| figure as usize <= most;
        let pauses = self.pause <= DAY && self.pause_max <= DAY;
        let fits = within(self.destination_hour, DESTINATION_MAX)
            && within(self.destination_day, DESTINATION_MAX)
            && within(self.account_hour, ACCOUNT_MAX)
            && within(self.ip_hour, NETWORK_MAX)
            && within(self.ip_destinations_day, NETWORK_MAX);
        let judges = (MINUTE..=RANGE_SPAN_MAX).contains(&range.window)
            && (MINUTE..=RANGE_SPAN_MAX).contains(&range.hold)
            && (MINUTE..=VERIFY_WITHIN_MAX).contains(&range.verify_within);
        let rises =
            range.soft_sends <= range.hard_sends && range.hard_percent <= range.soft_percent;
        let checks = [
            (pauses, "pause", "and `pause_max` must be at most 1 day"),
            (
                fits,
                "destination_hour",
                "and the other figures must fit in a record",
            ),
            (
                judges,
                "range_window",
                "and `range_hold` must be 1 minute to 2 hours",
            ),
            (
                rises,
                "range_hard_sends",
                "must be at least `range_soft_sends`, and its percentage at most the other",
            ),
        ];
        match checks.into_iter().find(|(holds, ..)| !holds) {
            Some((_, field, problem)) => Err(FieldError::new(field, problem)),
            None => Ok(()),
        }
    }
}

/// When a range counts as pumped (S-RANGE).
#[derive(Clone, Debug, PartialEq)]
pub struct RangePolicy {
    /// Time of sends that are judged together.
    pub window: u64,
    /// Time after a send in which a success of its destination verifies it; younger sends are not
    /// judged.
    pub verify_within: u64,
    /// Sends of one address prefix that count for a range within the window.
    pub per_prefix: u32,
    /// Sends from which a range is judged; 0 switches the rule off.
    pub soft_sends: u32,
    /// Percentage of verified sends below which new destinations need a challenge.
    pub soft_percent: u32,
    /// Sends from which a range may be refused.
    pub hard_sends: u32,
    /// Percentage of verified sends below which new destinations are refused; 0 switches that off.
    pub hard_percent: u32,
    /// Time for which either lasts.
    pub hold: u64,
    /// Time for which a verified destination is exempt.
    pub exempt_for: u64,
}

impl Default for RangePolicy {
    fn default() -> Self {
        Self {
            window: HOUR,
            verify_within: 10 * MINUTE,
            per_prefix: 3,
            soft_sends: 30,
            soft_percent: 20,
            hard_sends: 100,
            hard_percent: 5,
            hold: HOUR,
            exempt_for: 30 * DAY,
        }
    }
}

/// Parts of a currency's unit in which money is counted: prices of messages have four decimals.
pub const MONEY_PARTS: u32 = 10_000;

/// Budgets of money (S-SPEND). They are limits of the policy, in a unit of their own.
#[derive(Clone, Debug, PartialEq)]
pub struct SpendPolicy {
    /// Unit that the limits count, such as `send_eur_e4`: ten-thousandths of a euro.
    pub unit: Arc<str>,
    /// Budget of all sends.
    pub budget: Option<BucketSpec>,
    /// Budgets of ranges.
    pub ranges: Vec<(Arc<str>, BucketSpec)>,
    /// Prices of ranges, in the unit; the longest range that fits counts.
    pub prices: Vec<(Arc<str>, u32)>,
    /// Price of a send that no range has one for.
    pub price: u32,
    /// Time within which the gateway's report is expected; later the estimate stands.
    pub settle_within: u64,
}

/// Class of sends, for limits; ranges with a budget have classes of their own.
const CLASS: &str = "otp-send";

impl SpendPolicy {
    /// The price of a send to `destination`.
    #[must_use]
    pub fn price_of(&self, destination: &Destination) -> u32 {
        let names = self.prices.iter().map(|(name, _)| Arc::clone(name));
        let table = RangeTable::new(names);
        let longest = table.longest(destination);
        let price = self.prices.iter().find(|(name, _)| Some(name) == longest);
        price.map_or(self.price, |(_, price)| *price)
    }

    /// The class of a send to `destination`: that of the longest range with a budget.
    #[must_use]
    pub fn class_of(&self, destination: &Destination) -> String {
        let names = self.ranges.iter().map(|(name, _)| Arc::clone(name));
        RangeTable::new(names)
            .longest(destination)
            .map_or_else(|| CLASS.to_owned(), |name| class(name))
    }

    /// The limits. A range's applies to sends of every narrower range, too.
    #[must_use]
    pub fn limits(&self) -> Vec<LimitDef> {
        let names = || self.ranges.iter().map(|(name, _)| &**name);
        let all = || names().map(class).chain([CLASS.to_owned()]);
        let whole = self.budget.iter();
        let whole = whole.map(|spec| self.limit("otp-send-budget", *spec, all()));
        let ranges = self.ranges.iter().map(|(name, spec)| {
            let within = names().filter(|other| is_within(other, name));
            self.limit(&format!("otp-send-budget-{name}"), *spec, within.map(class))
        });
        whole.chain(ranges).collect()
    }

    fn limit(
        &self,
        name: &str,
        spec: BucketSpec,
        classes: impl Iterator<Item = String>,
    ) -> LimitDef {
        let mut limit = LimitDef::new(name, Vec::new(), spec);
        limit.classes = classes.collect();
        limit.unit = QuotaUnit::Named(Arc::clone(&self.unit));
        // Money is not spent on trust.
        limit.on_store_failure = OnStoreFailure::Closed;
        limit.warn_at = vec![800, 1000];
        limit.family = Family::Quota;
        limit
    }
}

/// A class name is a label of metrics, and has no `+` there.
fn class(range: &str) -> String {
    format!("{CLASS}:{}", range.trim_start_matches('+'))
}

/// Whether every destination of `narrow` is one of `wide`.
fn is_within(narrow: &str, wide: &str) -> bool {
    narrow == wide || (wide.starts_with('+') && narrow.starts_with(wide))
}

/// Level of a SOFT answer.
pub const SOFT_LEVEL: Level = Level::L1;
/// Level of a HARD answer.
pub const HARD_LEVEL: Level = Level::L2;
