//! `palisade doctor`: everything that can be looked at from outside, and what to do about it.

mod figures;
mod finding;
mod here;
mod running;

use std::path::PathBuf;

use clap::Args;
use palisade_policy::{ConfigErrors, Env, Overrides};
use serde_json::json;

use super::offline;
use super::operate::Server;
use finding::{Findings, Weight};
use palisade_server::config::ready::Ready;
use palisade_server::config::{self, Config};
use palisade_server::failure::{Ending, Failure};
use palisade_server::output;

/// Looks for what is wrong, or soon will be, and says what to do about it.
///
/// The configuration, the permissions of data and secrets, the store (reachable, writable, its
/// clock), and of the running server: its dependencies, limits that nothing met in the last
/// hour, keys near their bounds. Ends with 1 if something was found.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Configuration file of the server
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The server's store, if a flag named it [default: as configured]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    #[command(flatten)]
    server: Server,
}

impl Doctor {
    pub(crate) fn run(self) -> Result<Ending, Failure> {
        let mut found = Findings::default();
        match self.read(&mut found) {
            Some((config, env)) => self.examine(&config, &env, &mut found)?,
            None => running::examine(&self.server, None, &mut found),
        }
        if self.server.prints_json() {
            output::json(&json!({ "healthy": found.is_healthy(), "findings": found.list }));
        } else {
            output::print(&found.text());
        }
        Ok(match found.is_healthy() {
            true => Ending::Done,
            false => Ending::Negative,
        })
    }

    fn read(&self, found: &mut Findings) -> Option<(Config, Env)> {
        let env = Env::from_process();
        let flags = Overrides::default().with("--store", "store.url", self.store.clone());
        match config::load(self.config.as_deref(), &env, &flags) {
            Ok(config) => Some((config, env)),
            Err(errors) => {
                refused(errors, found);
                None
            }
        }
    }

    fn examine(&self, config: &Config, env: &Env, found: &mut Findings) -> Result<(), Failure> {
        for warning in &config.warnings {
            let message = format!("{}: {}", warning.place, warning.message);
            let hint = warning.hint.clone().unwrap_or_default();
            found.add("configuration", Weight::Warning, message, hint);
        }
        let runtime = offline::runtime()?;
        let ready = runtime.block_on(Ready::of(config, env));
        here::permissions(config, found);
        match ready {
            Ok(ready) => {
                found.well("configuration", "what `serve` would start with");
                runtime.block_on(here::store(config, ready, found));
            }
            Err(errors) => refused(errors, found),
        }
        let scheme = config.tls.cert.as_ref().map_or("http", |_| "https");
        let server = self.server.clone();
        let server = server.or_at(format!("{scheme}://{}", config.server.admin));
        running::examine(&server, Some((config, env)), found);
        Ok(())
    }
}

fn refused(errors: ConfigErrors, found: &mut Findings) {
    for error in errors.into_list() {
        let message = format!("{}: {}", error.place, error.message);
        let hint = error.hint.unwrap_or_default();
        found.add("configuration", Weight::Error, message, hint);
    }
}
