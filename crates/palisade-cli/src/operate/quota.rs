//! `palisade quota get|list|reset|tier`. Keys are named by their hash only.

use clap::Args;
use http::Method;
use palisade_server::failure::{CommandStatus, Failure};
use serde_json::{Value, json};

use super::super::table::Table;
use super::Server;

/// Shows the use of an API key this month.
#[derive(Debug, Args)]
pub(crate) struct QuotaGet {
    /// The key's hash, as `palisade quota hash` prints it
    hash: String,
    #[command(flatten)]
    server: Server,
}

/// Lists the use of every API key this month.
#[derive(Debug, Args)]
pub(crate) struct QuotaList {
    /// Continue after this key's hash, which the previous page printed
    #[arg(long, value_name = "HASH")]
    after: Option<String>,
    #[command(flatten)]
    server: Server,
}

/// Resets the use of an API key this month to zero.
#[derive(Debug, Args)]
pub(crate) struct QuotaReset {
    /// The key's hash
    hash: String,
    /// Reason, recorded in the audit
    #[arg(long)]
    reason: String,
    #[command(flatten)]
    server: Server,
}

/// Moves an API key to another tier, with immediate effect.
#[derive(Debug, Args)]
pub(crate) struct QuotaTier {
    /// The key's hash
    hash: String,
    /// Name of a tier in the policy
    tier: String,
    /// Reason, recorded in the audit
    #[arg(long)]
    reason: Option<String>,
    #[command(flatten)]
    server: Server,
}

fn path(hash: &str, rest: &str) -> Result<String, Failure> {
    let hash = checked(hash)?;
    Ok(format!("/admin/rate-limit/quota/{hash}{rest}"))
}

/// Checks that an argument is the hash of a key. A raw key in a URL would end up in logs.
pub(super) fn checked(hash: &str) -> Result<&str, Failure> {
    if hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(hash);
    }
    Err(Failure::usage(
        "the hash must be 64 hexadecimal digits",
        "`palisade quota hash` prints it",
    ))
}

fn shown(answer: &Value) -> String {
    table(std::slice::from_ref(answer))
}

/// Returns a table with one row a key, named by its hash.
fn table(usages: &[Value]) -> String {
    let mut table = Table::new(["KEY", "TIER", "USED", "QUOTA", "LEFT", "OVERAGE", "RESETS"]);
    for usage in usages {
        let text = |name: &str| match &usage[name] {
            Value::Null => "unlimited".to_owned(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let resets = usage["quota_reset"].as_i64();
        let resets = resets.and_then(|at| time::OffsetDateTime::from_unix_timestamp(at).ok());
        table.row([
            text("key"),
            text("tier"),
            text("quota_used"),
            text("quota_limit"),
            text("quota_remaining"),
            text("overage"),
            resets.map_or_else(|| "-".to_owned(), |at| at.date().to_string()),
        ]);
    }
    match table.is_empty() {
        true => "no API keys\n".to_owned(),
        false => table.text(),
    }
}

fn listed(answer: &Value) -> String {
    let usages = answer["quotas"].as_array().map_or(&[][..], Vec::as_slice);
    let more = match answer["next"].as_str() {
        Some(next) => format!("there are more: pass `--after {next}`\n"),
        None => String::new(),
    };
    table(usages) + &more
}

impl QuotaGet {
    pub(crate) fn run(self) -> Result<CommandStatus, Failure> {
        let path = path(&self.hash, "")?;
        self.server.ask(Method::GET, &path, None, shown)
    }
}

impl QuotaList {
    pub(crate) fn run(self) -> Result<CommandStatus, Failure> {
        let mut path = "/admin/rate-limit/quotas".to_owned();
        if let Some(after) = &self.after {
            path.push_str("?after=");
            path.push_str(checked(after)?);
        }
        self.server.ask(Method::GET, &path, None, listed)
    }
}

impl QuotaReset {
    pub(crate) fn run(self) -> Result<CommandStatus, Failure> {
        let path = path(&self.hash, "/reset")?;
        let body = json!({"reason": self.reason});
        self.server.ask(Method::POST, &path, Some(&body), shown)
    }
}

impl QuotaTier {
    pub(crate) fn run(self) -> Result<CommandStatus, Failure> {
        let path = path(&self.hash, "/tier")?;
        let mut body = json!({"tier": self.tier});
        if let Some(reason) = &self.reason {
            body["reason"] = json!(reason);
        }
        self.server.ask(Method::PUT, &path, Some(&body), shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_not_the_last_names_the_flag_that_goes_on() {
        let answer = json!({"quotas": [], "next": "ab12"});
        let said = listed(&answer);
        assert!(
            said.ends_with("there are more: pass `--after ab12`\n"),
            "{said}"
        );
        assert!(!listed(&json!({"quotas": [], "next": null})).contains("after"));
    }
}
