//! The configuration: the tables of the service and of the policy.
//!
//! `sections` declares the tables, `draft` reads as much as possible, `agree` checks tables that
//! must fit each other, `ready` builds the parts of a service before it touches anything, and
//! `examined` reports everything that is wrong with any of it.

mod agree;
mod draft;
pub mod examined;
pub mod ready;
#[cfg(test)]
mod reference;
mod risks;
mod sections;
#[cfg(test)]
mod tests;
mod values;
pub mod words;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use palisade_core::policy::PolicySet;
use palisade_policy::document::{Figure, Input, Places};
use palisade_policy::geo::GeoFile;
use palisade_policy::{
    ConfigError, ConfigErrors, Env, FileSource, Loader, Overrides, PolicyBundle, PolicyTable,
};

use crate::serve::edge;

pub use draft::Draft;
pub use sections::schemas;
pub use sections::{
    Admin, Audit, Identity, Jwt, Log, Metrics, Proxy, Repair, Secrets, Server, Store, TlsTable,
    WebhookTable,
};
pub use values::{Address, LogFormat, LogLevel, Secret};
pub use values::{PostgresUrl, SecretRef, StoreUrl};

/// Everything that a running service takes from the configuration: checked, bounded.
#[derive(Clone, Debug)]
pub struct Config {
    /// The file that the configuration was read from.
    pub path: Option<PathBuf>,
    /// `[server]`.
    pub server: Server,
    /// `[tls]`.
    pub tls: TlsTable,
    /// `[proxy]`.
    pub proxy: Proxy,
    /// `[store]`.
    pub store: Store,
    /// `[secrets]`.
    pub secrets: Secrets,
    /// `[policy]`.
    pub source: PolicyTable,
    /// `[identity]`.
    pub identity: Identity,
    /// `[jwt]`.
    pub jwt: Jwt,
    /// `[admin]`.
    pub admin: Admin,
    /// `[audit]`.
    pub audit: Audit,
    /// `[repair]`.
    pub repair: Repair,
    /// `[log]`.
    pub log: Log,
    /// `[metrics]`.
    pub metrics: Metrics,
    /// `[webhook]`.
    pub webhook: WebhookTable,
    /// The place of every key that was given: file and line, variable or flag.
    pub places: Places,
    /// Settings that work but are risky.
    pub warnings: Vec<ConfigError>,
    /// The part of the configuration that a reload replaces.
    pub bundle: PolicyBundle,
}

impl Config {
    /// The policy.
    pub const fn policy(&self) -> &Arc<PolicySet> {
        &self.bundle.policy
    }

    /// Returns the tables that differ from `other` and only take effect at a start.
    fn tables_that_need_a_restart(&self, other: &Self) -> Vec<&'static str> {
        let server = Server {
            trusted_proxies: other.server.trusted_proxies.clone(),
            ..self.server.clone()
        };
        let tables = [
            ("server", server != other.server),
            ("tls", self.tls != other.tls),
            ("proxy", self.proxy != other.proxy),
            ("store", self.store != other.store),
            ("secrets", self.secrets != other.secrets),
            ("policy", self.source != other.source),
            ("admin", self.admin != other.admin),
            ("audit", self.audit != other.audit),
            ("repair", self.repair != other.repair),
            ("log", self.log != other.log),
            ("metrics", self.metrics != other.metrics),
            ("webhook", self.webhook != other.webhook),
        ];
        let changed = tables.into_iter().filter(|(_, changed)| *changed);
        changed.map(|(table, _)| table).collect()
    }
}

/// Reads the configuration: flags win over the environment, the environment over the file,
/// the file over the defaults.
///
/// # Errors
/// Every error of the configuration, each with its place.
pub fn load(path: Option<&Path>, env: &Env, flags: &Overrides) -> Result<Config, ConfigErrors> {
    draft(path, env, flags)?.whole()
}

/// Returns the configuration, and each of its values with its origin.
pub fn list(
    path: Option<&Path>,
    env: &Env,
    flags: &Overrides,
) -> Result<(Config, Vec<Figure>), ConfigErrors> {
    let text = text_of(path)?;
    let input = Input {
        path,
        text: &text,
        env,
        flags,
        geo: &[],
    };
    let tables = sections::schemas();
    let figures = palisade_policy::open(input, &tables)?.figures();
    Ok((Draft::read(input, 1)?.whole()?, figures))
}

/// Reads as much of the configuration as possible, for commands that report all errors at once.
///
/// # Errors
/// The file cannot be read, or is not TOML.
fn draft(path: Option<&Path>, env: &Env, flags: &Overrides) -> Result<Draft, ConfigErrors> {
    let text = text_of(path)?;
    let input = Input {
        path,
        text: &text,
        env,
        flags,
        geo: &[],
    };
    Draft::read(input, 1)
}

fn text_of(path: Option<&Path>) -> Result<String, ConfigErrors> {
    let text = path.map(palisade_policy::read_file).transpose()?;
    Ok(text.unwrap_or_default())
}

/// A configuration file that is followed while it changes.
pub type ConfigFile = FileSource<ConfigLoader>;

/// Reads a file as a whole configuration, or a text as if it were the content of a file.
#[derive(Default)]
pub struct ConfigLoader {
    /// Environment variables. They win over the file.
    pub env: Env,
    /// Flags. They win over the file and the environment.
    pub flags: Overrides,
}

impl Loader for ConfigLoader {
    type Output = Config;

    fn load(
        &self,
        path: &Path,
        text: &str,
        revision: u64,
        geo: &[Arc<GeoFile>],
    ) -> Result<Config, ConfigErrors> {
        let input = Input {
            path: Some(path),
            text,
            env: &self.env,
            flags: &self.flags,
            geo,
        };
        Draft::read(input, revision)?.whole()
    }

    fn bundle(loaded: &Config) -> &PolicyBundle {
        &loaded.bundle
    }

    fn files(loaded: &Config) -> Vec<PathBuf> {
        let candidate = loaded.bundle.candidate_file.as_deref().map(Path::to_owned);
        let key = match &loaded.jwt.key {
            Some(SecretRef::File(path)) => Some(path.clone()),
            _ => None,
        };
        let files = [candidate, key, loaded.jwt.jwks.clone()];
        files.into_iter().flatten().collect()
    }

    fn accept(&self, loaded: &Config) -> Result<(), ConfigErrors> {
        let edge = edge::of(loaded, &self.env);
        let place = || loaded.places.of_key(ready::key_of_tokens(loaded));
        edge.map(|_| ())
            .map_err(|failure| failure.at(place()).into())
    }

    fn needs_restart(old: &Config, new: &Config) -> Vec<&'static str> {
        old.tables_that_need_a_restart(new)
    }
}
