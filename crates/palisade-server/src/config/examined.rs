//! Everything that `serve` would refuse, and what should be looked at, all at once: `check` and
//! `doctor` say the same of the same file.

use std::path::Path;

use palisade_policy::{ConfigError, Env, Overrides, Severity};

use super::ready::Ready;
use super::{Config, Draft, draft};

/// A configuration that was looked at as a whole.
pub struct Examined {
    /// What could be read of it; nothing of a file that is not there or is no TOML.
    pub draft: Option<Draft>,
    /// What a service would be made of, as far as its tables could be read.
    pub ready: Option<Ready>,
    /// Errors and warnings, each with its place.
    pub found: Vec<ConfigError>,
}

impl Examined {
    /// Does all that `serve` does before it touches anything. Needs a Tokio runtime.
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

    /// What `serve` would start with: nothing of it is refused.
    pub fn config(&self) -> Option<&Config> {
        let draft = self.draft.as_ref();
        let is_error = |one: &ConfigError| one.severity == Severity::Error;
        draft
            .filter(|_| !self.found.iter().any(is_error))
            .map(Draft::config)
    }
}
