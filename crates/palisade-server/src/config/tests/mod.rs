//! The whole configuration, as an operator writes it.

mod errors;
mod layers;
mod reference;

use std::path::Path;

use palisade_policy::{ConfigErrors, Env, Loader, Overrides};

use super::{Config, ConfigLoader};

/// Reads a text as the content of `policy.toml`.
fn load(text: &str, env: &Env, flags: &Overrides) -> Result<Config, ConfigErrors> {
    let (env, flags) = (env.clone(), flags.clone());
    ConfigLoader { env, flags }.load(Path::new("policy.toml"), text, 1, &[])
}
