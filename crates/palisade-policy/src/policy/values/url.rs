//! Addresses of stores, sources and pages.

use std::fmt;

use crate::document::decode::{Decode, Problem, Problems, text_of};
use crate::document::error::nearest;
use crate::document::tree::Node;

/// An address with a scheme. It may contain a password and is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Url(String);

impl Url {
    /// An address with one of these schemes.
    ///
    /// # Errors
    /// Another scheme, or no host; the address itself is not repeated.
    pub fn parse(text: &str, schemes: &[&'static str]) -> Result<Self, Problems> {
        let (scheme, rest) = text.split_once("://").unwrap_or((text, ""));
        if schemes.contains(&scheme) {
            return if rest.is_empty() || rest.contains(char::is_whitespace) {
                Err(vec![Problem::new("must name a host after its scheme")])
            } else {
                Ok(Self(text.to_owned()))
            };
        }
        // The message must not repeat the text: what follows a colon may be a password.
        let scheme = scheme.split(':').next().unwrap_or_default();
        let list: Vec<String> = schemes.iter().map(|s| format!("`{s}://`")).collect();
        let problem = Problem::new(format!("must start with {}", list.join(", ")));
        let is_bare = !text.contains("://") && schemes.contains(&"http");
        if is_bare {
            let hint = "write `http://` before it, as in `http://localhost:3000`";
            return Err(vec![problem.hint(hint)]);
        }
        Err(vec![match nearest(scheme, schemes.iter().copied()) {
            Some(name) => problem.hint(format!("did you mean `{name}://`?")),
            None => problem,
        }])
    }

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
        Url::parse(text_of(node)?, &["http", "https"]).map(Self)
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
    const PRIVATE: bool = true;

    fn kind() -> String {
        "`file`, `postgres://…`, `mongodb://…`".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        let text = text_of(node)?;
        if text == "file" {
            return Ok(Self::File);
        }
        let url = Url::parse(text, &["postgres", "postgresql", "mongodb", "mongodb+srv"]).map_err(
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
