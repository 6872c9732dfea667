//! `palisade replay`.

mod combined;

use std::collections::BTreeMap;
use std::io::{BufRead, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use palisade::cases::{Event, Replayer, parse_event};
use palisade_core::policy::PolicySet;
use palisade_policy::{Env, Overrides};
use serde_json::{Value, json};

use super::offline;
use crate::config;
use crate::failure::{Ending, Failure};
use crate::output;

/// Runs recorded events or an access log through a policy on a virtual clock.
///
/// One decision per line, then a summary. With `--against`, only events that the
/// other policy would treat differently are printed.
#[derive(Debug, Args)]
pub(crate) struct Replay {
    /// The file
    #[arg(value_name = "EVENTS")]
    events: PathBuf,
    /// Configuration and policy file [default: the embedded policy]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A second policy to compare with
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// How the file is written
    #[arg(long, value_enum, default_value = "jsonl")]
    format: Format,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// One JSON object a line, as `palisade test` reads them
    Jsonl,
    /// An access log in the combined or common format of Apache and nginx
    Combined,
}

/// What an event led to under one policy.
#[derive(Clone, PartialEq)]
struct Outcome {
    decision: String,
    rule: Option<String>,
    mode: String,
    retry_after: Option<u64>,
    /// What a flow of the guard in shadow mode would have answered.
    shadow: Option<String>,
}

#[derive(Default)]
struct Summary {
    events: u64,
    decisions: BTreeMap<String, u64>,
    rules: BTreeMap<String, u64>,
    modes: BTreeMap<String, u64>,
    differ: u64,
    /// Lines of an access log that are no requests.
    skipped: u64,
}

impl Replay {
    pub(crate) fn run(self) -> Result<Ending, Failure> {
        let policy = load(self.config.as_deref())?;
        let against = self.against.as_deref().map(|path| load(Some(path)));
        let against = against.transpose()?;
        let summary = offline::runtime()?.block_on(self.replay(policy, against))?;
        self.print_summary(&summary);
        Ok(Ending::Done)
    }

    async fn replay(
        &self,
        policy: Arc<PolicySet>,
        against: Option<Arc<PolicySet>>,
    ) -> Result<Summary, Failure> {
        let mut one = Replayer::new(policy, offline::keyring()?);
        let mut other = match against {
            Some(policy) => Some(Replayer::new(policy, offline::keyring()?)),
            None => None,
        };
        let progress = progress(&self.events);
        let mut summary = Summary::default();
        let mut last_at = None;
        for (index, line) in offline::lines(&self.events)?.lines().enumerate() {
            let line = line.map_err(|error| offline::unreadable(&self.events, &error))?;
            progress.inc(line.len() as u64 + 1);
            if line.trim().is_empty() {
                continue;
            }
            let refused = |error: palisade::cases::CaseError| {
                Failure::usage(
                    format!("{}:{}: {error}", self.events.display(), index + 1),
                    "correct this line; every line is one JSON object with `at` and `op` (for an access log say `--format combined`)",
                )
            };
            let event = match self.format {
                Format::Jsonl => parse_event(&line).map_err(refused)?,
                Format::Combined => match combined::parse(&line, last_at) {
                    Some(event) => event,
                    None => {
                        summary.skipped += 1;
                        continue;
                    }
                },
            };
            last_at = Some(event.at);
            let at = event.at.to_rfc3339();
            let given = step(&mut one, event.clone()).await.map_err(refused)?;
            let compared = match &mut other {
                Some(other) => Some(step(other, event).await.map_err(refused)?),
                None => None,
            };
            if let Some(given) = given {
                self.print_step(index + 1, &at, &given, compared.flatten(), &mut summary);
            }
        }
        progress.finish_and_clear();
        Ok(summary)
    }

    fn print_step(
        &self,
        line: usize,
        at: &str,
        given: &Outcome,
        other: Option<Outcome>,
        summary: &mut Summary,
    ) {
        summary.count(given);
        match other {
            None => output::line(&given.show(self.json, line, at)),
            Some(other) if other != *given => {
                summary.differ += 1;
                if self.json {
                    output::json(&json!({"line": line, "at": at,
                        "policy": given.as_json(), "against": other.as_json()}));
                } else {
                    output::line(&format!("{line} {at} {given} → {other}"));
                }
            }
            Some(_) => {}
        }
    }

    fn print_summary(&self, summary: &Summary) {
        if self.json {
            output::json(&json!({"summary": {"events": summary.events,
                "decisions": summary.decisions, "rules": summary.rules,
                "modes": summary.modes, "differ": summary.differ, "skipped": summary.skipped}}));
            return;
        }
        let list = |counts: &BTreeMap<String, u64>| {
            let shown: Vec<String> = counts.iter().map(|(k, n)| format!("{k} {n}")).collect();
            shown.join(", ")
        };
        output::line(&format!(
            "{} events: {}",
            summary.events,
            list(&summary.decisions)
        ));
        if !summary.rules.is_empty() {
            output::line(&format!("rules: {}", list(&summary.rules)));
        }
        output::line(&format!("modes: {}", list(&summary.modes)));
        if summary.skipped > 0 {
            output::line(&format!("{} lines are no requests", summary.skipped));
        }
        if self.against.is_some() {
            output::line(&format!("{} would be treated differently", summary.differ));
        }
    }
}

fn load(path: Option<&Path>) -> Result<Arc<PolicySet>, Failure> {
    let config = config::load(path, &Env::from_process(), &Overrides::default())?;
    Ok(Arc::clone(config.policy()))
}

/// A bar over the file's bytes, on a terminal only.
fn progress(file: &Path) -> ProgressBar {
    let bytes = std::fs::metadata(file).map_or(0, |meta| meta.len());
    if !std::io::stderr().is_terminal() || std::io::stdout().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {percent}% {eta}");
    ProgressBar::new(bytes).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

async fn step(
    replayer: &mut Replayer,
    event: Event,
) -> Result<Option<Outcome>, palisade::cases::CaseError> {
    let step = replayer.step(event).await?;
    Ok(step.answer.map(|answer| Outcome::of(&answer)))
}

/// The decision and rule that shadow mode hid.
fn shadow_of(shadow: &Value) -> Option<String> {
    let decision = shadow["decision"].as_str()?;
    let rule = shadow["rule"].as_str().map(|rule| format!(" {rule}"));
    Some(format!("{decision}{}", rule.unwrap_or_default()))
}

impl Outcome {
    fn of(answer: &Value) -> Self {
        let text = |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
        Self {
            decision: text("decision"),
            rule: answer["rule"].as_str().map(str::to_owned),
            mode: text("mode"),
            retry_after: answer["retry_after"].as_u64(),
            shadow: shadow_of(&answer["shadow"]),
        }
    }

    fn as_json(&self) -> Value {
        let mut shown = json!({"decision": self.decision, "rule": self.rule,
            "mode": self.mode, "retry_after": self.retry_after});
        if let Some(shadow) = &self.shadow {
            shown["shadow"] = json!(shadow);
        }
        shown
    }

    fn show(&self, as_json: bool, line: usize, at: &str) -> String {
        if !as_json {
            return format!("{line} {at} {self}");
        }
        let mut shown = self.as_json();
        shown["line"] = json!(line);
        shown["at"] = json!(at);
        shown.to_string()
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.decision)?;
        if let Some(rule) = &self.rule {
            write!(f, " {rule}")?;
        }
        if let Some(seconds) = self.retry_after {
            write!(f, " {seconds}s")?;
        }
        if self.mode != "normal" {
            write!(f, " ({})", self.mode)?;
        }
        if let Some(shadow) = &self.shadow {
            write!(f, " (shadow: {shadow})")?;
        }
        Ok(())
    }
}

impl Summary {
    fn count(&mut self, outcome: &Outcome) {
        self.events += 1;
        *self.decisions.entry(outcome.decision.clone()).or_default() += 1;
        *self.modes.entry(outcome.mode.clone()).or_default() += 1;
        if let Some(rule) = &outcome.rule {
            *self.rules.entry(rule.clone()).or_default() += 1;
        }
    }
}
