//! Settings of the send budgets.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use palisade_core::guard::policy::GuardMode;
use palisade_core::limit::{Algorithm, BucketSpec};
use palisade_core::send::policy::{RangePolicy, SpendPolicy};
use palisade_core::send::range::{RANGES_MAX, is_range};
use palisade_core::send::{RangeTable, SendPolicy};

use super::micros;
use crate::document::decode::{Decode, Problem, Problems, wrong};
use crate::document::error::{Origin, Sink};
use crate::document::schema::{Section, read_table};
use crate::document::tree::{Node, Table, lookup};
use crate::policy::values::{Money, MoneyRate};
use crate::section;

/// Price of destinations that no range has one for.
const OTHERS: &str = "default";

section! {
    /// Budgets of one-time codes that are sent. They are in force as soon as `otp/send` is called.
    pub(crate) struct SendTable(Table "guard.otp.send") {
        /// Whether sends are judged and counted.
        enabled: bool = "true";
        /// Overrides `guard.otp.mode` for sends.
        mode: Option<GuardMode>;
        /// Pause after a send to a destination. It doubles with each send that is not verified.
        /// 0 switches it off.
        pause: Duration = "30s" where "0s"..="1h";
        /// Longest such pause.
        pause_max: Duration = "10min" where "0s"..="1day";
        /// Sends to one destination in an hour; known devices have twice as many. 0 switches the
        /// figure off, as with those below.
        destination_hour: u32 = "5" where "0"..="32";
        /// Sends to one destination in a day; known devices have twice as many.
        destination_day: u32 = "10" where "0"..="32";
        /// Sends to one account's destinations in an hour.
        account_hour: u32 = "5" where "0"..="64";
        /// Sends from one network in an hour.
        ip_hour: u32 = "10" where "0"..="256";
        /// Distinct destinations of one network in a day.
        ip_destinations_day: u32 = "20" where "0"..="256";
        /// Ranges that are judged apart from their country, such as `+3460`, and mail domains that
        /// may be refused. Those of `range` and `price` are judged, too.
        ranges: Vec<RangeName> = "";
        /// Time of sends that are judged together, for a range.
        range_window: Duration = "1h" where "1min"..="2h";
        /// Time after a send within which a success verifies it. Younger sends are not judged.
        verify_within: Duration = "10min" where "1min"..="30min";
        /// Sends of one network that count for a range within `range_window`.
        range_per_prefix: u32 = "3" where "1"..="64";
        /// Sends from which a range is judged. 0 switches that off.
        range_soft_sends: u32 = "30" where "0"..="100";
        /// Percentage of verified sends below which new destinations of the range need a challenge.
        range_soft_percent: u32 = "20" where "5"..="100";
        /// Sends from which new destinations may be refused. A whole country never is.
        range_hard_sends: u32 = "100" where "30"..="1000000";
        /// Percentage of verified sends below which they are refused. 0 switches that off.
        range_hard_percent: u32 = "5" where "0"..="20";
        /// Time for which a range is held.
        range_hold: Duration = "1h" where "1min"..="2h";
        /// Time for which a verified destination is exempt from what its range is held for.
        exempt_for: Duration = "30day" where "1day"..="365day";
        /// Money for all sends, such as `200 EUR/day`.
        budget: Option<MoneyRate>;
        /// Money by range: `{ "+44" = "20 EUR/day" }`.
        range: Option<Ranges<MoneyRate>>;
        /// Price of a send by range: `{ default = "0.08 EUR", "+44" = "0.05 EUR" }`.
        price: Option<Ranges<Money>>;
        /// Time within which the gateway's report is expected. Later the price stands.
        settle_within: Duration = "10min" where "1min"..="1h";
    }
}

/// A range: first digits with `+`, or a mail domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RangeName(Arc<str>);

impl Decode for RangeName {
    fn kind() -> String {
        "range, such as `+3460` or `example.com`".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        range(node.as_str().unwrap_or_default()).map(Self)
    }
}

fn range(name: &str) -> Result<Arc<str>, Problems> {
    match is_range(name) {
        true => Ok(name.into()),
        false => Err(vec![
            Problem::new("names a range that no destination has")
                .hint("write `+`, a country calling code and more digits, or a mail domain"),
        ]),
    }
}

/// Values by range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ranges<T>(BTreeMap<Arc<str>, T>);

impl<T: Decode> Decode for Ranges<T> {
    fn kind() -> String {
        format!("table of ranges, each with: {}", T::kind())
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        let Some(table) = node.as_table() else {
            return wrong("must be a table of ranges");
        };
        if table.len() > RANGES_MAX {
            return wrong(format!("names more than {RANGES_MAX} ranges"));
        }
        let mut ranges = BTreeMap::new();
        for (name, entry) in table {
            let name = match name.as_str() {
                OTHERS => OTHERS.into(),
                name => range(name)?,
            };
            ranges.insert(name, T::decode(&entry.node)?);
        }
        Ok(Self(ranges))
    }
}

/// Reads the settings of sends.
pub(super) fn read(root: &Table, sink: &mut Sink) -> Option<SendPolicy> {
    let from = read_table::<SendTable>(root, sink)?;
    let reported = |key: &str, problem: &str, hint: &str, sink: &mut Sink| {
        let path = format!("guard.otp.send.{key}");
        let origin = lookup(root, &path).map_or(Origin::Nowhere, |entry| entry.key.clone());
        sink.report_with(&origin, format!("`{path}` {problem}"), hint.to_owned());
    };
    let spend = match spend(&from) {
        Ok(spend) => spend,
        Err((key, problem, hint)) => {
            reported(key, problem, hint, sink);
            return None;
        }
    };
    let policy = policy(&from, spend);
    if let Err(error) = policy.validate() {
        reported(
            error.field,
            error.problem,
            "raise the one or lower the other",
            sink,
        );
        return None;
    }
    Some(policy)
}

fn policy(from: &SendTable, spend: Option<SpendPolicy>) -> SendPolicy {
    let named = from.ranges.iter().map(|name| Arc::clone(&name.0));
    let budgets = from
        .range
        .iter()
        .flat_map(|ranges| ranges.0.keys().cloned());
    let prices = from
        .price
        .iter()
        .flat_map(|ranges| ranges.0.keys().cloned());
    let ranges = named.chain(budgets).chain(prices);
    SendPolicy {
        enabled: from.enabled,
        mode: from.mode,
        pause: micros(from.pause),
        pause_max: micros(from.pause_max),
        destination_hour: from.destination_hour,
        destination_day: from.destination_day,
        account_hour: from.account_hour,
        ip_hour: from.ip_hour,
        ip_destinations_day: from.ip_destinations_day,
        range: RangePolicy {
            window: micros(from.range_window),
            verify_within: micros(from.verify_within),
            per_prefix: from.range_per_prefix,
            soft_sends: from.range_soft_sends,
            soft_percent: from.range_soft_percent,
            hard_sends: from.range_hard_sends,
            hard_percent: from.range_hard_percent,
            hold: micros(from.range_hold),
            exempt_for: micros(from.exempt_for),
        },
        ranges: RangeTable::new(ranges.filter(|name| &**name != OTHERS)),
        spend: spend.map(Arc::new),
    }
}

/// A key, and what is wrong with it.
type SpendProblem = (&'static str, &'static str, &'static str);

/// The budgets, if there are any.
fn spend(from: &SendTable) -> Result<Option<SpendPolicy>, SpendProblem> {
    let none = BTreeMap::new();
    let ranges = from.range.as_ref().map_or(&none, |ranges| &ranges.0);
    if from.budget.is_none() && ranges.is_empty() {
        return match from.price {
            None => Ok(None),
            Some(_) => Err((
                "price",
                "has no effect without a budget",
                "add `budget = \"200 EUR/day\"`, or leave the prices out",
            )),
        };
    }
    if ranges.contains_key(OTHERS) {
        return Err(("range", "has a `default`", "write it as `budget`"));
    }
    let prices = from.price.as_ref().map(|prices| &prices.0).ok_or((
        "budget",
        "needs the price of a send",
        "add `price = { default = \"0.08 EUR\" }`",
    ))?;
    let others = prices.get(OTHERS).ok_or((
        "price",
        "has no `default`",
        "add the price of ranges that you do not name",
    ))?;
    let amounts = from.budget.iter().chain(ranges.values());
    let currencies = amounts.map(|budget| &budget.money.currency);
    let mut currencies = currencies.chain(prices.values().map(|price| &price.currency));
    if currencies.any(|currency| *currency != others.currency) {
        let hint = "write every budget and price in one currency";
        return Err(("price", "mixes currencies", hint));
    }
    dear(from.budget.as_ref(), ranges, prices)?;
    let spec = |budget: &MoneyRate| {
        let amount =
            std::num::NonZeroU32::new(budget.money.amount).unwrap_or(std::num::NonZeroU32::MIN);
        BucketSpec::new(Algorithm::FixedWindow, amount, budget.window, None).map_err(|_| {
            (
                "budget",
                "has a window that no budget can have",
                "write `…/day`",
            )
        })
    };
    let named = prices.iter().filter(|(name, _)| &***name != OTHERS);
    Ok(Some(SpendPolicy {
        unit: format!("send_{}_e4", others.currency.to_lowercase()).into(),
        budget: from.budget.as_ref().map(spec).transpose()?,
        ranges: ranges
            .iter()
            .map(|(name, budget)| Ok((Arc::clone(name), spec(budget)?)))
            .collect::<Result<_, SpendProblem>>()?,
        prices: named
            .map(|(name, price)| (Arc::clone(name), price.amount))
            .collect(),
        price: others.amount,
        settle_within: micros(from.settle_within),
    }))
}

/// Refuses a price with which no send would ever fit.
fn dear(
    budget: Option<&MoneyRate>,
    ranges: &BTreeMap<Arc<str>, MoneyRate>,
    prices: &BTreeMap<Arc<str>, Money>,
) -> Result<(), SpendProblem> {
    let hint = "check the decimal point: no send would ever be admitted";
    let beyond = |price: &Money, budget: &MoneyRate| price.amount > budget.money.amount;
    let is_dear = prices.iter().any(|(name, price)| {
        let own = ranges.get(name).or(budget);
        own.is_some_and(|own| beyond(price, own)) || budget.is_some_and(|all| beyond(price, all))
    });
    match is_dear {
        true => Err(("price", "is above a budget", hint)),
        false => Ok(()),
    }
}

pub(super) fn schema() -> crate::document::schema::Schema {
    SendTable::SCHEMA
}
