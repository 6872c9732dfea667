//! `palisade check`: checks a configuration and policy file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use palisade::SystemClock;
use palisade::store::Store;
use palisade_core::policy::Limit;
use palisade_core::time::{Clock, Micros};
use palisade_policy::{ConfigError, Env, Overrides, Place, Severity};
use palisade_server::config::examined::Examination;
use palisade_server::config::ready::Ready;
use palisade_server::config::{self, Config, Draft};
use palisade_server::failure::{CommandStatus, Failure};
use palisade_server::output;
use palisade_server::store::PreparedStore;
use palisade_server::store::risks::{self, StoreRisk};
use serde_json::{Value, json};

use super::offline;
use super::report::{self, Report};

/// Longest that a store or a policy source may take to answer `--connect`.
const PATIENCE: Duration = Duration::from_secs(10);

/// Checks a configuration and policy file. `serve` starts with any file that passes.
///
/// All errors are printed at once, each with its line, column and a hint; the exit code is then 1.
/// Keys without effect and risky settings are warnings. The exit code is 3 if the only problem is a
/// service that does not answer `--connect`.
#[derive(Debug, Args)]
pub(crate) struct Check {
    /// File to check
    file: PathBuf,
    /// Treat warnings as errors
    #[arg(long)]
    strict: bool,
    /// File that this one is to replace: also warn of limits that would lose their counts
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// Also check that the store and the policy source answer
    #[arg(long)]
    connect: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Results of the check.
struct CheckResults {
    examined: Examination,
    /// Services that did not answer.
    unavailable: Vec<Failure>,
    /// Risks in the store's own settings.
    risks: Vec<StoreRisk>,
}

impl Check {
    pub(crate) fn run(self) -> Result<CommandStatus, Failure> {
        let env = Env::from_process();
        let before = self.against.as_deref().map(|path| load(path, &env));
        let before = before.transpose()?;
        let checked = offline::runtime()?.block_on(self.check(&env, before.as_ref()));
        let errors = checked.count(Severity::Error);
        let warnings = checked.count(Severity::Warning) + checked.risks.len();
        let is_refused = errors > 0 || (self.strict && warnings > 0);
        if self.json {
            output::json(&self.as_json(&checked, is_refused));
        } else {
            self.print(&checked, errors, warnings);
        }
        Ok(match (is_refused, checked.unavailable.is_empty()) {
            (true, _) => CommandStatus::Negative,
            (false, false) => CommandStatus::Unavailable,
            (false, true) => CommandStatus::Done,
        })
    }

    async fn check(&self, env: &Env, before: Option<&Config>) -> CheckResults {
        let mut examined = Examination::of(Some(&self.file), env, &Overrides::default()).await;
        if let Some((config, before)) = examined.config().zip(before) {
            let forgotten = forgotten(config, before);
            examined.found.extend(forgotten);
            examined.found.sort();
        }
        let ready = examined.ready.take().filter(|_| self.connect);
        let (unavailable, risks) = match ready.zip(examined.draft.as_ref()) {
            Some((ready, draft)) => connect(ready, draft).await,
            None => Default::default(),
        };
        CheckResults {
            examined,
            unavailable,
            risks,
        }
    }

    fn print(&self, checked: &CheckResults, errors: usize, warnings: usize) {
        let text = Report::new().text(&checked.examined.found);
        if !text.is_empty() {
            output::error_line(text.trim_end());
        }
        for risk in &checked.risks {
            let warning = format!("warning: {}\n  help: {}", risk.message, risk.hint);
            output::error_line(&warning);
        }
        for failure in &checked.unavailable {
            output::error_line(&failure.to_string());
        }
        let file = self.file.display();
        match checked.examined.config() {
            Some(_) if self.strict && warnings > 0 => {
                let plural = if warnings == 1 { "" } else { "s" };
                let verdict = format!("{file}: {warnings} warning{plural}, refused by `--strict`");
                output::error_line(&verdict);
            }
            Some(_) if !checked.unavailable.is_empty() => {
                output::error_line(&format!("{file}: a service that it names does not answer"));
            }
            Some(config) => {
                let found = match warnings {
                    0 => "ok".to_owned(),
                    1 => "ok, with 1 warning".to_owned(),
                    more => format!("ok, with {more} warnings"),
                };
                output::line(&format!("{file}: {found}: {}", summary(config)));
                for pattern in guarded_scripts(config) {
                    output::line(&format!(
                        "{pattern} guards what follows it too ({pattern}/…): servers run a script \
                         for such paths"
                    ));
                }
            }
            None => {
                let plural = if errors == 1 { "" } else { "s" };
                output::error_line(&format!("{file}: {errors} error{plural}"));
            }
        }
    }

    fn as_json(&self, checked: &CheckResults, is_refused: bool) -> Value {
        let found = &checked.examined.found;
        let (errors, warnings): (Vec<_>, Vec<_>) = found
            .iter()
            .cloned()
            .partition(|error| error.severity == Severity::Error);
        let mut answer = json!({
            "valid": !is_refused,
            "errors": report::as_json(&errors),
            "warnings": report::as_json(&warnings),
        });
        if self.connect {
            let one =
                |failure: &Failure| json!({"message": failure.message(), "hint": failure.hint()});
            answer["unavailable"] = checked.unavailable.iter().map(one).collect();
            let one = |risk: &StoreRisk| json!({"message": risk.message, "hint": risk.hint});
            answer["store_risks"] = checked.risks.iter().map(one).collect();
        }
        if let Some(config) = checked.examined.config() {
            let policy = config.policy();
            answer["enabled"] = json!(policy.enabled);
            answer["limits"] = json!(policy.limits().len());
            answer["routes"] = json!(policy.routes().iter().count());
            answer["guarded_scripts"] = guarded_scripts(config).collect();
        }
        answer
    }
}

impl CheckResults {
    fn count(&self, severity: Severity) -> usize {
        let same = |error: &&ConfigError| error.severity == severity;
        self.examined.found.iter().filter(same).count()
    }
}

fn load(path: &Path, env: &Env) -> Result<Config, Failure> {
    Ok(config::load(Some(path), env, &Overrides::default())?)
}

/// Warns of limits that start anew when `config` replaces `before`.
fn forgotten(config: &Config, before: &Config) -> Vec<ConfigError> {
    let limits = config.policy().limits_starting_anew(before.policy());
    let warning = |(limit, key): (&Limit, &str)| {
        let keys = [
            format!("limit.{}.{key}", limit.name),
            format!("limit.{}", limit.name),
        ];
        let places = keys.iter().map(|key| config.places.of_key(key));
        let place = places.into_iter().find(|place| *place != Place::Nowhere);
        ConfigError::warning(
            place.unwrap_or(Place::Nowhere),
            format!(
                "`{}` starts anew: its `{key}` changes, and what was used is forgotten",
                limit.name
            ),
            "add the new limit under another name, and remove the old one a window later",
        )
    };
    limits.map(warning).collect()
}

fn summary(config: &Config) -> String {
    let policy = config.policy();
    format!(
        "{} limits, {} routes",
        policy.limits().len(),
        policy.routes().iter().count()
    )
}

/// Login routes of scripts, whose guard also covers what follows their paths.
fn guarded_scripts(config: &Config) -> impl Iterator<Item = &str> {
    let routes = config.bundle.outcomes.all().iter();
    let scripts = routes.filter(|login| login.route.names_script());
    scripts.map(|login| login.route.pattern())
}

/// Asks the services that the configuration depends on, as far as its tables could be read.
/// Returns those that do not answer, and the risks in the store's settings.
async fn connect(ready: Ready, draft: &Draft) -> (Vec<Failure>, Vec<StoreRisk>) {
    let source = &draft.config().source;
    let (store, tenants) = tokio::join!(reach(ready.store), ready.tenants.fetch(source, NOBODY));
    let (store, risks) = match store {
        Ok(risks) => (Ok(()), risks),
        Err(failure) => (Err(failure), Vec::new()),
    };
    let asked = [("store", store), ("policy", tenants.map(|_| ()))];
    let known = asked
        .into_iter()
        .filter(|(table, _)| !draft.refused().contains(table));
    (known.filter_map(|(_, asked)| asked.err()).collect(), risks)
}

/// Probes a store. The embedded one belongs to the running service, and is left alone.
async fn reach(store: PreparedStore) -> Result<Vec<StoreRisk>, Failure> {
    if matches!(
        store,
        PreparedStore::Memory(_) | PreparedStore::Embedded(..)
    ) {
        return Ok(Vec::new());
    }
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let store = store.open(&clock).await?;
    probe(&*store).await?;
    let found = store.stats().risks;
    Ok(found
        .map(|found| risks::of(found).collect())
        .unwrap_or_default())
}

/// A tenant that does not exist: the only question is whether the source answers.
const NOBODY: &str = "palisade-check";

/// Probes a store; returns its clock.
pub(super) async fn probe(store: &dyn Store) -> Result<Micros, Failure> {
    let asked = async {
        // On a long path, connecting may take longer than a call: connect first.
        let _ = store.connect().await;
        store.probe().await
    };
    let probed = tokio::time::timeout(PATIENCE, asked).await;
    let why = match probed {
        Ok(Ok(now)) => return Ok(now),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no answer in time".to_owned(),
    };
    let hint = "is it running, and are address and credentials right? see `store.url`";
    Err(Failure::unavailable(format!("the store: {why}"), hint))
}
