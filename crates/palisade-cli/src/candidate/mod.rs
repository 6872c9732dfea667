//! `palisade candidate`: shows how the second policy compares, and makes it the first.

mod promote;
mod swap;

use clap::{Args, Subcommand};
use http::Method;
use palisade_server::failure::{CommandStatus, Failure};
use serde_json::Value;

use super::operate::Server;
use super::table::Table;

/// Path of a running server's report about its candidate.
const REPORT: &str = "/admin/candidate";
/// Most limits and most examples that are shown; `--json` has all.
const ROWS_MAX: usize = 20;
const EXAMPLES_MAX: usize = 10;

/// Compares the candidate policy of a running server with the live one, or makes it the
/// live one.
#[derive(Debug, Args)]
pub(crate) struct Candidate {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Shows how the candidate's decisions compare with the live ones since it was put in place.
    ///
    /// The exit code is 1 if there is no candidate.
    Status(Status),
    Promote(promote::Promote),
}

#[derive(Debug, Args)]
struct Status {
    #[command(flatten)]
    server: Server,
}

impl Candidate {
    pub(crate) fn run(self) -> Result<CommandStatus, Failure> {
        match self.action {
            Action::Status(status) => status.server.ask(Method::GET, REPORT, None, shown),
            Action::Promote(promote) => promote.run(),
        }
    }
}

/// Returns a report as text and columns.
fn shown(report: &Value) -> String {
    let verdicts = &report["verdicts"];
    let count = |name: &str| verdicts[name].as_u64().unwrap_or(0);
    let decided: u64 = verdicts
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(_, count)| count.as_u64())
        .sum();
    let mut text = format!(
        "{decided} decisions since {}: {} the same, {} newly denied, {} newly allowed, {} refused otherwise\n",
        report["since"].as_str().unwrap_or("-"),
        count("agrees"),
        count("newly_denied"),
        count("newly_allowed"),
        count("otherwise"),
    );
    if count("not_compared") > 0 {
        let line = "decided without the store and not compared";
        text.push_str(&format!("{} {line}\n", count("not_compared")));
    }
    if report["overflowed"].as_u64().unwrap_or(0) > 0 {
        text.push_str("the candidate has reached `candidate.keys_max`: it refuses more than it would; raise it\n");
    }
    text.push_str(&causes(&report["causes"]));
    text.push_str(&first(&report["first"]));
    text
}

fn causes(causes: &Value) -> String {
    let mut table = Table::new([
        "LIMIT OR RULE",
        "LIVE REFUSED",
        "CANDIDATE REFUSED",
        "NEWLY DENIED",
        "NEWLY ALLOWED",
    ]);
    for row in causes.as_array().into_iter().flatten().take(ROWS_MAX) {
        let number = |name: &str| row[name].as_u64().unwrap_or(0).to_string();
        table.row([
            word(&row["name"]),
            number("live"),
            number("candidate"),
            number("newly_denied"),
            number("newly_allowed"),
        ]);
    }
    part(&table)
}

fn first(first: &Value) -> String {
    let mut table = Table::new(["FIRST DIFFERENCES", "CHANGE", "ASKED", "BY", "SUBJECT"]);
    for one in first.as_array().into_iter().flatten().take(EXAMPLES_MAX) {
        let subject = word(&one["subject"]);
        table.row([
            word(&one["at"]),
            word(&one["verdict"]).replace('_', " "),
            word(&one["asked"]),
            word(&one["cause"]),
            subject.chars().take(12).collect(),
        ]);
    }
    part(&table)
}

fn part<const N: usize>(table: &Table<N>) -> String {
    match table.is_empty() {
        true => String::new(),
        false => format!("\n{}", table.text()),
    }
}

fn word(value: &Value) -> String {
    value.as_str().unwrap_or("-").to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_report_says_what_would_change_by_limit_and_for_whom() {
        let report = json!({"since": "2026-01-01T00:00:00.000Z", "overflowed": 1,
            "verdicts": {"agrees": 90, "newly_denied": 8, "newly_allowed": 2, "otherwise": 0, "not_compared": 0},
            "causes": [{"name": "reports", "live": 2, "candidate": 8, "newly_denied": 8, "newly_allowed": 2}],
            "first": [{"at": "2026-01-01T00:00:01.000Z", "verdict": "newly_denied", "asked": "reports",
                "cause": "L-IP reports", "subject": "0123456789abcdef0123456789abcdef"}]});
        insta::assert_snapshot!(shown(&report), @r"
        100 decisions since 2026-01-01T00:00:00.000Z: 90 the same, 8 newly denied, 2 newly allowed, 0 refused otherwise
        the candidate has reached `candidate.keys_max`: it refuses more than it would; raise it

        LIMIT OR RULE  LIVE REFUSED  CANDIDATE REFUSED  NEWLY DENIED  NEWLY ALLOWED
        reports        2             8                  8             2

        FIRST DIFFERENCES         CHANGE        ASKED    BY            SUBJECT
        2026-01-01T00:00:01.000Z  newly denied  reports  L-IP reports  0123456789ab
        ");
    }
}
