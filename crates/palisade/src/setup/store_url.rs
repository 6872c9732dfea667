//! Addresses of stores.

use std::path::PathBuf;

use palisade_policy::Url;
use palisade_policy::document::decode::{Decode, Problem, Problems, text_of};
use palisade_policy::document::error::nearest;
use palisade_policy::document::tree::Node;

/// The kind of a store, with its location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// In this process, gone when the process ends.
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
    /// True if other nodes share the store. They must then share the secret, too.
    pub const fn is_shared(&self) -> bool {
        !matches!(self, Self::Memory | Self::Embedded(_))
    }

    /// The kind of store and its hosts, for logs.
    pub fn shown(&self) -> String {
        match self {
            Self::Memory => "memory".to_owned(),
            Self::Embedded(_) => "embedded".to_owned(),
            Self::Redis(url) | Self::RedisCluster(url) | Self::Postgres(url) => {
                without_credentials(url.as_str())
            }
        }
    }
}

/// Returns scheme and hosts. An ambiguous address shows its scheme only, so that a password with a
/// slash in it is not taken for a host.
fn without_credentials(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or((url, ""));
    let (authority, behind) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let hosts: Vec<&str> = authority
        .split(',')
        // Credentials end at the last `@`, because a password may contain one.
        .map(|host| host.rsplit('@').next().unwrap_or_default())
        .collect();
    let is_host = |c: char| c.is_ascii_alphanumeric() || ".:-_[]".contains(c);
    let is_plain = hosts.iter().all(|host| host.chars().all(is_host));
    if is_plain && !behind.contains('@') {
        format!("{scheme}://{}", hosts.join(","))
    } else {
        format!("{scheme}://…")
    }
}

impl Decode for StoreUrl {
    const PRIVATE: bool = true;

    fn kind() -> String {
        "`memory:`, `embedded:DIR`, `redis://…`, `rediss://…`, `redis+cluster://h1,h2`, `postgres://…`"
            .into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        Self::parse(text_of(node)?)
    }
}

impl StoreUrl {
    /// Reads an address.
    ///
    /// # Errors
    /// The address names no store. The message does not repeat it.
    pub fn parse(text: &str) -> Result<Self, Problems> {
        const SCHEMES: [&str; 6] = [
            "redis",
            "rediss",
            "redis+cluster",
            "rediss+cluster",
            "postgres",
            "postgresql",
        ];
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
        let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
        if scheme.contains("sentinel") {
            return Err(vec![
                Problem::new("names Redis Sentinel, which is not followed")
                    .hint("name an address that always leads to the master: a proxy that checks for `role:master`, or a name that Sentinel's `client-reconfig-script` moves; docs/shared-stores.md"),
            ]);
        }
        let url = Url::parse(text, &SCHEMES).map_err(|problems| store_problem(text, problems))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shown_address_has_no_credentials() {
        for (url, shown) in [
            ("redis://10.0.0.1:6379/2", "redis://10.0.0.1:6379"),
            ("redis://:p%40ss@db:6379", "redis://db:6379"),
            (
                "rediss+cluster://u:p@a:1,u:p@b:2",
                "rediss+cluster://a:1,b:2",
            ),
            ("postgres://u:p@h/d?password=x", "postgres://h"),
            ("redis://[::1]:6379", "redis://[::1]:6379"),
            ("redis://:pa/ss@host", "redis://…"),
            ("redis://:pa?ss@host", "redis://…"),
            ("redis://:pa#ss@host", "redis://…"),
            ("postgres://u:p@h/d?options=a@b", "postgres://…"),
        ] {
            assert_eq!(without_credentials(url), shown);
        }
    }
}
