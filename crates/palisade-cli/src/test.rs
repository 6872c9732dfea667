//! `palisade test`: runs policy test cases.

use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use palisade::cases::{Mismatch, Replayer, parse_event_of};
use palisade_policy::{Env, Overrides};
use palisade_server::config::{self, Config};
use palisade_server::failure::{CommandStatus, Failure};
use palisade_server::output;
use serde_json::{Value, json};

use super::offline;

/// Runs policy test cases and prints the answers that differ.
///
/// Each file runs on a virtual clock with counters of its own. The exit code is 1 if any answer
/// differs.
#[derive(Debug, Args)]
pub(crate) struct Test {
    /// Files of JSON lines
    #[arg(required = true, value_name = "CASES")]
    files: Vec<PathBuf>,
    /// Configuration and policy file [default: the embedded policy]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The result of one file.
#[derive(Default)]
struct Tally {
    events: u64,
    failures: Vec<CaseFailure>,
}

struct CaseFailure {
    file: PathBuf,
    line: usize,
    mismatches: Vec<Mismatch>,
    /// The answer that was given instead.
    answer: Value,
}

impl Test {
    pub(crate) fn run(self) -> Result<CommandStatus, Failure> {
        let config = config::load(
            self.config.as_deref(),
            &Env::from_process(),
            &Overrides::default(),
        )?;
        let runtime = offline::runtime()?;
        let mut total = Tally::default();
        for file in &self.files {
            let tally = runtime.block_on(run_file(file, &config))?;
            total.events += tally.events;
            total.failures.extend(tally.failures);
        }
        if self.json {
            output::json(&total.as_json(self.files.len()));
        } else {
            output::print(&total.as_text(self.files.len()));
        }
        Ok(match total.failures.is_empty() {
            true => CommandStatus::Done,
            false => CommandStatus::Negative,
        })
    }
}

async fn run_file(file: &Path, config: &Config) -> Result<Tally, Failure> {
    let policy = config.policy();
    let slash = policy.settings.encoded_slash;
    let tenants = Arc::clone(&config.bundle.tenants);
    let mut replayer = Replayer::plain(Arc::clone(policy), tenants, offline::keyring()?);
    let mut tally = Tally::default();
    for (index, line) in offline::lines(file)?.lines().enumerate() {
        let line = line.map_err(|error| offline::unreadable(file, &error))?;
        if line.trim().is_empty() {
            continue;
        }
        let number = index + 1;
        let refused = |error: palisade::cases::CaseError| {
            Failure::usage(
                format!("{}:{number}: {error}", file.display()),
                "correct this line; every line is one JSON object with `at` and `op`",
            )
        };
        let event = parse_event_of(&line, slash).map_err(refused)?;
        let step = replayer.step(event).await.map_err(refused)?;
        tally.events += 1;
        if !step.mismatches.is_empty() {
            tally.failures.push(CaseFailure {
                file: file.to_owned(),
                line: number,
                mismatches: step.mismatches,
                answer: step.answer.unwrap_or_default(),
            });
        }
    }
    Ok(tally)
}

impl Tally {
    fn as_text(&self, files: usize) -> String {
        use std::fmt::Write;
        let mut text = String::new();
        for failure in &self.failures {
            let _ = writeln!(text, "{}:{}", failure.file.display(), failure.line);
            for mismatch in &failure.mismatches {
                let _ = writeln!(text, "  {}", mismatch.member);
                let _ = writeln!(text, "  - {}", mismatch.expected);
                let _ = writeln!(text, "  + {}", mismatch.given);
            }
            text.push_str(&why(&failure.answer));
        }
        let _ = writeln!(
            text,
            "{} events in {files} files, {} differ",
            self.events,
            self.failures.len()
        );
        text
    }

    fn as_json(&self, files: usize) -> Value {
        let failures: Vec<Value> = self
            .failures
            .iter()
            .map(|failure| {
                let members: Vec<Value> = failure
                    .mismatches
                    .iter()
                    .map(|m| json!({"member": m.member, "expected": m.expected, "given": m.given}))
                    .collect();
                json!({"file": failure.file, "line": failure.line, "mismatches": members,
                    "rule": failure.answer["rule"], "reasons": failure.answer["reasons"],
                    "limits": failure.answer["limits"]})
            })
            .collect();
        json!({"files": files, "events": self.events, "failures": failures})
    }
}

/// Returns what decided an answer: the rule, the reasons, and the readings of the buckets.
fn why(answer: &Value) -> String {
    use std::fmt::Write;
    let word = |value: &Value| match value {
        Value::Null => String::new(),
        Value::String(text) => format!(" {text}"),
        other => format!(" {other}"),
    };
    let mut text = String::new();
    let rule = answer["rule"].as_str().unwrap_or("no rule");
    let decision = answer["decision"].as_str().unwrap_or("-");
    let _ = writeln!(text, "  why: {decision} by {rule}");
    for reason in answer["reasons"].as_array().into_iter().flatten() {
        let parts = ["rule", "limit", "key", "decision", "level"].map(|name| word(&reason[name]));
        let wait = reason["retry_after"].as_u64();
        let wait = wait.map_or_else(String::new, |seconds| format!(", {seconds}s"));
        let _ = writeln!(text, "    reason:{}{wait}", parts.concat());
    }
    for limit in answer["limits"].as_array().into_iter().flatten() {
        let name = |key: &str| limit[key].as_str().unwrap_or("-").to_owned();
        let _ = writeln!(
            text,
            "    bucket: {} of each {}, class {}: {} of {} left",
            name("name"),
            name("scope"),
            name("class"),
            limit["remaining"],
            limit["limit"],
        );
    }
    text
}
