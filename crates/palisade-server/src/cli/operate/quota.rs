//! `palisade quota get|list|reset|tier`. Keys are named by their hash only.

use clap::Args;
use http::Method;
use serde_json::{Value, json};

use super::super::table::Table;
use super::Server;
use crate::failure::{Ending, Failure};

/// Shows what an API key has used this month.
#[derive(Debug, Args)]
pub(crate) struct QuotaGet {
    /// The key's hash, as `palisade quota hash` prints it
    hash: String,
    #[command(flatten)]
    server: Server,
}

/// Lists every API key's usage.
#[derive(Debug, Args)]
pub(crate) struct QuotaList {
    #[command(flatten)]
    server: Server,
}

/// Sets a key's usage of this month back to zero.
#[derive(Debug, Args)]
pub(crate) struct QuotaReset {
    /// The key's hash
    hash: String,
    /// Why; kept in the audit log
    #[arg(long)]
    reason: String,
    #[command(flatten)]
    server: Server,
}

/// Puts a key on another tier, with immediate effect.
#[derive(Debug, Args)]
pub(crate) struct QuotaTier {
    /// The key's hash
    hash: String,
    /// A tier of the policy
    tier: String,
    #[command(flatten)]
    server: Server,
}

fn path(hash: &str, rest: &str) -> Result<String, Failure> {
    if hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(format!("/admin/rate-limit/quota/{hash}{rest}"));
    }
    Err(Failure::usage(
        "the hash must be 64 hexadecimal digits",
        "`palisade quota hash` prints it",
    ))
}

fn shown(answer: &Value) -> String {
    table(std::slice::from_ref(answer))
}

/// One row a key; the hash is what names it.
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
        Some(_) => "there are more: ask with `--json` and pass `after`\n",
        None => "",
    };
    table(usages) + more
}

impl QuotaGet {
    pub(crate) fn run(self) -> Result<Ending, Failure> {
        let path = path(&self.hash, "")?;
        self.server.ask(Method::GET, &path, None, shown)
    }
}

impl QuotaList {
    pub(crate) fn run(self) -> Result<Ending, Failure> {
        let path = "/admin/rate-limit/quotas";
        self.server.ask(Method::GET, path, None, listed)
    }
}

impl QuotaReset {
    pub(crate) fn run(self) -> Result<Ending, Failure> {
        let path = path(&self.hash, "/reset")?;
        let body = json!({"reason": self.reason});
        self.server.ask(Method::POST, &path, Some(&body), shown)
    }
}

impl QuotaTier {
    pub(crate) fn run(self) -> Result<Ending, Failure> {
        let path = path(&self.hash, "/tier")?;
        let body = json!({"tier": self.tier});
        self.server.ask(Method::PUT, &path, Some(&body), shown)
    }
}
