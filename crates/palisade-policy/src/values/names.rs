//! Choices by name, and names that have a form.

use crate::decode::{Decode, Problem, Problems, named, text_of};
use crate::tree::{Node, Value};

/// A family of response headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HeaderFamily {
    /// `X-RateLimit-Limit`, `-Remaining`, `-Reset`.
    XRateLimit,
    /// `RateLimit-Policy` and `RateLimit`, the IETF draft.
    Ietf,
    /// `RateLimit-Limit`, `-Remaining`, `-Reset`.
    Org,
}

named!(HeaderFamily {
    "x-ratelimit" => Self::XRateLimit,
    "ietf" => Self::Ietf,
    "org" => Self::Org,
});

/// Which header tells the client's address behind a trusted proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardedHeader {
    /// `X-Forwarded-For`, or `Forwarded` if there is none.
    XForwardedFor,
    /// `Forwarded` (RFC 7239), or `X-Forwarded-For` if there is none.
    Forwarded,
    /// Only `X-Forwarded-For`.
    XForwardedForOnly,
    /// Only `Forwarded`.
    ForwardedOnly,
}

named!(ForwardedHeader {
    "x-forwarded-for" => Self::XForwardedFor,
    "forwarded" => Self::Forwarded,
    "x-forwarded-for-only" => Self::XForwardedForOnly,
    "forwarded-only" => Self::ForwardedOnly,
});

/// Which headers describe the original request in forward-auth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OriginalRequest {
    /// Either family; if both are sent they must agree.
    Either,
    /// `X-Forwarded-Method` and `X-Forwarded-Uri`.
    XForwarded,
    /// `X-Original-Method` and `X-Original-URI`.
    XOriginal,
}

named!(OriginalRequest {
    "either" => Self::Either,
    "x-forwarded" => Self::XForwarded,
    "x-original" => Self::XOriginal,
});

/// What an escaped slash in a path is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlashMeaning {
    /// Between two segments.
    Separator,
    /// Part of one.
    Literal,
}

named!(SlashMeaning {
    "separator" => Self::Separator,
    "literal" => Self::Literal,
});

/// Whether a token must say when it expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenExpiry {
    /// One without is refused.
    Required,
    /// One without never expires.
    Optional,
}

named!(TokenExpiry {
    "required" => Self::Required,
    "optional" => Self::Optional,
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

/// The one algorithm that tokens are verified with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JwtAlgorithm {
    /// HMAC, SHA-256.
    Hs256,
    /// HMAC, SHA-384.
    Hs384,
    /// HMAC, SHA-512.
    Hs512,
    /// RSA PKCS #1, SHA-256.
    Rs256,
    /// RSA PKCS #1, SHA-384.
    Rs384,
    /// RSA PKCS #1, SHA-512.
    Rs512,
    /// RSA PSS, SHA-256.
    Ps256,
    /// RSA PSS, SHA-384.
    Ps384,
    /// RSA PSS, SHA-512.
    Ps512,
    /// ECDSA on P-256.
    Es256,
    /// ECDSA on P-384.
    Es384,
    /// Ed25519.
    EdDsa,
}

impl JwtAlgorithm {
    /// True if the key that verifies also signs.
    #[must_use]
    pub const fn is_symmetric(self) -> bool {
        matches!(self, Self::Hs256 | Self::Hs384 | Self::Hs512)
    }
}

named!(JwtAlgorithm {
    "HS256" => Self::Hs256,
    "HS384" => Self::Hs384,
    "HS512" => Self::Hs512,
    "RS256" => Self::Rs256,
    "RS384" => Self::Rs384,
    "RS512" => Self::Rs512,
    "PS256" => Self::Ps256,
    "PS384" => Self::Ps384,
    "PS512" => Self::Ps512,
    "ES256" => Self::Es256,
    "ES384" => Self::Es384,
    "EdDSA" => Self::EdDsa,
});

/// How log lines look.
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

/// How much is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// Only what needs an operator.
    Error,
    /// And what may soon.
    Warn,
    /// And what happens.
    Info,
    /// And why.
    Debug,
    /// And how.
    Trace,
}

impl LogLevel {
    /// Lower-case name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

named!(LogLevel {
    "error" => Self::Error,
    "warn" => Self::Warn,
    "info" => Self::Info,
    "debug" => Self::Debug,
    "trace" => Self::Trace,
});

/// A header's name, lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderName(String);

impl HeaderName {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Decode for HeaderName {
    fn kind() -> String {
        "header name".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        let text = text_of(node)?;
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if text.bytes().all(token) {
            Ok(Self(text.to_ascii_lowercase()))
        } else {
            Err(vec![Problem::new("must be a header name")])
        }
    }
}

/// A string or a list of strings, never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OneOrMany(pub(crate) Vec<String>);

impl OneOrMany {
    /// All of them.
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
