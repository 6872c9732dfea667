//! Converts the key of a zone to the facts that a limit counts by.

/// The counterpart of a key here.
pub(super) enum Meaning {
    /// Dimensions, and the differences.
    By(Vec<String>, Vec<&'static str>),
    /// A variable without a counterpart.
    Unknown,
}

const ENDPOINT: &str = "nginx counts by the path itself; here by the most specific route, or by \
    the path where none matches";
const USER: &str = "the user is who `[identity]` says; pass it in, or verify a token";
const SERVER: &str = "requests have no host here: one bucket for all names of the server";

/// Reads a key such as `$binary_remote_addr$uri`.
pub(super) fn meaning(key: &str) -> Meaning {
    let mut by: Vec<String> = Vec::new();
    let mut differences = Vec::new();
    for variable in key.split('$').skip(1) {
        let name: String = variable
            .trim_start_matches('{')
            .chars()
            .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
            .collect();
        let (dimension, difference) = match name.as_str() {
            "binary_remote_addr" | "remote_addr" => ("ip", None),
            "uri" | "request_uri" | "document_uri" => ("endpoint", Some(ENDPOINT)),
            "remote_user" => ("user", Some(USER)),
            "server_name" | "host" | "http_host" => ("", Some(SERVER)),
            _ => return Meaning::Unknown,
        };
        differences.extend(difference);
        if !dimension.is_empty() && by.iter().all(|known| known != dimension) {
            by.push(dimension.to_owned());
        }
    }
    Meaning::By(by, differences)
}
