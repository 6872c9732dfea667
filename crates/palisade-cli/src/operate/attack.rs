//! `palisade attack on|off|auto|status`.

use clap::{Args, Subcommand};
use http::Method;
use palisade_server::failure::{CommandStatus, Failure};
use serde_json::{Value, json};

use super::super::table::Table;
use super::Server;

const PATH: &str = "/admin/attack";

/// Sets and shows whether an attack tightens limits with `under_attack`.
#[derive(Debug, Args)]
pub(crate) struct Attack {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Tightens limits until `off` or `auto`, on every node within two seconds
    On(SetState),
    /// Tightens nothing, whatever is counted, until `on` or `auto`
    Off(SetState),
    /// Declares and ends attacks by what is counted
    Auto(SetState),
    Status(Status),
}

#[derive(Debug, Args)]
struct SetState {
    /// Class of requests, or `logins` [default: all]
    #[arg(long)]
    class: Option<String>,
    /// Reason, recorded in the audit
    #[arg(long)]
    reason: Option<String>,
    #[command(flatten)]
    server: Server,
}

/// Shows declared attacks, with the numbers that led to them, and what operators have set.
#[derive(Debug, Args)]
struct Status {
    #[command(flatten)]
    server: Server,
}

impl Attack {
    pub(crate) fn run(self) -> Result<CommandStatus, Failure> {
        match self.command {
            Command::On(state) => state.set("on"),
            Command::Off(state) => state.set("off"),
            Command::Auto(state) => state.set("auto"),
            Command::Status(status) => status.server.ask(Method::GET, PATH, None, shown),
        }
    }
}

impl SetState {
    fn set(self, mode: &str) -> Result<CommandStatus, Failure> {
        let mut body = json!({"mode": mode});
        for (name, value) in [("class", self.class), ("reason", self.reason)] {
            if let Some(value) = value {
                body[name] = json!(value);
            }
        }
        self.server.ask(Method::PUT, PATH, Some(&body), shown)
    }
}

fn shown(answer: &Value) -> String {
    let mut text = String::new();
    if answer["watched"] == false {
        text.push_str("no limit of the policy has `under_attack`: nothing is tightened\n");
    }
    let tightened = answer["tightened"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let classes: Vec<&str> = tightened.iter().filter_map(Value::as_str).collect();
    text.push_str(&match classes.is_empty() {
        true => "no class is under attack\n".to_owned(),
        false => format!("under attack: {}\n", classes.join(", ")),
    });
    text + &attacks(answer) + &settings(answer)
}

fn attacks(answer: &Value) -> String {
    let mut table = Table::new(["CLASS", "SINCE", "A MINUTE", "PREFIXES", "USUAL", "FROM"]);
    for attack in answer["attacks"].as_array().into_iter().flatten() {
        let text = |name: &str| attack[name].as_str().unwrap_or("-").to_owned();
        let number = |name: &str| attack[name].to_string();
        table.row([
            text("class"),
            text("since"),
            number("count"),
            number("prefixes"),
            number("usual"),
            number("threshold"),
        ]);
    }
    match table.is_empty() {
        true => String::new(),
        false => table.text(),
    }
}

fn settings(answer: &Value) -> String {
    let settings = answer["set"].as_array().into_iter().flatten();
    let lines = settings.map(|one| {
        let class = match one["class"].as_str() {
            Some("*") | None => "all classes",
            Some(class) => class,
        };
        let mode = one["mode"].as_str().unwrap_or("-");
        let reason = one["reason"].as_str().map(|why| format!(": {why}"));
        format!(
            "set by an operator: {class} {mode}{}\n",
            reason.unwrap_or_default()
        )
    });
    lines.collect()
}
