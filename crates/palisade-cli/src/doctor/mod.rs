//! `palisade doctor`: examines everything that is visible from outside, and says what to do about
//! it.

mod figures;
mod finding;
mod form;
mod here;
mod login;
mod running;

use std::path::PathBuf;

use clap::Args;
use palisade_policy::{ConfigError, Env, Overrides, Severity};
use palisade_server::config::Draft;
use palisade_server::config::examined::Examination;
use palisade_server::failure::{CommandStatus, Failure};
use palisade_server::output;
use serde_json::json;

use super::offline;
use super::operate::Server;
use finding::{Findings, Weight};

/// Looks for present and coming problems, and says what to do about each.
///
/// Examines the configuration, the permissions of data and secrets, and the store (reachable,
/// writable, its clock). Of a running server it examines the dependencies, limits that no request
/// met in the last hour, and bounds that are nearly reached. The exit code is 1 if there is a
/// finding.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Configuration file of the server
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The server's store, if `serve` got it as a flag [default: as configured]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Path of a login route: sends one attempt that cannot succeed through the proxy, and shows
    /// which outcome the proxy read
    #[arg(long, value_name = "PATH")]
    login: Option<String>,
    /// The proxy's address for `--login` [default: as configured]
    #[arg(long, value_name = "ADDRESS", requires = "login")]
    proxy: Option<String>,
    #[command(flatten)]
    server: Server,
}

impl Doctor {
    pub(crate) fn run(self) -> Result<CommandStatus, Failure> {
        let mut found = Findings::default();
        self.examine(&mut found)?;
        if self.server.prints_json() {
            output::json(&json!({ "healthy": found.is_healthy(), "findings": found.list }));
        } else {
            output::print(&found.text());
        }
        Ok(match found.is_healthy() {
            true => CommandStatus::Done,
            false => CommandStatus::Negative,
        })
    }

    fn examine(&self, found: &mut Findings) -> Result<(), Failure> {
        let (env, runtime) = (Env::from_process(), offline::runtime()?);
        let flags = Overrides::default().with("--store", "store.url", self.store.clone());
        let examined = Examination::of(self.config.as_deref(), &env, &flags);
        let mut examined = runtime.block_on(examined);
        examined.found.iter().for_each(|one| configured(one, found));
        let ready = examined.ready.take();
        // Nothing is known of refused tables, so the server's address is unknown too.
        let whole = examined.draft.as_ref().filter(|draft| draft.is_whole());
        let Some(config) = whole.map(Draft::config) else {
            running::examine(&self.server, None, found);
            if self.login.is_some() {
                let todo = "correct the configuration first, and pass it as --config";
                found.add("login", Weight::Error, "its route is not known", todo);
            }
            return Ok(());
        };
        here::permissions(config, found);
        if let Some(ready) = ready.filter(|_| examined.config().is_some()) {
            found.well("configuration", "what `serve` would start with");
            runtime.block_on(here::store(config, ready, found));
        }
        let scheme = config.tls.cert.as_ref().map_or("http", |_| "https");
        let server = self.server.clone();
        let server = server.or_at(format!("{scheme}://{}", config.server.admin));
        running::examine(&server, Some((config, &env)), found);
        if let Some(path) = &self.login {
            login::examine(path, self.proxy.as_deref(), config, &server, found);
        }
        Ok(())
    }
}

fn configured(one: &ConfigError, found: &mut Findings) {
    let weight = match one.severity {
        Severity::Error => Weight::Error,
        Severity::Warning => Weight::Warning,
    };
    let message = format!("{}: {}", one.place, one.message);
    let hint = one.hint.clone().unwrap_or_default();
    found.add("configuration", weight, message, hint);
}
