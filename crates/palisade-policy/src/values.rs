//! Types that only configurations have.

use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;

use palisade_core::limit::Window;
use zeroize::Zeroizing;

use crate::decode::{Decode, Problem, Problems, UNITS, digits, named, text_of};
use crate::env::Env;
use crate::error::{ConfigError, nearest};
use crate::tree::{Node, Value};

/// Largest secret file, in bytes.
const SECRET_BYTES_MAX: u64 = 64 * 1024;

/// `N/window`, as in `250/min`, `5/15min`, `1_000_000/day`, `1000/month`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// How many.
    pub limit: NonZeroU32,
    /// In how long.
    pub window: Window,
}

impl Rate {
    /// Parses a rate.
    ///
    /// # Errors
    /// What is wrong, as the end of a sentence, without the text itself.
    pub fn parse(text: &str) -> Result<Self, String> {
        parse_rate(text).map_err(|problem| problem.message)
    }
}

fn parse_rate(text: &str) -> Result<Rate, Problem> {
    const EXAMPLE: &str = "for example \"250/min\", \"5/15min\", \"1_000_000/day\", \"1000/month\"";
    let shape = || Problem::new("must be `N/window`").hint(EXAMPLE);
    let (count, window) = text.split_once('/').ok_or_else(shape)?;
    let count = digits_or_overflow(count.trim()).ok_or_else(shape)?;
    let limit = match u32::try_from(count) {
        Ok(count) => NonZeroU32::new(count)
            .ok_or_else(|| Problem::new("must not be zero").hint("a rate is at least 1"))?,
        Err(_) => return Err(Problem::new(format!("must be at most {}", u32::MAX))),
    };
    Ok(Rate {
        limit,
        window: parse_window(window.trim())?,
    })
}

/// A number too long for any type counts as the largest.
fn digits_or_overflow(text: &str) -> Option<u128> {
    let plain = !text.is_empty()
        && text
            .split('_')
            .all(|group| !group.is_empty() && group.bytes().all(|b| b.is_ascii_digit()));
    plain.then(|| text.replace('_', "").parse().unwrap_or(u128::MAX))
}

fn parse_window(text: &str) -> Result<Window, Problem> {
    let split = text
        .find(|c: char| !c.is_ascii_digit() && c != '_')
        .unwrap_or(text.len());
    let (count, unit) = text.split_at(split);
    if unit == "month" {
        return match count {
            "" | "1" => Ok(Window::Month),
            _ => Err(Problem::new("must count by one calendar month").hint("write \"N/month\"")),
        };
    }
    let Some((_, micros)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        let known = UNITS.iter().map(|(name, _)| *name).chain(["month"]);
        let problem = Problem::new("must end in a unit: ms, s, min, h, day or month");
        return Err(match nearest(unit, known) {
            Some(name) => problem.hint(format!("did you mean `{name}`?")),
            None => problem,
        });
    };
    let overflow = || Problem::new("must not have a window longer than 10 years");
    let count = match count {
        "" => 1,
        count => u64::try_from(digits(count).ok_or_else(overflow)?).map_err(|_| overflow())?,
    };
    if count == 0 {
        return Err(Problem::new("must not have a window of zero"));
    }
    count
        .checked_mul(*micros)
        .map(Window::Span)
        .ok_or_else(overflow)
}

impl Decode for Rate {
    fn kind() -> String {
        "rate".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        parse_rate(text_of(node)?.trim()).map_err(|problem| vec![problem])
    }
}

/// Where a secret is kept. The configuration never holds the secret itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretRef {
    /// In this environment variable.
    Env(String),
    /// In this file; a final line break is not part of it.
    File(PathBuf),
}

/// A secret, wiped when dropped and never shown.
#[derive(Clone)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Its bytes.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl SecretRef {
    /// Fetches the secret.
    ///
    /// # Errors
    /// The variable is not set, the file cannot be read, or there is nothing in it.
    pub fn read(&self, env: &Env) -> Result<Secret, ConfigError> {
        let bytes = Zeroizing::new(match self {
            Self::Env(name) => env
                .get(name)
                .map(|text| text.as_bytes().to_vec())
                .ok_or_else(|| {
                    ConfigError::nowhere(
                        format!("the variable `{name}` that holds a secret is not set"),
                        "set it, or refer to a file with `file:PATH`",
                    )
                })?,
            Self::File(path) => read_secret_file(path)?,
        });
        let end = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        let end = end.strip_suffix(b"\r").unwrap_or(end);
        if end.is_empty() {
            return Err(ConfigError::nowhere(
                "a secret is empty",
                "put the secret where the configuration refers to",
            ));
        }
        Ok(Secret(Zeroizing::new(end.to_vec())))
    }
}

fn read_secret_file(path: &std::path::Path) -> Result<Vec<u8>, ConfigError> {
    use std::io::Read;
    let refused = |what: &str| {
        ConfigError::nowhere(
            format!("the secret file `{}` {what}", path.display()),
            "check the path and its permissions",
        )
    };
    let file = std::fs::File::open(path).map_err(|_| refused("cannot be opened"))?;
    let mut bytes = Vec::new();
    file.take(SECRET_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|_| refused("cannot be read"))?;
    if bytes.len() as u64 > SECRET_BYTES_MAX {
        return Err(refused("is larger than 64 KiB"));
    }
    Ok(bytes)
}

impl Decode for SecretRef {
    fn kind() -> String {
        "`env:NAME` or `file:PATH`".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        let text = text_of(node)?;
        match text.split_once(':') {
            Some(("env", name)) if !name.is_empty() => Ok(Self::Env(name.to_owned())),
            Some(("file", path)) if !path.is_empty() => Ok(Self::File(path.into())),
            _ => Err(vec![
                Problem::new("must refer to a secret, not contain it")
                    .hint("write \"env:NAME\" or \"file:PATH\""),
            ]),
        }
    }
}

/// An address with a scheme. It may contain a password and is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Url(String);

impl Url {
    /// The address itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = self.0.split("://").next().unwrap_or_default();
        write!(f, "{scheme}://…")
    }
}

fn url(text: &str, schemes: &[&'static str]) -> Result<Url, Problems> {
    let (scheme, rest) = text.split_once("://").unwrap_or((text, ""));
    if schemes.contains(&scheme) {
        return if rest.is_empty() || rest.contains(char::is_whitespace) {
            Err(vec![Problem::new("must name a host after its scheme")])
        } else {
            Ok(Url(text.to_owned()))
        };
    }
    let scheme = scheme.split(':').next().unwrap_or_default();
    let list: Vec<String> = schemes.iter().map(|s| format!("`{s}://`")).collect();
    let problem = Problem::new(format!("must start with {}", list.join(", ")));
    Err(vec![match nearest(scheme, schemes.iter().copied()) {
        Some(name) => problem.hint(format!("did you mean `{name}://`?")),
        None => problem,
    }])
}

/// An `http` or `https` address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebUrl(Url);

impl WebUrl {
    /// The address itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl Decode for WebUrl {
    fn kind() -> String {
        "`http://…` or `https://…`".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        url(text_of(node)?, &["http", "https"]).map(Self)
    }
}

/// A Postgres address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresUrl(Url);

impl PostgresUrl {
    /// The address itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl Decode for PostgresUrl {
    fn kind() -> String {
        "`postgres://…`".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        url(text_of(node)?, &["postgres", "postgresql"]).map(Self)
    }
}

/// Which store, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// In this process, gone at its end.
    Memory,
    /// In this process, kept in a directory.
    Embedded(PathBuf),
    /// One Redis, `redis://` or `rediss://`.
    Redis(Url),
    /// A Redis Cluster, `redis+cluster://h1,h2` or `rediss+cluster://h1,h2`.
    RedisCluster(Url),
    /// Postgres.
    Postgres(Url),
}

impl StoreUrl {
    /// True if other nodes share the store: they must share the secret too.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        !matches!(self, Self::Memory | Self::Embedded(_))
    }
}

impl Decode for StoreUrl {
    fn kind() -> String {
        "`memory:`, `embedded:DIR`, `redis://…`, `rediss://…`, `redis+cluster://h1,h2`, `postgres://…`"
            .into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        const SCHEMES: [&str; 6] = [
            "redis",
            "rediss",
            "redis+cluster",
            "rediss+cluster",
            "postgres",
            "postgresql",
        ];
        let text = text_of(node)?;
        if let Some(directory) = text.strip_prefix("embedded:") {
            return match directory {
                "" => Err(vec![
                    Problem::new("must name a directory")
                        .hint("for example \"embedded:./palisade-data\""),
                ]),
                directory => Ok(Self::Embedded(directory.into())),
            };
        }
        if text == "memory:" || text == "memory" {
            return Ok(Self::Memory);
        }
        let url = url(text, &SCHEMES).map_err(|problems| store_problem(text, problems))?;
        Ok(match text.split("://").next().unwrap_or_default() {
            "redis" | "rediss" => Self::Redis(url),
            "redis+cluster" | "rediss+cluster" => Self::RedisCluster(url),
            _ => Self::Postgres(url),
        })
    }
}

fn store_problem(text: &str, problems: Problems) -> Problems {
    let scheme = text.split(':').next().unwrap_or_default();
    match nearest(scheme, ["memory", "embedded"]) {
        Some(name) => vec![
            Problem::new(format!("must be {}", StoreUrl::kind()))
                .hint(format!("did you mean `{name}:`?")),
        ],
        None => problems
            .into_iter()
            .map(|problem| Problem {
                message: problem.message.replace(
                    "must start with ",
                    "must start with `memory:`, `embedded:`, ",
                ),
                ..problem
            })
            .collect(),
    }
}

/// Where policies come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceUrl {
    /// The policy file.
    File,
    /// Postgres.
    Postgres(Url),
    /// MongoDB.
    MongoDb(Url),
}

impl Decode for SourceUrl {
    fn kind() -> String {
        "`file`, `postgres://…`, `mongodb://…`".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        let text = text_of(node)?;
        if text == "file" {
            return Ok(Self::File);
        }
        let url = url(text, &["postgres", "postgresql", "mongodb", "mongodb+srv"]).map_err(
            |problems| {
                problems
                    .into_iter()
                    .map(|problem| Problem {
                        message: format!(
                            "must be `file` or {}",
                            problem.message.trim_start_matches("must ")
                        ),
                        ..problem
                    })
                    .collect::<Problems>()
            },
        )?;
        Ok(if text.starts_with("mongodb") {
            Self::MongoDb(url)
        } else {
            Self::Postgres(url)
        })
    }
}

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
