//! `palisade allowlist`.

use clap::{Args, Subcommand, ValueEnum};
use http::Method;
use serde_json::{Value, json};

use super::Server;
use crate::failure::{Ending, Failure};

const PATH: &str = "/admin/rate-limit/allowlist";

/// Lets an address, a network or a user pass the limits.
#[derive(Debug, Args)]
pub(crate) struct Allowlist {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Entries, by digest
    List(Server),
    /// Adds an entry
    Add(Add),
    /// Removes an entry
    Remove(Remove),
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    Ip,
    Cidr,
    #[value(name = "user_id")]
    UserId,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Ip => "ip",
            Self::Cidr => "cidr",
            Self::UserId => "user_id",
        }
    }
}

#[derive(Debug, Args)]
struct Add {
    /// What it names
    kind: Kind,
    /// Address, network or user
    identifier: String,
    /// The organisation a user belongs to [default: any]
    #[arg(long)]
    org: Option<String>,
    /// Why
    #[arg(long)]
    reason: String,
    /// Until when, RFC 3339 [default: until it is removed]
    #[arg(long, value_name = "TIME")]
    expires_at: Option<String>,
    #[command(flatten)]
    server: Server,
}

#[derive(Debug, Args)]
struct Remove {
    /// What it names
    kind: Kind,
    /// Address, network or user
    identifier: String,
    /// The organisation that the entry names, if it does
    #[arg(long)]
    org: Option<String>,
    #[command(flatten)]
    server: Server,
}

impl Allowlist {
    pub(crate) fn run(self) -> Result<Ending, Failure> {
        match self.command {
            Command::List(server) => server.ask(Method::GET, PATH, None, shown),
            Command::Add(add) => {
                let mut body = json!({"type": add.kind.name(), "identifier": add.identifier,
                    "reason": add.reason});
                if let Some(until) = &add.expires_at {
                    body["expires_at"] = json!(until);
                }
                if let Some(org) = &add.org {
                    body["org"] = json!(org);
                }
                add.server
                    .ask(Method::POST, PATH, Some(&body), |_| "added\n".to_owned())
            }
            Command::Remove(remove) => {
                let mut body = json!({"type": remove.kind.name(), "identifier": remove.identifier});
                if let Some(org) = &remove.org {
                    body["org"] = json!(org);
                }
                remove.server.ask(Method::DELETE, PATH, Some(&body), |_| {
                    "removed\n".to_owned()
                })
            }
        }
    }
}

fn shown(answer: &Value) -> String {
    let entries = answer["entries"].as_array().or_else(|| answer.as_array());
    let mut lines = String::new();
    for entry in entries.into_iter().flatten() {
        let text = |name: &str| entry[name].as_str().unwrap_or("-").to_owned();
        lines.push_str(&format!(
            "{} {} {} {} {}\n",
            text("id"),
            text("type"),
            text("network"),
            text("expires_at"),
            text("reason"),
        ));
    }
    if lines.is_empty() {
        lines.push_str("the allowlist is empty\n");
    }
    lines
}
