//! `palisade allowlist`: lets subjects pass the limits.

use clap::{Args, Subcommand, ValueEnum};
use http::Method;
use palisade_server::failure::{CommandStatus, Failure};
use serde_json::{Value, json};

use super::super::table::Table;
use super::Server;

const PATH: &str = "/admin/rate-limit/allowlist";

/// Lists and changes the addresses, networks and users that pass the limits.
#[derive(Debug, Args)]
pub(crate) struct Allowlist {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Lists entries, by digest
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
    /// Kind of the identifier
    kind: Kind,
    /// The address, network or user id
    identifier: String,
    /// Organisation that the user belongs to [default: any]
    #[arg(long)]
    org: Option<String>,
    /// Reason for the entry
    #[arg(long)]
    reason: String,
    /// End of the entry, RFC 3339 [default: until it is removed]
    #[arg(long, value_name = "TIME")]
    expires_at: Option<String>,
    #[command(flatten)]
    server: Server,
}

#[derive(Debug, Args)]
struct Remove {
    /// Kind of the identifier
    kind: Kind,
    /// The address, network or user id
    identifier: String,
    /// Organisation of the entry, if it has one
    #[arg(long)]
    org: Option<String>,
    #[command(flatten)]
    server: Server,
}

impl Allowlist {
    pub(crate) fn run(self) -> Result<CommandStatus, Failure> {
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
    let mut table = Table::new(["ID", "TYPE", "NETWORK", "EXPIRES", "REASON"]);
    for entry in entries.into_iter().flatten() {
        let text = |name: &str| entry[name].as_str().unwrap_or("-").to_owned();
        table.row([
            text("id"),
            text("type"),
            text("network"),
            text("expires_at"),
            text("reason"),
        ]);
    }
    match table.is_empty() {
        true => "the allowlist is empty\n".to_owned(),
        false => table.text(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_stand_in_columns_under_their_names() {
        let answer = json!({"entries": [
            {"id": "9f86", "type": "ip", "network": null, "expires_at": null, "reason": "monitoring"},
            {"id": "60303ae2", "type": "cidr", "network": "198.51.100.0/24",
             "expires_at": "2026-02-01T00:00:00Z", "reason": "the office"},
        ]});
        insta::assert_snapshot!(shown(&answer), @r"
        ID        TYPE  NETWORK          EXPIRES               REASON
        9f86      ip    -                -                     monitoring
        60303ae2  cidr  198.51.100.0/24  2026-02-01T00:00:00Z  the office
        ");
    }
}
