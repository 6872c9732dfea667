//! `palisade quota get|list|reset|tier`. Keys are named by their hash only.

use clap::Args;
use http::Method;
use serde_json::{Value, json};

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

fn pretty(answer: &Value) -> String {
    serde_json::to_string_pretty(answer).unwrap_or_default() + "\n"
}

impl QuotaGet {
    pub(crate) fn run(self) -> Result<Ending, Failure> {
        let path = path(&self.hash, "")?;
        self.server.ask(Method::GET, &path, None, pretty)
    }
}

impl QuotaList {
    pub(crate) fn run(self) -> Result<Ending, Failure> {
        let path = "/admin/rate-limit/quotas";
        self.server.ask(Method::GET, path, None, pretty)
    }
}

impl QuotaReset {
    pub(crate) fn run(self) -> Result<Ending, Failure> {
        let path = path(&self.hash, "/reset")?;
        let body = json!({"reason": self.reason});
        self.server.ask(Method::POST, &path, Some(&body), pretty)
    }
}

impl QuotaTier {
    pub(crate) fn run(self) -> Result<Ending, Failure> {
        let path = path(&self.hash, "/tier")?;
        let body = json!({"tier": self.tier});
        self.server.ask(Method::PUT, &path, Some(&body), pretty)
    }
}
