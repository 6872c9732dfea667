//! A configuration as far as it can be read. An error in one table hides no error in another.

use std::path::Path;

use palisade_core::headers::{HeaderFamilies, HeaderFamily};
use palisade_policy::document::schema::{Section, unwritten};
use palisade_policy::document::{Document, Input};
use palisade_policy::{ConfigError, ConfigErrors, Env, Overrides, PolicyBundle, PolicyTable};

use super::{Config, Server, agree, risks, sections};

/// The tables that could be read. A refused table counts as empty.
pub struct Draft {
    config: Config,
    refused: Vec<&'static str>,
    errors: Option<ConfigErrors>,
}

impl Draft {
    /// Reads as much as possible.
    ///
    /// # Errors
    /// The text is not TOML, so that nothing in it can be relied on.
    pub(super) fn read(input: Input<'_>, revision: u64) -> Result<Self, ConfigErrors> {
        let tables = sections::schemas();
        let mut document = palisade_policy::open(input, &tables)?;
        let mut tables = Tables::default();
        let Some(mut config) = read(&mut document, &mut tables, &input, revision) else {
            return document.finish(None);
        };
        risks::warn(&mut document, &config, input.env, &tables.refused);
        let errors = match document.finish_with_warnings(tables.all_read()) {
            Ok(((), warnings)) => {
                config.warnings = warnings;
                None
            }
            Err(errors) => Some(errors),
        };
        Ok(Self {
            config,
            refused: tables.refused,
            errors,
        })
    }

    /// Returns the configuration if nothing in it was refused.
    ///
    /// # Errors
    /// Everything that is wrong with the configuration, each error with its place.
    pub fn whole(self) -> Result<Config, ConfigErrors> {
        match self.errors {
            None => Ok(self.config),
            Some(errors) => Err(errors),
        }
    }

    /// Whether nothing in the configuration was refused.
    pub const fn is_whole(&self) -> bool {
        self.errors.is_none()
    }

    /// Returns the configuration. Tables that could not be read have their defaults.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Tables that could not be read. What the configuration says about them is meaningless.
    pub fn refused(&self) -> &[&'static str] {
        &self.refused
    }

    /// Errors and warnings found while reading.
    pub fn found(&self) -> Vec<ConfigError> {
        let errors = self.errors.clone().map(ConfigErrors::into_list);
        errors.unwrap_or_else(|| self.config.warnings.clone())
    }
}

/// Bookkeeping while tables are read: which of them were refused.
#[derive(Default)]
struct Tables {
    refused: Vec<&'static str>,
}

impl Tables {
    fn or_unwritten<S: Section>(&mut self, table: Option<S>) -> Option<S> {
        if table.is_none() {
            self.refused.push(S::SCHEMA.path);
        }
        table.or_else(unwritten)
    }

    fn or_default_policy(&mut self, bundle: Option<PolicyBundle>) -> Option<PolicyBundle> {
        if bundle.is_none() {
            self.refused.push(PolicyTable::SCHEMA.path);
        }
        let default = || palisade_policy::load(None, &Env::default(), &Overrides::default());
        bundle.or_else(|| default().ok())
    }

    fn all_read(&self) -> Option<()> {
        self.refused.is_empty().then_some(())
    }
}

fn read(
    document: &mut Document<'_>,
    tables: &mut Tables,
    input: &Input<'_>,
    revision: u64,
) -> Option<Config> {
    let server = document.table::<Server>();
    let tls = document.table();
    let proxy = document.table();
    let secrets = document.table();
    let identity = document.table::<sections::Identity>();
    let jwt = document.table();
    let admin = document.table();
    let headers: Option<sections::Headers> = document.table();
    let headers = server
        .as_ref()
        .map(|server| families(server, headers.as_ref()));
    let headers = headers.unwrap_or_default();
    let slash = identity.as_ref().map(|identity| identity.encoded_slash);
    let bundle = document.policy(revision, headers, slash.unwrap_or_default());
    agree::check(document, secrets.as_ref(), jwt.as_ref(), admin.as_ref());
    agree::check_certificates(document, tls.as_ref(), proxy.as_ref());
    let secrets: sections::Secrets = tables.or_unwritten(secrets)?;
    let bundle = tables.or_default_policy(bundle)?;
    Some(Config {
        path: input.path.map(Path::to_owned),
        server: tables.or_unwritten(server)?,
        tls: tables.or_unwritten(tls)?,
        proxy: tables.or_unwritten(proxy)?,
        store: tables.or_unwritten(document.table())?,
        secrets: secrets.or_well_known(input.env),
        source: bundle.source.clone(),
        identity: tables.or_unwritten(identity)?,
        jwt: tables.or_unwritten(jwt)?,
        admin: tables.or_unwritten(admin)?,
        audit: tables.or_unwritten(document.table())?,
        repair: tables.or_unwritten(document.table())?,
        log: tables.or_unwritten(document.table())?,
        metrics: tables.or_unwritten(document.table())?,
        webhook: tables.or_unwritten(document.table())?,
        places: document.places(),
        warnings: Vec::new(),
        bundle,
    })
}

fn families(server: &Server, headers: Option<&sections::Headers>) -> HeaderFamilies {
    let chosen = |family| server.headers.contains(&family);
    HeaderFamilies {
        x_ratelimit: chosen(HeaderFamily::XRateLimit),
        ietf: chosen(HeaderFamily::Ietf),
        org: chosen(HeaderFamily::Org),
        partition_key: server.partition_key,
        every_bucket: headers.is_some_and(|headers| headers.every_bucket),
    }
}
