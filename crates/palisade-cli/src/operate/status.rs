//! `palisade status`: reports the health of a running server.

use std::fmt::Write;

use clap::Args;
use http::Method;
use palisade_server::failure::{CommandStatus, Failure};
use palisade_server::output;
use serde_json::{Value, json};

use super::Server;

/// Shows the health of a running server and of its dependencies.
///
/// The exit code is 1 if the server is not ready, if its store or policy source is down, or if a
/// mode is not `normal`.
#[derive(Debug, Args)]
pub(crate) struct Status {
    #[command(flatten)]
    server: Server,
    /// Only ask whether the server should get traffic; needs no token. For health checks of
    /// containers
    #[arg(long)]
    ready: bool,
}

impl Status {
    pub(crate) fn run(self) -> Result<CommandStatus, Failure> {
        if self.ready {
            return self.readiness();
        }
        let path = "/health/dependencies";
        self.server.ask_then(Method::GET, path, None, shown, ending)
    }

    fn readiness(&self) -> Result<CommandStatus, Failure> {
        let (status, _) = self.server.text("/health/ready")?;
        let is_ready = status.is_success();
        match self.server.prints_json() {
            true => output::json(&json!({ "ready": is_ready })),
            false => output::line(if is_ready { "ready" } else { "not ready" }),
        }
        Ok(match is_ready {
            true => CommandStatus::Done,
            false => CommandStatus::Negative,
        })
    }
}

fn ending(answer: &Value) -> CommandStatus {
    let is_down = |name: &str| answer[name]["state"] == "down";
    let is_normal = pairs(&answer["modes"]).all(|(_, mode)| mode == "normal");
    match answer["ready"] == true && !is_down("store") && !is_down("policy") && is_normal {
        true => CommandStatus::Done,
        false => CommandStatus::Negative,
    }
}

fn shown(answer: &Value) -> String {
    let mut text = String::new();
    let mut row = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<11}{value}");
    };
    row(
        "ready",
        if answer["ready"] == true { "yes" } else { "no" }.to_owned(),
    );
    row(
        "store",
        dependency(&answer["store"]) + &latency(&answer["store"]),
    );
    let policy = &answer["policy"];
    row(
        "policy",
        format!(
            "{} ({}, revision {}, {} tenants known)",
            dependency(policy),
            policy["source"].as_str().unwrap_or("-"),
            policy["revision"],
            policy["cached"],
        ),
    );
    for (name, mode) in pairs(&answer["modes"]) {
        let mut circuits = pairs(&answer["circuits"]);
        let circuit = circuits.find(|(other, _)| *other == name);
        let circuit = circuit.map_or("-", |(_, state)| state);
        row("mode", format!("{name} {mode}, circuit {circuit}"));
    }
    row("level", format!("{} of 3", answer["degradation_level"]));
    text
}

/// Returns the pairs of a list, such as the name and the mode of each failure policy.
fn pairs(list: &Value) -> impl Iterator<Item = (&str, &str)> {
    let pairs = list.as_array().into_iter().flatten();
    pairs.map(|pair| {
        let text = |at: usize| pair[at].as_str().unwrap_or("-");
        (text(0), text(1))
    })
}

fn dependency(report: &Value) -> String {
    let state = report["state"].as_str().unwrap_or("unknown");
    let error = report["last_error"].as_str();
    match (report["since"].as_str(), error) {
        (Some(since), Some(error)) => format!("{state} since {since}: {error}"),
        (Some(since), None) => format!("{state} since {since}"),
        (None, Some(error)) => format!("{state}, last failure: {error}"),
        (None, None) => state.to_owned(),
    }
}

fn latency(report: &Value) -> String {
    match (report["p50_us"].as_u64(), report["p99_us"].as_u64()) {
        (Some(p50), Some(p99)) => format!(", p50 {p50} µs, p99 {p99} µs"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_is_down_is_said_with_its_cause_and_ends_with_1() {
        let mut answer = json!({
            "ready": true, "degradation_level": 2,
            "store": {"state": "down", "since": "2026-01-01T00:00:00Z", "last_error": "unreachable", "p50_us": null, "p99_us": null},
            "policy": {"state": "up", "source": "file", "revision": 1, "cached": 0, "since": null, "last_error": null},
            "circuits": [["login", "open"]], "modes": [["login", "normal"]],
        });
        assert_eq!(ending(&answer), CommandStatus::Negative);
        insta::assert_snapshot!(shown(&answer), @r"
        ready      yes
        store      down since 2026-01-01T00:00:00Z: unreachable
        policy     up (file, revision 1, 0 tenants known)
        mode       login normal, circuit open
        level      2 of 3
        ");
        answer["store"] = json!({"state": "up", "since": null, "last_error": "unreachable", "p50_us": 90, "p99_us": 300});
        assert_eq!(ending(&answer), CommandStatus::Done);
        assert!(shown(&answer).contains("store      up, last failure: unreachable, p50 90 µs"));
    }

    #[test]
    fn a_policy_that_refuses_everything_on_a_store_that_is_up_ends_with_1() {
        let up = json!({"state": "up", "since": null, "last_error": null});
        let mut answer = json!({
            "ready": true, "degradation_level": 0, "store": up.clone(), "policy": up,
            "circuits": [["login", "closed"], ["otp", "closed"]],
            "modes": [["login", "fail_closed"], ["otp", "normal"]],
        });
        assert_eq!(ending(&answer), CommandStatus::Negative);
        let said = shown(&answer);
        assert!(
            said.contains("mode       login fail_closed, circuit closed\n"),
            "{said}"
        );
        assert!(
            said.contains("mode       otp normal, circuit closed\n"),
            "{said}"
        );
        answer["modes"][0][1] = json!("normal");
        assert_eq!(ending(&answer), CommandStatus::Done);
    }
}
