//! `palisade check`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use palisade::SystemClock;
use palisade::store::Vitals;
use palisade_core::time::{Clock, Micros};
use palisade_policy::{ConfigError, ConfigErrors, Env, Overrides, Severity};
use serde_json::{Value, json};

use super::offline;
use super::report::{self, Report};
use crate::config::ready::Ready;
use crate::config::{self, Config};
use crate::failure::{Ending, Failure};
use crate::output;
use crate::store::Opening;

/// Longest that a store or a policy source may take to answer `--connect`.
const PATIENCE: Duration = Duration::from_secs(10);

/// Checks a configuration and policy file: what this accepts, `serve` starts with.
///
/// Errors are printed with line, column, the line itself and a hint, all at once; the exit
/// code is then 1. Keys without effect and risky settings are warnings.
#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The file
    file: PathBuf,
    /// Take warnings for errors
    #[arg(long)]
    strict: bool,
    /// Also ask the store and the policy source whether they answer
    #[arg(long)]
    connect: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What was found.
struct Checked {
    config: Option<Config>,
    found: Vec<ConfigError>,
}

impl Check {
    pub(crate) fn run(self) -> Result<Ending, Failure> {
        let checked = offline::runtime()?.block_on(self.check())?;
        let errors = checked.count(Severity::Error);
        let warnings = checked.count(Severity::Warning);
        let is_refused = errors > 0 || (self.strict && warnings > 0);
        if self.json {
            output::json(&self.as_json(&checked, is_refused));
        } else {
            self.print(&checked, errors, warnings);
        }
        Ok(match is_refused {
            false => Ending::Done,
            true => Ending::Negative,
        })
    }

    /// Everything that `serve` does before it touches anything.
    async fn check(&self) -> Result<Checked, Failure> {
        let env = Env::from_process();
        let config = match config::load(Some(&self.file), &env, &Overrides::default()) {
            Ok(config) => config,
            Err(errors) => return Ok(Checked::refused(errors, Vec::new())),
        };
        match Ready::of(&config, &env).await {
            Ok(ready) => {
                if self.connect {
                    connect(ready, &config).await?;
                }
                let found = config.warnings.clone();
                Ok(Checked {
                    config: Some(config),
                    found,
                })
            }
            Err(errors) => Ok(Checked::refused(errors, config.warnings)),
        }
    }

    fn print(&self, checked: &Checked, errors: usize, warnings: usize) {
        let text = Report::new().text(&checked.found);
        if !text.is_empty() {
            output::error_line(text.trim_end());
        }
        let file = self.file.display();
        match &checked.config {
            Some(_) if self.strict && warnings > 0 => {
                let plural = if warnings == 1 { "" } else { "s" };
                let verdict = format!("{file}: {warnings} warning{plural}, refused by `--strict`");
                output::error_line(&verdict);
            }
            Some(config) => {
                let found = match warnings {
                    0 => "ok".to_owned(),
                    1 => "ok, with 1 warning".to_owned(),
                    more => format!("ok, with {more} warnings"),
                };
                output::line(&format!("{file}: {found}: {}", summary(config)));
            }
            None => {
                let plural = if errors == 1 { "" } else { "s" };
                output::error_line(&format!("{file}: {errors} error{plural}"));
            }
        }
    }

    fn as_json(&self, checked: &Checked, is_refused: bool) -> Value {
        let (errors, warnings): (Vec<_>, Vec<_>) = checked
            .found
            .iter()
            .cloned()
            .partition(|error| error.severity == Severity::Error);
        let mut answer = json!({
            "valid": !is_refused,
            "errors": report::as_json(&errors),
            "warnings": report::as_json(&warnings),
        });
        if let Some(config) = &checked.config {
            let policy = config.policy();
            answer["enabled"] = json!(policy.enabled);
            answer["limits"] = json!(policy.limits().len());
            answer["routes"] = json!(policy.routes().iter().count());
        }
        answer
    }
}

impl Checked {
    fn refused(errors: ConfigErrors, warnings: Vec<ConfigError>) -> Self {
        let mut found = errors.into_list();
        found.extend(warnings);
        found.sort();
        Self {
            config: None,
            found,
        }
    }

    fn count(&self, severity: Severity) -> usize {
        let same = |error: &&ConfigError| error.severity == severity;
        self.found.iter().filter(same).count()
    }
}

fn summary(config: &Config) -> String {
    let policy = config.policy();
    format!(
        "{} limits, {} routes",
        policy.limits().len(),
        policy.routes().iter().count()
    )
}

/// Asks what the service depends on. The embedded store belongs to the service that runs,
/// and is left alone.
async fn connect(ready: Ready, config: &Config) -> Result<(), Failure> {
    if !matches!(ready.store, Opening::Memory(_) | Opening::Embedded(..)) {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let store = ready.store.open(&clock).await?;
        probe(&store).await?;
    }
    ready.tenants.fetch(&config.source, NOBODY).await?;
    Ok(())
}

/// A tenant that nobody has: whether the source answers is all that is asked.
const NOBODY: &str = "palisade-check";

/// Asks a store for a sign of life; its clock.
pub(super) async fn probe(store: &impl Vitals) -> Result<Micros, Failure> {
    let probed = tokio::time::timeout(PATIENCE, store.probe()).await;
    let why = match probed {
        Ok(Ok(now)) => return Ok(now),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no answer in time".to_owned(),
    };
    let hint = "is it running, and are address and credentials right? see `store.url`";
    Err(Failure::unavailable(format!("the store: {why}"), hint))
}
