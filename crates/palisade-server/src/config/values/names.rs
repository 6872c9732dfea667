//! Values that are one of several names, and names with a fixed form.

use palisade::extract::jwt::Algorithm;
use palisade_policy::document::decode::{Decode, Problem, Problems, text_of};
use palisade_policy::document::tree::Node;
use palisade_policy::named;

/// The only algorithm with which tokens are verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JwtAlgorithm(pub Algorithm);

impl JwtAlgorithm {
    /// True if the key that verifies a token can also sign one.
    pub const fn is_symmetric(self) -> bool {
        matches!(
            self.0,
            Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512
        )
    }
}

named!(JwtAlgorithm {
    "HS256" => Self(Algorithm::HS256),
    "HS384" => Self(Algorithm::HS384),
    "HS512" => Self(Algorithm::HS512),
    "RS256" => Self(Algorithm::RS256),
    "RS384" => Self(Algorithm::RS384),
    "RS512" => Self(Algorithm::RS512),
    "PS256" => Self(Algorithm::PS256),
    "PS384" => Self(Algorithm::PS384),
    "PS512" => Self(Algorithm::PS512),
    "ES256" => Self(Algorithm::ES256),
    "ES384" => Self(Algorithm::ES384),
    "EdDSA" => Self(Algorithm::EdDSA),
});

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

named!(LogFormat {
    "text" => Self::Text,
    "json" => Self::Json,
});

/// Least severe kind of line that is logged. Each level includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// Only errors that need an operator now.
    Error,
    /// Also conditions that may soon need an operator.
    Warn,
    /// Also ordinary events.
    Info,
    /// Also the reasons behind them.
    Debug,
    /// Also every step.
    Trace,
}

named!(LogLevel {
    "error" => Self::Error,
    "warn" => Self::Warn,
    "info" => Self::Info,
    "debug" => Self::Debug,
    "trace" => Self::Trace,
});

/// A header's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderName(pub http::HeaderName);

impl Decode for HeaderName {
    fn kind() -> String {
        "header name".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        let name = http::HeaderName::from_bytes(text_of(node)?.as_bytes());
        name.map(Self)
            .map_err(|_| vec![Problem::new("must be a header name")])
    }
}
