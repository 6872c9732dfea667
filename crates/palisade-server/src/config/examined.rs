//! All errors and warnings of a configuration at once, as `serve` would refuse or report them.
//! `check` and `doctor` use it, so that they agree about the same file.

use std::path::Path;

use palisade_policy::{ConfigError, Env, Overrides, Severity};

use super::ready::Ready;
use super::{Config, Draft, draft};

/// A configuration with everything that was found in it.
pub struct Examination {
    /// The configuration as far as it could be read; `None` if the file is missing or not TOML.
    pub draft: Option<Draft>,
    /// The parts of a service, as far as their tables could be read.
    pub ready: Option<Ready>,
    /// Errors and warnings, each with its place.
    pub found: Vec<ConfigError>,
}

impl Examination {
    /// Does everything that `serve` does before it touches anything. Needs a Tokio runtime.
    pub async fn of(path: Option<&Path>, env: &Env, flags: &Overrides) -> Self {
        let draft = match draft(path, env, flags) {
            Ok(draft) => draft,
            Err(errors) => {
                return Self {
                    draft: None,
                    ready: None,
                    found: errors.into_list(),
                };
            }
        };
        let (ready, refused) = Ready::of_draft(&draft, env).await;
        let mut found = draft.found();
        found.extend(refused);
        found.sort();
        found.dedup();
        Self {
            draft: Some(draft),
            ready,
            found,
        }
    }

    /// Returns the configuration that `serve` would start with, unless there is an error.
    pub fn config(&self) -> Option<&Config> {
        let draft = self.draft.as_ref();
        let is_error = |one: &ConfigError| one.severity == Severity::Error;
        draft
            .filter(|_| !self.found.iter().any(is_error))
            .map(Draft::config)
    }
}
