//! Names with a syntax of their own.

use palisade_core::headers::HeaderFamily;
use palisade_core::path::EncodedSlash;

use crate::document::decode::{Decode, Problem, Problems, text_of};
use crate::document::tree::{Node, Value};
use crate::named;

named!(EncodedSlash {
    "refuse" => Self::Refused,
    "separator" => Self::Separator,
    "literal" => Self::Literal,
});

named!(HeaderFamily {
    "x-ratelimit" => Self::XRateLimit,
    "ietf" => Self::Ietf,
    "org" => Self::Org,
});

/// A lower-case fragment of a user agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentFragment(String);

impl AgentFragment {
    /// The fragment.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Decode for AgentFragment {
    fn kind() -> String {
        "string".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        let text = text_of(node)?.trim();
        if text.is_empty() || text.len() > 256 || text.contains(['*', '?']) {
            return Err(vec![
                Problem::new("must be 1 to 256 characters without `*` and `?`")
                    .hint("a fragment matches anywhere in the user agent"),
            ]);
        }
        Ok(Self(text.to_lowercase()))
    }
}

/// A string or a list of strings, never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OneOrMany(pub(crate) Vec<String>);

impl OneOrMany {
    /// All strings.
    #[must_use]
    pub fn all(&self) -> &[String] {
        &self.0
    }
}

impl Decode for OneOrMany {
    fn kind() -> String {
        "string or list of strings".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        let list = match node.value {
            Value::String(_) => vec![String::decode(node)?],
            _ => Vec::<String>::decode(node)?,
        };
        if list.is_empty() {
            return Err(vec![
                Problem::new("must not be empty: it would never match")
                    .hint("leave the key out to match everything"),
            ]);
        }
        Ok(Self(list))
    }
}
