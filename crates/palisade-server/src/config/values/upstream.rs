//! Addresses of the application behind the proxy.

use palisade_policy::WebUrl;
use palisade_policy::document::decode::{Decode, Problem, Problems, text_of, wrong};
use palisade_policy::document::tree::{Node, Value};

/// Most instances of an application.
const INSTANCES_MAX: usize = 64;

/// The instances of an application, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstreams(Vec<WebUrl>);

impl Upstreams {
    /// The addresses of the instances.
    pub fn all(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(WebUrl::as_str)
    }
}

impl Decode for Upstreams {
    fn kind() -> String {
        "`http://…` or `https://…`, or a list of them".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        let urls = match node.value {
            Value::String(_) => vec![WebUrl::decode(node)?],
            _ => Vec::<WebUrl>::decode(node)?,
        };
        if urls.is_empty() || urls.len() > INSTANCES_MAX {
            return wrong(format!("must name 1 to {INSTANCES_MAX} instances"));
        }
        let repeats = |(index, url): (usize, &WebUrl)| urls[..index].contains(url);
        if urls.iter().enumerate().any(repeats) {
            return wrong("must name each instance once");
        }
        Ok(Self(urls))
    }
}

/// Path of the health check of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthPath(String);

impl HealthPath {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Decode for HealthPath {
    fn kind() -> String {
        "path".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        let text = text_of(node)?;
        let is_path = text.starts_with('/') && text.parse::<http::uri::PathAndQuery>().is_ok();
        if !is_path {
            return Err(vec![
                Problem::new("must be a path").hint("write it without the host: \"/health\""),
            ]);
        }
        Ok(Self(text.to_owned()))
    }
}
