//! Amounts of money, such as `0.0745 EUR`, and budgets, such as `200 EUR/day`.

use palisade_core::limit::Window;
use palisade_core::send::policy::MONEY_PARTS;

use crate::document::decode::{Decode, Problem, Problems, text_of};
use crate::document::tree::Node;

use super::Rate;

/// An amount in ten-thousandths of its currency, rounded up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Money {
    pub(crate) amount: u32,
    /// Three capital letters.
    pub(crate) currency: Box<str>,
}

/// An amount in a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MoneyRate {
    pub(crate) money: Money,
    pub(crate) window: Window,
}

impl Decode for Money {
    fn kind() -> String {
        "amount, such as `0.0745 EUR`".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        parse(text_of(node)?).map_err(|problem| vec![problem])
    }
}

impl Decode for MoneyRate {
    fn kind() -> String {
        "budget, such as `200 EUR/day`".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        let shape = || {
            vec![Problem::new("must be `AMOUNT CURRENCY/window`").hint("for example `200 EUR/day`")]
        };
        let (money, window) = text_of(node)?.split_once('/').ok_or_else(shape)?;
        let money = parse(money).map_err(|problem| vec![problem])?;
        if money.amount == 0 {
            return Err(vec![Problem::new("must not be zero")]);
        }
        let window = Rate::parse(&format!("1/{}", window.trim()));
        let window = window
            .map_err(|problem| vec![Problem::new(problem)])?
            .window;
        Ok(Self { money, window })
    }
}

fn parse(text: &str) -> Result<Money, Problem> {
    let shape =
        || Problem::new("must be an amount and a currency").hint("for example `0.0745 EUR`");
    let (amount, currency) = text.trim().split_once(' ').ok_or_else(shape)?;
    let currency = currency.trim();
    if currency.len() != 3 || !currency.bytes().all(|byte| byte.is_ascii_uppercase()) {
        return Err(shape());
    }
    let (whole, fraction) = amount.split_once('.').unwrap_or((amount, "0"));
    let digits = |text: &str| {
        let plain = text.replace('_', "");
        let is_number = (1..=12).contains(&plain.len());
        plain.parse::<u64>().ok().filter(|_| is_number)
    };
    let (whole, _) = (
        digits(whole).ok_or_else(shape)?,
        digits(fraction).ok_or_else(shape)?,
    );
    let (kept, rest) = fraction.split_at(fraction.len().min(4));
    let kept = format!("{kept:0<4}");
    let rounds_up = rest.bytes().any(|byte| byte != b'0');
    let parts = digits(&kept).ok_or_else(shape)? + u64::from(rounds_up);
    let amount = whole
        .checked_mul(u64::from(MONEY_PARTS))
        .and_then(|whole| u32::try_from(whole + parts).ok());
    let most = u32::MAX / MONEY_PARTS;
    Ok(Money {
        amount: amount.ok_or_else(|| Problem::new(format!("must be at most {most}")))?,
        currency: currency.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::error::Origin;

    fn money(text: &str) -> Option<(u32, String)> {
        let node = Node::text(text, Origin::Nowhere);
        let read = Money::decode(&node).ok()?;
        Some((read.amount, read.currency.into()))
    }

    #[test]
    fn s_spend_prices_round_up_to_ten_thousandths() {
        for (text, amount) in [
            ("0.0745 EUR", 745),
            ("0.07451 EUR", 746),
            ("0.07450 EUR", 745),
            ("200 EUR", 2_000_000),
            ("1_000.5 EUR", 10_005_000),
            ("0 EUR", 0),
        ] {
            assert_eq!(money(text), Some((amount, "EUR".to_owned())), "{text}");
        }
        for text in [
            "200",
            "EUR 200",
            "200EUR",
            "200 eur",
            "-1 EUR",
            "1.2.3 EUR",
            "500000 EUR",
        ] {
            assert_eq!(money(text), None, "{text}");
        }
    }

    #[test]
    fn s_spend_a_budget_has_a_window() {
        let read = |text: &str| MoneyRate::decode(&Node::text(text, Origin::Nowhere));
        let budget = read("200 EUR/day").unwrap();
        assert_eq!(budget.money.amount, 2_000_000);
        assert_eq!(budget.window, Rate::parse("1/day").unwrap().window);
        for text in ["200 EUR", "0 EUR/day", "200 EUR/fortnight", "200/day"] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
