//! `palisade reset`: clears what a subject has used of its limits.

use clap::Args;
use http::Method;
use palisade_server::failure::{CommandStatus, Failure};
use serde_json::{Map, Value, json};

use super::super::table::Table;
use super::Server;

/// Clears the buckets of a subject.
#[derive(Debug, Args)]
pub(crate) struct Reset {
    /// Reason, recorded in the audit
    #[arg(long)]
    reason: String,
    /// Client address
    #[arg(long)]
    ip: Option<String>,
    /// Organisation
    #[arg(long)]
    org: Option<String>,
    /// User
    #[arg(long)]
    user: Option<String>,
    /// Token id
    #[arg(long)]
    token: Option<String>,
    #[command(flatten)]
    server: Server,
}

impl Reset {
    pub(crate) fn run(self) -> Result<CommandStatus, Failure> {
        let given = [
            ("ip", &self.ip),
            ("org", &self.org),
            ("user", &self.user),
            ("token", &self.token),
        ];
        let subject: Map<String, Value> = given
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), json!(value.as_ref()?))))
            .collect();
        if subject.is_empty() {
            return Err(Failure::usage(
                "nobody is named",
                "pass --ip, --org, --user or --token",
            ));
        }
        let body = json!({"reason": self.reason, "subjects": [subject]});
        let path = "/admin/rate-limit/reset";
        self.server.ask(Method::POST, path, Some(&body), shown)
    }
}

fn shown(answer: &Value) -> String {
    let mut table = Table::new(["LIMIT", "CLEARED"]);
    for bucket in answer["buckets"].as_array().into_iter().flatten() {
        let done = if bucket["done"] == true { "yes" } else { "no" };
        let limit = bucket["limit"].as_str().unwrap_or("-");
        table.row([limit.to_owned(), done.to_owned()]);
    }
    match table.is_empty() {
        true => "no limit counts this subject\n".to_owned(),
        false => table.text(),
    }
}
