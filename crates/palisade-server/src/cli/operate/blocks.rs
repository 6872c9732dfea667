//! `palisade blocks`.

use clap::{Args, Subcommand};
use http::Method;
use serde_json::{Value, json};

use super::Server;
use crate::failure::{Ending, Failure};

/// Lists what the guard and the lockout block now, and lifts blocks.
#[derive(Debug, Args)]
pub(crate) struct Blocks {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Blocks that run now
    List(Server),
    /// Ends the blocks of a record
    Lift(Lift),
}

#[derive(Debug, Args)]
struct Lift {
    /// The record, as listed: account-login, network-otp, lockout …
    record: String,
    /// The record's digest, as listed
    id: String,
    /// Only the block on this key: K1 to K5, device
    #[arg(long)]
    key: Option<String>,
    /// And only of this device or user agent, as listed
    #[arg(long, requires = "key")]
    member: Option<String>,
    #[command(flatten)]
    server: Server,
}

impl Blocks {
    pub(crate) fn run(self) -> Result<Ending, Failure> {
        match self.command {
            Command::List(server) => server.ask(Method::GET, "/admin/blocks", None, shown),
            Command::Lift(lift) => {
                let mut body = json!({"record": lift.record, "id": lift.id});
                if let Some(key) = &lift.key {
                    body["key"] = json!(key);
                }
                if let Some(member) = &lift.member {
                    body["member"] = json!(member);
                }
                lift.server
                    .ask(Method::DELETE, "/admin/blocks", Some(&body), |answer| {
                        format!("lifted {}\n", answer["lifted"])
                    })
            }
        }
    }
}

fn shown(answer: &Value) -> String {
    let text = |block: &Value, name: &str| block[name].as_str().unwrap_or("-").to_owned();
    let mut lines = String::new();
    for block in answer["blocks"].as_array().into_iter().flatten() {
        lines.push_str(&format!(
            "{} {} {} {} {} {} until {}{}\n",
            text(block, "record"),
            text(block, "id"),
            text(block, "key"),
            text(block, "decision"),
            text(block, "level"),
            text(block, "rule"),
            text(block, "until"),
            block["member"]
                .as_str()
                .map_or(String::new(), |member| format!(" member {member}")),
        ));
    }
    if lines.is_empty() {
        lines.push_str("nothing is blocked\n");
    }
    if answer["truncated"] == true {
        lines.push_str("there are more\n");
    }
    lines
}
