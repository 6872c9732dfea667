//! Claims of a verified token about the user it was issued to.

use palisade_core::facts::SCOPES_MAX;
use palisade_core::time::SECOND;
use palisade_core::{Id, Micros};
use serde_json::{Map, Value};

/// The claims that become facts.
///
/// `Debug` shows no identifier: [`Id`] hides them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// `sub`.
    pub user: Option<Id>,
    /// The organisation's claim, by default `org_id`.
    pub org: Option<Id>,
    /// `jti`, or a digest of what was signed.
    pub token: Id,
    /// `scope` or `scp`; a token without either has none.
    pub scopes: Vec<Id>,
    /// `roles` or `role`, for administration.
    pub roles: Vec<Id>,
}

/// A claim of a type or size that cannot be used.
#[derive(Debug)]
pub(super) struct Unusable;

/// A token's payload.
pub(super) struct Payload(Map<String, Value>);

impl Payload {
    pub(super) fn parse(json: &[u8]) -> Option<Self> {
        serde_json::from_slice(json).ok().map(Self)
    }

    /// An identifier: text, or a whole number in decimal.
    pub(super) fn id(&self, claim: &str) -> Result<Option<Id>, Unusable> {
        let text = match self.present(claim) {
            None => return Ok(None),
            Some(Value::String(text)) => text.clone(),
            Some(Value::Number(number)) if !number.is_f64() => number.to_string(),
            Some(_) => return Err(Unusable),
        };
        Id::new("claim", &text).map(Some).map_err(|_| Unusable)
    }

    /// The first claim of `names` that is present, as a list.
    pub(super) fn list(&self, names: [&str; 2]) -> Result<Vec<Id>, Unusable> {
        let texts: Vec<&str> = match names.iter().find_map(|name| self.present(name)) {
            None => Vec::new(),
            Some(Value::String(text)) => text.split_ascii_whitespace().collect(),
            Some(Value::Array(items)) => items
                .iter()
                .map(|item| item.as_str().ok_or(Unusable))
                .collect::<Result<_, _>>()?,
            Some(_) => return Err(Unusable),
        };
        if texts.len() > SCOPES_MAX {
            return Err(Unusable);
        }
        let id = |text: &str| Id::new("claim", text).map_err(|_| Unusable);
        texts.into_iter().map(id).collect()
    }

    /// A point in time: seconds, possibly with a fraction.
    pub(super) fn time(&self, claim: &str) -> Result<Option<Micros>, Unusable> {
        match self.present(claim) {
            None => Ok(None),
            Some(value) => numeric_date(value).map(Some).ok_or(Unusable),
        }
    }

    /// True if the claim is `text`, or a list with `text` in it.
    pub(super) fn names(&self, claim: &str, text: &str) -> bool {
        match self.present(claim) {
            Some(Value::String(value)) => value == text,
            Some(Value::Array(items)) => items.iter().any(|item| item.as_str() == Some(text)),
            _ => false,
        }
    }

    /// True if the claim is exactly the string `text`.
    pub(super) fn is(&self, claim: &str, text: &str) -> bool {
        self.present(claim).and_then(Value::as_str) == Some(text)
    }

    fn present(&self, claim: &str) -> Option<&Value> {
        self.0.get(claim).filter(|value| !value.is_null())
    }
}

fn numeric_date(value: &Value) -> Option<Micros> {
    if let Some(seconds) = value.as_u64() {
        return Some(Micros(seconds.saturating_mul(SECOND)));
    }
    let seconds = value.as_f64().filter(|seconds| seconds.is_finite())?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the cast saturates: before the epoch is the epoch, beyond the end is the end"
    )]
    let micros = (seconds * 1e6) as u64;
    Some(Micros(micros))
}
