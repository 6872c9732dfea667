//! `palisade check`.

use std::path::PathBuf;

use clap::Args;
use palisade_policy::{ConfigErrors, Env, Overrides, Place};
use serde_json::{Value, json};

use super::offline;
use crate::config::ready::Ready;
use crate::config::{self, Config};
use crate::failure::{Ending, Failure};
use crate::output;

/// Validates a configuration and policy file.
///
/// Errors are printed with line, column and a hint; the exit code is then 1.
#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The file
    file: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Check {
    pub(crate) fn run(self) -> Result<Ending, Failure> {
        let runtime = offline::runtime()?;
        let checked = runtime.block_on(self.check());
        match (&checked, self.json) {
            (Ok(config), false) => output::line(&summary(&self.file.display().to_string(), config)),
            (Ok(config), true) => output::json(&accepted(config)),
            (Err(errors), false) => output::error_line(&errors.to_string()),
            (Err(errors), true) => output::json(&refused(errors)),
        }
        Ok(match checked {
            Ok(_) => Ending::Done,
            Err(_) => Ending::Negative,
        })
    }

    /// Everything that `serve` does before it touches anything.
    async fn check(&self) -> Result<Config, ConfigErrors> {
        let env = Env::from_process();
        let config = config::load(Some(&self.file), &env, &Overrides::default())?;
        Ready::of(&config, &env).await?;
        Ok(config)
    }
}

fn summary(file: &str, config: &Config) -> String {
    let policy = config.policy();
    let warnings: String = warnings(config)
        .iter()
        .map(|warning| format!("\nwarning: {warning}"))
        .collect();
    format!(
        "{file}: ok: {} limits, {} routes{warnings}",
        policy.limits().len(),
        policy.routes().iter().count()
    )
}

/// What is allowed and probably not meant.
fn warnings(config: &Config) -> Vec<String> {
    let policy = config.policy();
    let off = (!policy.enabled).then(|| "enforcement is switched off".to_owned());
    let laxer = policy.settings.guard.laxer_otp_figures().into_iter();
    let laxer = laxer.map(|figure| {
        format!(
            "`guard.otp.{figure}` is laxer than `guard.login.{figure}`: a one-time code is \
             easier to guess than a password"
        )
    });
    off.into_iter().chain(laxer).collect()
}

fn accepted(config: &Config) -> Value {
    let policy = config.policy();
    json!({
        "valid": true,
        "enabled": policy.enabled,
        "limits": policy.limits().len(),
        "routes": policy.routes().iter().count(),
        "warnings": warnings(config),
        "errors": [],
    })
}

fn refused(errors: &ConfigErrors) -> Value {
    let list: Vec<Value> = errors
        .errors()
        .iter()
        .map(|error| {
            let (line, column) = match &error.place {
                Place::File { line, column, .. } => (Some(line), Some(column)),
                _ => (None, None),
            };
            json!({
                "place": error.place.to_string(),
                "line": line,
                "column": column,
                "message": error.message,
                "hint": error.hint,
            })
        })
        .collect();
    json!({ "valid": false, "errors": list })
}
