//! Addresses of stores, sources and pages.

use std::fmt;
use std::path::PathBuf;

use crate::decode::{Decode, Problem, Problems, text_of};
use crate::error::nearest;
use crate::tree::Node;

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
