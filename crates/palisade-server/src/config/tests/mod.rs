//! The whole configuration, as an operator writes it.

mod errors;
mod layers;
mod reference;

use std::path::Path;

use palisade_policy::document::Input;
use palisade_policy::{ConfigErrors, Env, Overrides};

use super::Config;

/// Reads a configuration that is already in memory, as if it stood in `path`.
fn load_text(
    path: &Path,
    text: &str,
    env: &Env,
    flags: &Overrides,
) -> Result<Config, ConfigErrors> {
    let input = Input {
        path: Some(path),
        text,
        env,
        flags,
    };
    super::load_revision(input, 1)
}
