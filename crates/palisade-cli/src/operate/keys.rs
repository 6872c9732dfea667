//! `palisade quota create|rotate|revoke|keys`. A new key goes to standard output, once.

use clap::Args;
use http::Method;
use palisade_server::failure::{CommandStatus, Failure};
use serde_json::{Value, json};

use super::super::table::Table;
use super::quota::checked;
use super::{Server, with_query};

const PATH: &str = "/admin/rate-limit/keys";

/// Creates an API key and prints its secret, once: only the hash is kept.
#[derive(Debug, Args)]
pub(crate) struct KeyCreate {
    /// Name for people, such as the owner or the purpose
    #[arg(long)]
    name: String,
    /// Name of a tier in the policy
    #[arg(long)]
    tier: String,
    /// Scope that the key covers; may be given several times [default: every route]
    #[arg(long = "scope", value_name = "SCOPE")]
    scopes: Vec<String>,
    /// Reason, recorded in the audit
    #[arg(long)]
    reason: Option<String>,
    #[command(flatten)]
    server: Server,
}

/// Replaces the secret of an API key and prints the new one, once. The key's use so far is kept.
#[derive(Debug, Args)]
pub(crate) struct KeyRotate {
    /// Id of the key, as `palisade quota keys` lists it
    hash: String,
    /// Seconds for which the old secret stays valid, at most 30 days
    #[arg(long, value_name = "SECONDS", default_value_t = 86_400)]
    overlap: u64,
    /// Reason, recorded in the audit
    #[arg(long)]
    reason: Option<String>,
    #[command(flatten)]
    server: Server,
}

/// Revokes an API key, whatever its origin.
#[derive(Debug, Args)]
pub(crate) struct KeyRevoke {
    /// Id of the key, as `palisade quota keys` lists it
    hash: String,
    /// Reason, recorded in the audit
    #[arg(long)]
    reason: String,
    #[command(flatten)]
    server: Server,
}

/// Lists API keys with name, tier and origin.
#[derive(Debug, Args)]
pub(crate) struct KeyList {
    /// Only keys whose name contains this text or whose hash begins with it
    #[arg(long)]
    search: Option<String>,
    /// Continue after this key's hash, which the previous page printed
    #[arg(long, value_name = "HASH")]
    after: Option<String>,
    #[command(flatten)]
    server: Server,
}

fn issued(answer: &Value) -> String {
    let secret = answer["api_key"].as_str().unwrap_or_default();
    let registration = &answer["registration"];
    let key = registration["key"].as_str().unwrap_or_default();
    let until = match registration["overlap_until"].as_str() {
        Some(until) => format!("the previous secret is valid until {until}\n"),
        None => String::new(),
    };
    format!("{secret}\nnamed {key}\n{until}The key is not shown again.\n")
}

fn listed(answer: &Value) -> String {
    let mut table = Table::new(["KEY", "NAME", "TIER", "ORIGIN", "SCOPES", "OVERLAP UNTIL"]);
    for key in answer["keys"].as_array().into_iter().flatten() {
        let text = |name: &str| key[name].as_str().unwrap_or("-").to_owned();
        let scopes = key["scopes"].as_array().map(|scopes| {
            let names: Vec<&str> = scopes.iter().filter_map(Value::as_str).collect();
            names.join(" ")
        });
        table.row([
            text("key"),
            text("name"),
            text("tier"),
            text("origin"),
            scopes.unwrap_or_else(|| "all".to_owned()),
            text("overlap_until"),
        ]);
    }
    let more = match answer["next"].as_str() {
        Some(next) => format!("there are more: pass `--after {next}`\n"),
        None => String::new(),
    };
    match table.is_empty() {
        true => "no API keys\n".to_owned(),
        false => table.text() + &more,
    }
}

impl KeyCreate {
    pub(crate) fn run(self) -> Result<CommandStatus, Failure> {
        let mut body = json!({"name": self.name, "tier": self.tier});
        if !self.scopes.is_empty() {
            body["scopes"] = json!(self.scopes);
        }
        if let Some(reason) = &self.reason {
            body["reason"] = json!(reason);
        }
        self.server.ask(Method::POST, PATH, Some(&body), issued)
    }
}

impl KeyRotate {
    pub(crate) fn run(self) -> Result<CommandStatus, Failure> {
        let path = format!("{PATH}/{}/rotate", checked(&self.hash)?);
        let mut body = json!({"overlap_seconds": self.overlap});
        if let Some(reason) = &self.reason {
            body["reason"] = json!(reason);
        }
        self.server.ask(Method::POST, &path, Some(&body), issued)
    }
}

impl KeyRevoke {
    pub(crate) fn run(self) -> Result<CommandStatus, Failure> {
        let path = format!("{PATH}/{}/revoke", checked(&self.hash)?);
        let body = json!({"reason": self.reason});
        let said = |_: &Value| "revoked\n".to_owned();
        self.server.ask(Method::POST, &path, Some(&body), said)
    }
}

impl KeyList {
    pub(crate) fn run(self) -> Result<CommandStatus, Failure> {
        let after = self.after.as_deref().map(checked).transpose()?;
        let path = with_query(
            PATH,
            &[("search", self.search.as_deref()), ("after", after)],
        );
        self.server.ask(Method::GET, &path, None, listed)
    }
}
