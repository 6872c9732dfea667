//! `palisade blocks`: lists and lifts blocks of the guard and the lockout.

use clap::{Args, Subcommand};
use http::Method;
use palisade_server::failure::{CommandStatus, Failure};
use serde_json::{Map, Value, json};

use super::super::table::Table;
use super::{Server, looked_up};

/// Lists and lifts blocks of the guard and the lockout.
#[derive(Debug, Args)]
pub(crate) struct Blocks {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Lists active blocks
    List(Server),
    /// Lifts the blocks of an account, an address or a listed record
    Lift(Lift),
}

#[derive(Debug, Args)]
struct Lift {
    /// Kind of the record, as listed: account-login, network-otp, lockout …
    #[arg(requires = "id", conflicts_with_all = ["account", "ip", "username"])]
    record: Option<String>,
    /// Digest of the record, as listed
    id: Option<String>,
    /// Lift only the block on this key: K1 to K5, device
    #[arg(long, requires = "record")]
    key: Option<String>,
    /// Lift only the block on this device or user agent, as listed
    #[arg(long, requires = "key")]
    member: Option<String>,
    /// Account, instead of a record, as typed or as the application knows it
    #[arg(long)]
    account: Option<String>,
    /// Address; with --username the one from which the name was typed, with --account its lockout
    /// at that address is lifted, too
    #[arg(long)]
    ip: Option<String>,
    /// Name or email as typed from --ip: lifts its lockout
    #[arg(long, requires = "ip")]
    username: Option<String>,
    /// Also clear the score, so that the next failure counts as the first
    #[arg(long)]
    score: bool,
    /// Reason, recorded in the audit
    #[arg(long)]
    reason: String,
    #[command(flatten)]
    server: Server,
}

impl Lift {
    fn body(&self) -> Result<Value, Failure> {
        if self.record.is_none() && self.account.is_none() && self.ip.is_none() {
            return Err(Failure::usage(
                "nobody is named",
                "pass --account, --ip, or a record and its id as `palisade blocks list` shows them",
            ));
        }
        let given = [
            ("record", &self.record),
            ("id", &self.id),
            ("key", &self.key),
            ("member", &self.member),
            ("account", &self.account),
            ("ip", &self.ip),
            ("username", &self.username),
        ];
        let named = given
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), json!(value.as_ref()?))));
        let mut body: Map<String, Value> = named.collect();
        body.insert("score".to_owned(), json!(self.score));
        body.insert("reason".to_owned(), json!(self.reason));
        Ok(Value::Object(body))
    }
}

impl Blocks {
    pub(crate) fn run(self) -> Result<CommandStatus, Failure> {
        match self.command {
            Command::List(server) => server.ask(Method::GET, "/admin/blocks", None, shown),
            Command::Lift(lift) => {
                let body = lift.body()?;
                let path = "/admin/blocks";
                lift.server
                    .ask(Method::DELETE, path, Some(&body), |answer| {
                        let score = if answer["score_forgotten"] == true {
                            ", the score is forgotten"
                        } else {
                            ""
                        };
                        let lifted = answer["lifted"].as_u64().unwrap_or_default();
                        format!("lifted {lifted}{score}\n{}", looked_up(answer))
                    })
            }
        }
    }
}

fn shown(answer: &Value) -> String {
    let mut table = Table::new([
        "RECORD", "ID", "KEY", "DECISION", "LEVEL", "RULE", "UNTIL", "MEMBER",
    ]);
    for block in answer["blocks"].as_array().into_iter().flatten() {
        let text = |name: &str| block[name].as_str().unwrap_or("-").to_owned();
        table.row([
            text("record"),
            text("id"),
            text("key"),
            text("decision"),
            text("level"),
            text("rule"),
            text("until"),
            text("member"),
        ]);
    }
    let mut lines = match table.is_empty() {
        true => "nothing is blocked\n".to_owned(),
        false => table.text(),
    };
    if answer["truncated"] == true {
        lines.push_str("there are more\n");
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_stand_in_columns_under_their_names() {
        let block = |record: &str, member: Value| {
            json!({"record": record, "id": "9f86d081884c7d65", "key": "K1", "decision": "hard_block",
                "level": "L2", "rule": "G-THRESHOLD", "until": "2026-01-01T00:01:00Z", "member": member})
        };
        let answer = json!({"truncated": true,
            "blocks": [block("account-login", Value::Null), block("lockout", json!("d1"))]});
        insta::assert_snapshot!(shown(&answer), @r"
        RECORD         ID                KEY  DECISION    LEVEL  RULE         UNTIL                 MEMBER
        account-login  9f86d081884c7d65  K1   hard_block  L2     G-THRESHOLD  2026-01-01T00:01:00Z  -
        lockout        9f86d081884c7d65  K1   hard_block  L2     G-THRESHOLD  2026-01-01T00:01:00Z  d1
        there are more
        ");
    }
}
