//! Shares of a limit, such as `[0.8, 1.0]`.

use crate::document::decode::{Decode, Problem, Problems};
use crate::document::tree::{Node, Value};

/// Most thresholds of a limit.
const SHARES_MAX: usize = 8;

/// Shares of a limit in thousandths, ascending and each once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shares(pub(crate) Vec<u16>);

impl Decode for Shares {
    fn kind() -> String {
        "list of shares from 0.001 to 1".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        let problem = || {
            vec![
                Problem::new("must be 1 to 8 different shares from 0.001 to 1, the lowest first")
                    .hint("write for example `[0.8, 1.0]`"),
            ]
        };
        let Value::Array(items) = &node.value else {
            return Err(problem());
        };
        let shares: Option<Vec<u16>> = items.iter().map(|item| share(&item.value)).collect();
        let shares = shares.filter(|shares| (1..=SHARES_MAX).contains(&shares.len()));
        shares
            .filter(|shares| shares.is_sorted_by(|a, b| a < b))
            .map(Self)
            .ok_or_else(problem)
    }
}

/// One share of a limit, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share(pub(crate) u16);

impl Decode for Share {
    fn kind() -> String {
        "share from 0.001 to 1".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        share(&node.value).map(Self).ok_or_else(|| {
            vec![Problem::new("must be a share from 0.001 to 1").hint("write for example `0.25`")]
        })
    }
}

/// A share in thousandths.
fn share(value: &Value) -> Option<u16> {
    let share = match value {
        Value::Float(share) => *share,
        Value::Integer(1) => 1.0,
        _ => return None,
    };
    let permille = share * 1000.0;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is between 1 and 1000"
    )]
    (1.0..=1000.0)
        .contains(&permille)
        .then(|| permille.round() as u16)
}
