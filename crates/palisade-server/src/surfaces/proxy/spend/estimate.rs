//! The estimate of a request: a quarter of its bytes, and the most that it generates.

use std::sync::Arc;

use bytes::Bytes;
use palisade_core::budget::{AMOUNT_MAX, Costs};
use palisade_policy::{Output, PRICE_UNIT, Price, Spend};
use serde_json::{Map, Value, json};

use super::members::{Members, Path, Scalar};
use crate::surfaces::exchange::problem::Problem;

/// Bytes of a body that are counted as one unit.
const BYTES_PER_UNIT: u64 = 4;
/// Millionths in a price.
const PRICE_PARTS: u128 = 1_000_000;

/// An upper estimate of a request's costs.
pub(super) struct Estimate {
    input: u64,
    output: u64,
    /// Price of its model, if it has one.
    price: Option<Price>,
}

/// Members of a request's body.
#[derive(Default)]
struct BodyTerms {
    /// The largest of the members that bound what is generated.
    output: Option<u64>,
    /// Answers to generate.
    count: Option<u64>,
    model: Option<String>,
    streams: bool,
    /// It is asked, or told not, to say what a stream used.
    usage: Option<bool>,
    has_stream_options: bool,
    /// A member that should be a number and is none.
    wrong: Option<usize>,
}

impl Estimate {
    /// The estimate of a body that is passed on unread.
    pub(super) fn of_length(spend: &Spend, bytes: u64) -> Self {
        let output = match spend.output {
            Output::Fixed(most) => most,
            Output::Members(_) => spend.output_default,
        };
        Self {
            input: bytes.div_ceil(BYTES_PER_UNIT),
            output: output.into(),
            price: spend.price.as_ref().map(|prices| prices.of(None)),
        }
    }

    /// The estimate of a body, and the body as it is passed on.
    pub(super) fn of_body(spend: &Spend, body: Bytes) -> Result<(Self, Bytes), Problem> {
        let outputs: &[Path] = match &spend.output {
            Output::Fixed(_) => &[],
            Output::Members(members) => members,
        };
        let terms = terms_of(outputs, &body);
        if let Some(at) = terms.wrong {
            let name = outputs
                .get(at)
                .map_or("n".to_owned(), |path| path.join("."));
            return Err(Problem::field(name, "must be a whole number"));
        }
        let of_length = Self::of_length(spend, body.len() as u64);
        let most = terms.output.unwrap_or(of_length.output);
        let estimate = Self {
            output: most.saturating_mul(terms.count.unwrap_or(1).max(1)),
            price: spend
                .price
                .as_ref()
                .map(|prices| prices.of(terms.model.as_deref())),
            ..of_length
        };
        let adds_usage = spend.include_usage && terms.streams && terms.usage.is_none();
        let body = match adds_usage {
            true => with_usage(body, terms.has_stream_options),
            false => body,
        };
        Ok((estimate, body))
    }

    /// Units in all.
    fn total(&self) -> u64 {
        self.input.saturating_add(self.output)
    }

    /// The costs to reserve: a request, and what it may cost in the route's units.
    pub(super) fn costs(&self, spend: &Spend) -> Result<Costs, Problem> {
        let total = self.total();
        if total > spend.estimate_max {
            let problem = "is estimated to cost more than one request may: send less, or lower \
                the most that is generated";
            return Err(Problem::field("body", problem));
        }
        let price = self
            .price
            .map(|price| (PRICE_UNIT, priced(price, self.input, 0, self.output)));
        let costs = [("requests", 1), (&*spend.unit, total)]
            .into_iter()
            .chain(price);
        Ok(Costs::new(costs)?)
    }

    pub(super) const fn price(&self) -> Option<Price> {
        self.price
    }
}

/// Microdollars of so many tokens, rounded up.
pub(super) fn priced(price: Price, input: u64, cached: u64, output: u64) -> u64 {
    let of = |count: u64, price: u64| u128::from(count) * u128::from(price);
    let cached = cached.min(input);
    let parts =
        of(input - cached, price.input) + of(cached, price.cached) + of(output, price.output);
    let whole = u64::try_from(parts.div_ceil(PRICE_PARTS)).unwrap_or(u64::MAX);
    whole.min(AMOUNT_MAX)
}

fn terms_of(outputs: &[Path], body: &[u8]) -> BodyTerms {
    let others = [
        "n",
        "model",
        "stream",
        "stream_options",
        "stream_options/include_usage",
    ];
    let others = others.map(|path| path.split('/').map(str::to_owned).collect::<Path>());
    let paths: Arc<[Path]> = outputs.iter().cloned().chain(others).collect();
    let mut terms = BodyTerms::default();
    let note = &mut |at: usize, value: Scalar| match (at.checked_sub(outputs.len()), value) {
        (None | Some(0), Scalar::Null) => {}
        // Of a member that is there twice an application may read either.
        (None, Scalar::Number(most)) => terms.output = terms.output.max(Some(most)),
        (Some(0), Scalar::Number(count)) => terms.count = terms.count.max(Some(count)),
        (None | Some(0), _) => terms.wrong = Some(at),
        (Some(1), Scalar::Text(model)) => terms.model = Some(model),
        (Some(2), Scalar::Bool(streams)) => terms.streams = streams,
        (Some(3), _) => terms.has_stream_options = true,
        (Some(4), Scalar::Bool(usage)) => terms.usage = Some(usage),
        _ => {}
    };
    Members::new(&paths).feed(body, note);
    terms
}

/// The body with `stream_options.include_usage`; unchanged if it is no JSON object.
fn with_usage(body: Bytes, has_options: bool) -> Bytes {
    if !has_options && let Some(start) = body.iter().position(|byte| *byte == b'{') {
        let (before, rest) = body.split_at(start + 1);
        let is_empty = rest.trim_ascii_start().first() == Some(&b'}');
        let comma: &[u8] = if is_empty { b"" } else { b"," };
        let added: &[u8] = br#""stream_options":{"include_usage":true}"#;
        return [before, added, comma, rest].concat().into();
    }
    let Ok(mut members) = serde_json::from_slice::<Map<String, Value>>(&body) else {
        return body;
    };
    let options = members.entry("stream_options").or_insert(Value::Null);
    match options {
        Value::Object(options) => {
            options.insert("include_usage".to_owned(), true.into());
        }
        _ => *options = json!({ "include_usage": true }),
    }
    serde_json::to_vec(&members).map_or(body, Bytes::from)
}

#[cfg(test)]
mod tests {
    use super::super::tests::spend;
    use super::*;

    fn of(policy: &str, body: &str) -> Result<(u64, Option<u64>), Problem> {
        let spend = spend(policy);
        let (estimate, _) = Estimate::of_body(&spend, Bytes::copy_from_slice(body.as_bytes()))?;
        let costs = estimate.costs(&spend)?;
        assert_eq!(costs.of("requests"), Some(1));
        Ok((costs.of("tokens").unwrap(), costs.of(PRICE_UNIT)))
    }

    #[test]
    fn b_spend_an_estimate_is_a_quarter_of_the_body_and_the_cap_on_the_output() {
        for (body, tokens) in [
            (r#"{"max_tokens":10}"#, 5 + 10),
            (r#"{"max_tokens":10,"max_completion_tokens":100}"#, 12 + 100),
            (r#"{"max_tokens":10,"n":3}"#, 6 + 30),
            (r#"{"max_tokens":10,"max_tokens":3}"#, 8 + 10),
            (r#"{"max_tokens":null,"n":null}"#, 7 + 4_096),
            (r#"{"x":{"max_tokens":10}}"#, 6 + 4_096),
            ("no JSON", 2 + 4_096),
            ("", 4_096),
        ] {
            assert_eq!(of("", body).ok(), Some((tokens, None)), "{body}");
        }
        assert_eq!(
            of("output = 7", r#"{"max_tokens":10}"#).ok(),
            Some((12, None))
        );
        let nested = "output = \"json:a.most\"\noutput_default = 1";
        assert_eq!(of(nested, r#"{"a":{"most":10}}"#).ok(), Some((15, None)));
    }

    #[test]
    fn b_spend_an_estimate_has_a_bound_and_wrong_figures_are_refused_by_name() {
        let most = "estimate_max = 20";
        assert_eq!(of(most, r#"{"max_tokens":15}"#).ok(), Some((20, None)));
        for (body, named) in [
            (r#"{"max_tokens":16}"#, "`body`"),
            (r#"{"max_tokens":18446744073709551615,"n":2}"#, "`body`"),
            (r#"{"max_tokens":"x4711"}"#, "`max_tokens`"),
            (r#"{"max_tokens":-4711}"#, "`max_tokens`"),
            (r#"{"max_tokens":1,"n":[4711]}"#, "`n`"),
        ] {
            let refused = of(most, body).unwrap_err();
            assert_eq!(refused.status(), 400);
            assert!(refused.detail().starts_with(named), "{}", refused.detail());
            assert!(!refused.detail().contains("4711"));
        }
    }

    const PRICED: &str = "price = { small = { input = 0.15, output = 0.6, cached = 0.075 }, default = { input = 15, output = 60 } }";

    #[test]
    fn b_spend_prices_follow_the_model_and_round_up() {
        let body = |model: &str| format!(r#"{{"max_tokens":10,"model":"{model}"}}"#);
        // 34 bytes: 9 tokens at 0.15 and 10 at 0.6.
        assert_eq!(of(PRICED, &body("small")).ok(), Some((19, Some(8))));
        assert_eq!(
            of(PRICED, &body("large")).ok(),
            Some((19, Some(9 * 15 + 10 * 60)))
        );
        let price = spend(PRICED).price.as_ref().unwrap().of(Some("small"));
        assert_eq!(priced(price, 1_000, 400, 0), 90 + 30);
        assert_eq!(priced(price, 1, 5, 0), 1, "no more is cached than was sent");
        assert_eq!(priced(price, u64::MAX, 0, u64::MAX), AMOUNT_MAX);
    }

    #[test]
    fn b_spend_streams_are_asked_for_usage_where_the_route_says_so() {
        let sent = |policy: &str, body: &str| {
            let bytes = Bytes::copy_from_slice(body.as_bytes());
            let (_, bytes) = Estimate::of_body(&spend(policy), bytes).unwrap();
            String::from_utf8(bytes.to_vec()).unwrap()
        };
        let asks = "include_usage = true";
        for (body, expected) in [
            (
                r#" {"stream":true}"#,
                r#" {"stream_options":{"include_usage":true},"stream":true}"#,
            ),
            (
                r#"{"stream":true,"stream_options":null}"#,
                r#"{"stream":true,"stream_options":{"include_usage":true}}"#,
            ),
            (
                r#"{"stream":true,"stream_options":{"x":1}}"#,
                r#"{"stream":true,"stream_options":{"include_usage":true,"x":1}}"#,
            ),
        ] {
            let changed = sent(asks, body);
            let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
            assert_eq!(value(&changed), value(expected), "{changed}");
            assert_eq!(sent("", body), body, "nobody asked for it");
        }
        for same in [
            r#"{"stream":false}"#,
            "{}",
            r#"{"stream":true,"stream_options":{"include_usage":false}}"#,
            r#"{"stream":true,"stream_options":{"include_usage":true}}"#,
        ] {
            assert_eq!(sent(asks, same), same);
        }
    }
}
