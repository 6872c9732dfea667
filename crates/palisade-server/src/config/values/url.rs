//! Addresses of databases.

use palisade_policy::Url;
use palisade_policy::document::decode::{Decode, Problems, text_of};
use palisade_policy::document::tree::Node;

/// A Postgres address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresUrl(Url);

impl PostgresUrl {
    /// The address itself.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl Decode for PostgresUrl {
    const PRIVATE: bool = true;

    fn kind() -> String {
        "`postgres://…`".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        Url::parse(text_of(node)?, &["postgres", "postgresql"]).map(Self)
    }
}
