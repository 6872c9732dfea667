//! What tells the members of an array of tables apart.

use crate::tree::Node;

/// The identity of a member: its name, or path and method of a route.
pub(crate) fn identity(array: &str, item: &Node) -> Option<String> {
    match array {
        "route" => {
            let path = item.member("path")?;
            // A trailing slash of a path is dropped when requests are matched.
            let path = match path.trim_end_matches('/') {
                "" => "/",
                path => path,
            };
            let method = item.member("method").unwrap_or_default();
            Some(format!("{} {path}", method.to_ascii_uppercase()))
        }
        _ => item.member(key_of(array)?).map(str::to_owned),
    }
}

/// The key that names a member.
pub(crate) fn key_of(array: &str) -> Option<&'static str> {
    match array {
        "limit" | "class" | "tier" => Some("name"),
        "client" | "tenant" => Some("id"),
        "api_key" => Some("hash"),
        "route" => Some("path"),
        _ => None,
    }
}
