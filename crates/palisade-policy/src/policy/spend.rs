//! `[route.spend]`: routes whose costs the proxy reads from requests and answers (B-SPEND).

use std::collections::BTreeMap;
use std::sync::Arc;

use palisade_core::budget::is_unit_name;
use palisade_core::policy::{Host, LimitDef, Route};

use crate::document::decode::{Decode, Problem, Problems, integer, text_of, wrong};
use crate::document::error::{Origin, Sink};
use crate::document::schema::read_inner;
use crate::document::tree::{Node, Value, member_origin};
use crate::policy::outcomes::{HeaderName, UsernameSource};
use crate::policy::tables::RouteTable;
use crate::policy::values::OneOrMany;
use crate::{named, section};

/// The unit that prices are charged in.
pub const PRICE_UNIT: &str = "usd_micros";
/// Fractions of a price: a millionth of a microdollar.
const PRICE_PARTS: f64 = 1_000_000.0;
/// Highest price of a token, in microdollars.
const PRICE_MAX: f64 = 1_000_000.0;
/// Most models with a price.
const MODELS_MAX: usize = 1_024;
/// Most members that bound what a request generates.
const MEMBERS_MAX: usize = 16;
/// The model that stands for those without a price.
const OTHERS: &str = "default";

section! {
    /// Costs of a `[[route]]`'s requests in a unit of your own, as the proxy reads them: an estimate
    /// from the request is reserved, and settled by what the answer says was used.
    pub(crate) struct SpendTable(Inner "route.spend") {
        /// The unit.
        unit: UnitName = "tokens";
        /// The most that is generated: a number, or members of the request's JSON body, of which
        /// the largest that is set counts, times its member `n`. The body itself counts a quarter
        /// of its bytes.
        output: Output = "json:max_completion_tokens,json:max_tokens";
        /// The most that is generated where the request does not say.
        output_default: u32 = "4096";
        /// A larger estimate is refused with 400.
        estimate_max: u64 = "200000" where "1"..="140737488355328";
        /// Where the answer says what was used: `json:MEMBER` of it, or of the last event of a
        /// stream that has it, or `header:NAME`.
        used: UsedSource = "json:usage.total_tokens";
        /// `openai` gives refusals the shape that clients of that interface parse, and all answers
        /// `X-RateLimit-Limit-Tokens` and `-Remaining-Tokens`.
        errors: Option<ErrorShape>;
        /// Whether streams are asked to say what they used (`stream_options.include_usage`).
        include_usage: bool = "false";
        /// Prices of a token in microdollars, by the request's `model`:
        /// `{ small = { input = 0.15, output = 0.6, cached = 0.075 }, default = { input = 15, output = 60 } }`.
        /// They are charged as `usd_micros`; a model without a price costs the default.
        price: Option<Prices>;
    }
}

/// A route whose requests spend.
#[derive(Clone, Debug)]
pub struct SpendRoute {
    route: Route,
    /// Where its costs are read.
    pub spend: Arc<Spend>,
}

/// Where costs are read, and how they are answered.
#[derive(Clone, Debug)]
pub struct Spend {
    /// The unit.
    pub unit: Box<str>,
    /// The most that is generated.
    pub output: Output,
    /// The most that is generated where the request does not say.
    pub output_default: u32,
    /// Largest estimate.
    pub estimate_max: u64,
    /// Where an answer says what was used.
    pub used: UsedSource,
    /// The shape of refusals.
    pub errors: Option<ErrorShape>,
    /// Whether streams are asked to say what they used.
    pub include_usage: bool,
    /// Prices.
    pub price: Option<Prices>,
}

/// All routes that spend, the most specific first.
#[derive(Clone, Debug, Default)]
pub struct Spends(Vec<SpendRoute>);

impl Spends {
    /// Orders the routes; of two with the same pattern and method the later one counts.
    #[must_use]
    pub(crate) fn new(mut routes: Vec<SpendRoute>) -> Self {
        routes.reverse();
        routes.sort_by_key(|route| std::cmp::Reverse(route.route.specificity()));
        Self(routes)
    }

    /// The costs of a request, if its route says where they are. Letters of the path may be of
    /// either case: an application may not tell them apart.
    #[must_use]
    pub fn find(&self, method: &str, host: Option<&Host>, path: &str) -> Option<&Arc<Spend>> {
        let covers = |one: &&SpendRoute| one.route.covers_any_case(method, host, path);
        self.0.iter().find(covers).map(|one| &one.spend)
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> &[SpendRoute] {
        &self.0
    }
}

/// The most that a request generates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Always the same.
    Fixed(u32),
    /// The largest of these members of the body, each a path of names.
    Members(Vec<Vec<String>>),
}

impl Decode for Output {
    fn kind() -> String {
        "integer, `json:MEMBER` or a list of these".into()
    }

    fn show(text: &str) -> String {
        Vec::<String>::show(text)
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        if let Some(number) = integer(node) {
            let fixed = u32::try_from(number);
            return fixed.map(Self::Fixed).or_else(|_| {
                let most = u32::MAX;
                wrong(format!("must be 0 to {most}, or `json:MEMBER`"))
            });
        }
        let sources = OneOrMany::decode(node)?;
        if sources.all().len() > MEMBERS_MAX {
            return wrong(format!("must name at most {MEMBERS_MAX} members"));
        }
        let members = sources.all().iter().map(|source| member(source));
        members.collect::<Result<_, _>>().map(Self::Members)
    }
}

fn member(source: &str) -> Result<Vec<String>, Problems> {
    let named = UsernameSource::decode(&Node::text(source, Origin::Nowhere));
    match named {
        Ok(UsernameSource::Json(path)) => Ok(path),
        _ => wrong("must name members of the body: \"json:max_tokens\""),
    }
}

/// Where an answer says what was used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UsedSource {
    /// A member of its JSON body, or of an event of its stream.
    Json(Vec<String>),
    /// A header, in lower case.
    Header(Box<str>),
}

impl Decode for UsedSource {
    fn kind() -> String {
        "`json:MEMBER`, `header:NAME`".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        match text_of(node)?.split_once(':') {
            Some(("header", name)) => {
                let name = Node::text(name, node.origin.clone());
                HeaderName::decode(&name).map(|name| Self::Header(name.0))
            }
            Some(("json", _)) => member(text_of(node)?).map(Self::Json),
            _ => wrong(format!("must be one of {}", Self::kind())),
        }
    }
}

/// The shape of refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorShape {
    /// `{"error": {"message": …, "type": …, "param": …, "code": …}}`.
    OpenAi,
}

named!(ErrorShape { "openai" => Self::OpenAi });

/// A name that a unit of the policy's own can have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnitName(Box<str>);

impl Decode for UnitName {
    fn kind() -> String {
        "string".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        let name = text_of(node)?;
        if !is_unit_name(name) || ["requests", "content-bytes"].contains(&name) {
            return Err(vec![
                Problem::new("must be a unit of your own")
                    .hint("for example `tokens`, as in the `unit` of a `[[limit]]`"),
            ]);
        }
        Ok(Self(name.into()))
    }
}

/// Price of a token of one model, in millionths of a microdollar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Price {
    /// Of the prompt.
    pub input: u64,
    /// Of what is generated.
    pub output: u64,
    /// Of what of the prompt was cached.
    pub cached: u64,
}

/// Prices by model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prices {
    models: BTreeMap<Box<str>, Price>,
    others: Price,
}

impl Prices {
    /// The price of a model; the default of one without a price.
    #[must_use]
    pub fn of(&self, model: Option<&str>) -> Price {
        let known = model.and_then(|model| self.models.get(model));
        known.copied().unwrap_or(self.others)
    }
}

impl Decode for Prices {
    fn kind() -> String {
        "table of prices".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        let Some(table) = node.as_table() else {
            return wrong("must be a table of models");
        };
        if table.len() > MODELS_MAX {
            return wrong(format!("names more than {MODELS_MAX} models"));
        }
        let mut models = BTreeMap::new();
        for (model, entry) in table {
            models.insert(model.as_str().into(), price(&entry.node)?);
        }
        match models.remove(OTHERS) {
            Some(others) => Ok(Self { models, others }),
            None => Err(vec![
                Problem::new("has no `default`")
                    .hint("add the price of models that you do not name"),
            ]),
        }
    }
}

fn price(node: &Node) -> Result<Price, Problems> {
    const SHAPE: &str = "must map models to { input = 2.5, output = 10.0, cached = 0.25 }";
    let known = ["input", "output", "cached"];
    let table = node.as_table();
    let table = table.filter(|table| table.keys().all(|key| known.contains(&key.as_str())));
    let Some(table) = table else {
        return wrong(SHAPE);
    };
    let part = |key: &str| table.get(key).map(|entry| parts(&entry.node)).transpose();
    let (Some(input), Some(output)) = (part("input")?, part("output")?) else {
        return wrong(SHAPE);
    };
    let cached = part("cached")?.unwrap_or(input);
    Ok(Price {
        input,
        output,
        cached,
    })
}

/// A price in millionths, rounded to the nearest.
fn parts(node: &Node) -> Result<u64, Problems> {
    let price = match &node.value {
        Value::Float(price) => Some(*price),
        #[expect(clippy::cast_precision_loss, reason = "a price is bounded below")]
        Value::Integer(price) => Some(*price as f64),
        _ => None,
    };
    match price {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "within its bounds it is a whole number of parts"
        )]
        Some(price) if (0.0..=PRICE_MAX).contains(&price) => {
            Ok((price * PRICE_PARTS).round() as u64)
        }
        _ => wrong("must be a price from 0 to 1000000 microdollars"),
    }
}

/// Reads the costs of a route; keys that do not fit together are reported to the sink.
pub(crate) fn read(
    table: &RouteTable,
    route: &Route,
    item: &Node,
    sink: &mut Sink,
) -> Option<SpendRoute> {
    let spend = read_inner::<SpendTable>(item, "spend", sink)?;
    let origin = member_origin(item, "spend");
    let excluded = [
        ("outcome", table.outcome.is_some()),
        ("exempt", table.exempt),
    ];
    for (key, _) in excluded.into_iter().filter(|(_, is_set)| *is_set) {
        let message = format!("`route.spend` does not go with `route.{key}`");
        sink.report_with(&origin, message, "have a route for each");
    }
    if spend.price.is_some() && matches!(spend.used, UsedSource::Header(_)) {
        let hint = "a header says one number: name a member of the answer";
        let message = "`route.spend.price` needs `used = \"json:…\"`";
        sink.report_with(&origin, message, hint);
    }
    Some(SpendRoute {
        route: route.clone(),
        spend: Arc::new(Spend {
            unit: spend.unit.0,
            output: spend.output,
            output_default: spend.output_default,
            estimate_max: spend.estimate_max,
            used: spend.used,
            errors: spend.errors,
            include_usage: spend.include_usage,
            price: spend.price,
        }),
    })
}

/// Reports costs in a unit that no limit counts (B-UNIT).
pub(crate) fn report_uncounted(
    spends: &[(SpendRoute, Origin)],
    limits: &[LimitDef],
    sink: &mut Sink,
) {
    for (one, origin) in spends {
        let spend = &one.spend;
        let priced = spend.price.as_ref().map(|_| ("price", PRICE_UNIT));
        for (key, unit) in [("unit", &*spend.unit)].into_iter().chain(priced) {
            let counts = |limit: &LimitDef| limit.descriptor.is_none() && limit.unit.name() == unit;
            if !limits.iter().any(counts) {
                let message = format!("`route.spend.{key}` is spent and no limit counts it");
                let hint = format!("add a `[[limit]]` with `unit = \"{unit}\"`");
                sink.report_with(origin, message, hint);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b_spend_prices_are_exact_and_others_cost_the_default() {
        let table = |text: &str| {
            let mut sink = Sink::default();
            let root = crate::document::tree::parse(text, |_| Origin::Nowhere, &mut sink);
            Prices::decode(&root["price"].node)
        };
        let prices = table(
            "price = { a = { input = 2.5, output = 10, cached = 0.000001 }, default = { input = 15.0, output = 60.0 } }",
        )
        .unwrap();
        let known = prices.of(Some("a"));
        assert_eq!(
            (known.input, known.output, known.cached),
            (2_500_000, 10_000_000, 1)
        );
        for other in [None, Some("b"), Some("default")] {
            let price = prices.of(other);
            assert_eq!((price.input, price.cached), (15_000_000, 15_000_000));
        }
        for bad in [
            "price = 3",
            "price = { a = { input = 1, output = 1 } }",
            "price = { default = { input = 1 } }",
            "price = { default = { input = -1, output = 1 } }",
            "price = { default = { input = 1, output = 1, other = 1 } }",
            "price = { default = { input = \"1\", output = 1 } }",
        ] {
            assert!(table(bad).is_err(), "{bad}");
        }
    }
}
