//! Commands that call the admin API of a running server.

mod allowlist;
mod attack;
mod blocks;
mod client;
mod clients;
mod explain;
mod keys;
mod quota;
mod reset;
mod status;
mod unanswered;

pub(super) use allowlist::Allowlist;
pub(super) use attack::Attack;
pub(super) use blocks::Blocks;
pub(super) use client::Server;
pub(super) use clients::Client;
pub(super) use explain::Explain;
pub(super) use keys::{KeyCreate, KeyList, KeyRevoke, KeyRotate};
pub(super) use quota::{QuotaGet, QuotaList, QuotaReset, QuotaTier};
pub(super) use reset::Reset;
pub(super) use status::Status;

use serde_json::Value;

/// Returns the spellings of an account that an answer is about, a line each.
fn looked_up(answer: &Value) -> String {
    let spellings = answer["looked_up"].as_array().into_iter().flatten();
    let lines = spellings.map(|one| {
        let how = match one["spelling"].as_str() {
            Some("folded") => "as the proxy counts it",
            _ => "as typed",
        };
        let id = one["id"].as_str().unwrap_or("-");
        format!("looked up {how}: account {id}\n")
    });
    lines.collect()
}

/// Returns a path with a query of the given parameters, encoded for a URL.
fn with_query(path: &str, parameters: &[(&str, Option<&str>)]) -> String {
    use std::fmt::Write;
    let mut text = path.to_owned();
    let mut mark = '?';
    for (name, value) in parameters {
        let Some(value) = value else { continue };
        text.push(mark);
        text.push_str(name);
        text.push('=');
        for byte in value.bytes() {
            match byte.is_ascii_alphanumeric() {
                true => text.push(char::from(byte)),
                // Writing to a string cannot fail.
                false => drop(write!(text, "%{byte:02X}")),
            }
        }
        mark = '&';
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_query_carries_any_text_as_one_value() {
        let given = [
            ("search", Some("a&b=\u{e9} ")),
            ("after", None),
            ("x", Some("1")),
        ];
        let path = super::with_query("/p", &given);
        assert_eq!(path, "/p?search=a%26b%3D%C3%A9%20&x=1");
    }
}
