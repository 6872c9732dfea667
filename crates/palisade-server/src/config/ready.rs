//! The parts of a service before it touches anything. `serve` starts with them, and `check` builds
//! and discards them: both commands refuse the same configurations.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use palisade::extract::EdgeConfig;
use palisade::store::postgres::PostgresConfig;
use palisade_core::policy::Limit;
use palisade_policy::document::Places;
use palisade_policy::{ConfigError, ConfigErrors, Env};

use super::{Address, Config, Draft};
use crate::failure::Failure;
use crate::serve::{Elsewhere, GivenSecrets, Tls, TlsFiles, audit_table, edge};
use crate::store::{PreparedStore, opening};
use crate::surfaces::admin;
use crate::surfaces::proxy::Upstream;
use crate::surfaces::{CallerToken, Certificates};
use crate::webhook::Webhook;

/// Secrets and keys that were read, addresses and certificates that were parsed.
pub struct Ready {
    pub(crate) secrets: GivenSecrets,
    pub(crate) edge: EdgeConfig,
    pub(crate) caller: Option<Arc<CallerToken>>,
    pub(crate) certificates: Certificates,
    /// The store, not opened yet.
    pub store: PreparedStore,
    /// The source of tenants' policies, not queried yet.
    pub tenants: Elsewhere,
    /// The database with the audit's table, if one is configured.
    pub audit_table: Option<PostgresConfig>,
    /// The webhook, if one is configured.
    pub(crate) webhook: Option<Webhook>,
}

impl Ready {
    /// Builds all parts. Reads files and variables but opens no connection. Needs a Tokio runtime.
    ///
    /// # Errors
    /// One error for each part of the configuration that `serve` would refuse, with its place.
    pub async fn of(config: &Config, env: &Env) -> Result<Self, ConfigErrors> {
        let (ready, refused) = Self::try_of(config, env, &[]).await;
        match (ready, ConfigErrors::from_list(refused)) {
            (Some(ready), None) => Ok(ready),
            (_, Some(errors)) => Err(errors),
            (None, None) => Err(ConfigError::nowhere(
                "the configuration cannot be served",
                "this is a defect: it was refused without a reason",
            )
            .into()),
        }
    }

    /// Builds all parts of a draft. Returns them with everything that `serve` would refuse in the
    /// tables that could be read.
    pub async fn of_draft(draft: &Draft, env: &Env) -> (Option<Self>, Vec<ConfigError>) {
        Self::try_of(draft.config(), env, draft.refused()).await
    }

    async fn try_of(
        config: &Config,
        env: &Env,
        unread: &[&'static str],
    ) -> (Option<Self>, Vec<ConfigError>) {
        let mut refused = ErrorCollector {
            places: &config.places,
            unread,
            errors: Vec::new(),
        };
        refused.open_to_strangers(config);
        refused.waits_beyond_answers(config);
        let secrets = refused.secrets(config, env);
        let jwt = refused.keep(key_of_tokens(config), edge::verifier(&config.jwt, env));
        let edge = refused.keep(
            "identity.oauth_authorize",
            edge::edge(config, jwt.flatten()),
        );
        let caller = refused.keep("server.caller_token", caller(config, env));
        let certificates = refused.keep("tls.cert", certificates(config));
        let store = refused.keep("store.url", opening(&config.store));
        let tenants = refused.keep("policy.source", Elsewhere::of(&config.source).await);
        let audit_table = refused.keep("audit.postgres", audit_table(config));
        let webhook = refused.keep("webhook.url", Webhook::of(&config.webhook, env));
        // Only checked here. The surfaces read these values again when they are built.
        refused.keep("admin.token", admin::token(&config.admin, env));
        refused.keep(
            "admin.viewer_token",
            admin::viewer_token(&config.admin, env),
        );
        refused.keep("proxy.upstream", Upstream::of(config));
        let ready = || {
            Some(Self {
                secrets: secrets?,
                edge: edge?,
                caller: caller?,
                certificates: certificates?,
                store: store?,
                tenants: tenants?,
                audit_table: audit_table?,
                webhook: webhook?,
            })
        };
        (ready(), refused.errors)
    }
}

/// Reads the token that callers present, if one is configured.
fn caller(config: &Config, env: &Env) -> Result<Option<Arc<CallerToken>>, Failure> {
    let reference = config.server.caller_token.as_ref();
    let token = reference.map(|reference| reference.read_token("server.caller_token", env));
    Ok(token.transpose()?.map(CallerToken::new).map(Arc::new))
}

/// Collects errors.
struct ErrorCollector<'a> {
    places: &'a Places,
    /// Tables that could not be read. Keys that depend on one of them are not judged.
    unread: &'a [&'static str],
    errors: Vec<ConfigError>,
}

impl ErrorCollector<'_> {
    fn push(&mut self, key: &str, message: String, hint: &str) {
        let place = self.places.of_key(key);
        self.errors.push(ConfigError::at(place, message, hint));
    }

    fn knows(&self, table: &str) -> bool {
        !self.unread.contains(&table)
    }

    /// Refuses limits whose callers wait longer for a slot than an answer may take (B-FAIR).
    fn waits_beyond_answers(&mut self, config: &Config) {
        let timeout = config.server.request_timeout;
        let waits = |limit: &&Limit| {
            let queue = limit.def.queue;
            queue.is_some_and(|queue| Duration::from_micros(queue.wait_us) >= timeout)
        };
        let limit = config.policy().limits().iter().find(waits);
        if let Some(limit) = limit.filter(|_| self.knows("server")) {
            let message = format!(
                "`server.request_timeout` is not longer than the `wait` of the limit `{}`",
                limit.name
            );
            let hint = "raise it, or lower `wait`: whoever waits that long gets no answer";
            self.push("server.request_timeout", message, hint);
        }
    }

    /// Returns the value, or records its failure at the key that caused it.
    fn keep<T>(&mut self, key: &str, made: Result<T, Failure>) -> Option<T> {
        let table = key.split('.').next().unwrap_or(key);
        let place = || self.places.of_key(key);
        match made {
            Ok(made) => return Some(made),
            Err(failure) if self.knows(table) => self.errors.push(failure.at(place())),
            // The table was refused before, so its key is not at fault.
            Err(_) => {}
        }
        None
    }

    /// Refuses addresses off loopback that do not authenticate callers, or that are not encrypted
    /// and have no `tls.insecure`.
    fn open_to_strangers(&mut self, config: &Config) {
        if !self.knows("server") || !self.knows("tls") {
            return;
        }
        let server = &config.server;
        let addresses = [
            ("listen", server.listen.into()),
            ("grpc", server.grpc.clone()),
            ("admin", server.admin.into()),
        ];
        let resp = server.resp.map(|at| ("resp", at.into()));
        let addresses = addresses.into_iter().chain(resp);
        for (key, _) in addresses.filter(|(_, at): &(_, Address)| !at.is_local()) {
            if let Some((lack, hint)) = lacking(config) {
                let message = format!("`server.{key}` is not loopback and there is {lack}");
                self.push(&format!("server.{key}"), message, hint);
            }
        }
    }

    /// Reads the secrets. Nodes that share a store must share the secret, so that a shared store
    /// without a configured one is refused.
    fn secrets(&mut self, config: &Config, env: &Env) -> Option<GivenSecrets> {
        let is_known = self.knows("store") && self.knows("secrets");
        if is_known && config.store.url.is_shared() && config.secrets.key.is_none() {
            self.push(
                "store.url",
                "a shared store needs a secret that all nodes share".to_owned(),
                "give every node the same one: `export PALISADE_KEY=$(openssl rand -hex 32)`, or set `[secrets] key = \"file:PATH\"`",
            );
        }
        self.keep("secrets.key", GivenSecrets::read(config, env))
    }
}

/// The first thing that an address off loopback lacks, with a hint that says how to fix it.
fn lacking(config: &Config) -> Option<(&'static str, &'static str)> {
    let tls = &config.tls;
    if config.server.caller_token.is_none() && tls.client_ca.is_none() {
        return Some((
            "neither `server.caller_token` nor `tls.client_ca`",
            "set `caller_token = \"env:NAME\"`, ask for certificates with `tls.client_ca`, or listen on 127.0.0.1",
        ));
    }
    (tls.cert.is_none() && !tls.insecure).then_some((
        "no `tls.cert`",
        "set `tls.cert` and `tls.key`; with `tls.insecure = true` the caller token passes in plain text",
    ))
}

/// Loads the configured certificates.
fn certificates(config: &Config) -> Result<Certificates, Failure> {
    let (tls, proxy) = (&config.tls, &config.proxy);
    let load = |keys, pair: (&Option<PathBuf>, &Option<PathBuf>), client_ca: Option<PathBuf>| {
        let (Some(cert), Some(key)) = (pair.0.clone(), pair.1.clone()) else {
            return Ok(None);
        };
        Tls::load(TlsFiles {
            keys,
            cert,
            key,
            client_ca,
        })
        .map(Some)
    };
    let (shared, shared_keys) = ((&tls.cert, &tls.key), ["tls.cert", "tls.key"]);
    let own_keys = ["proxy.tls_cert", "proxy.tls_key"];
    let own = load(own_keys, (&proxy.tls_cert, &proxy.tls_key), None)?;
    let callers = load(shared_keys, shared, tls.client_ca.clone())?;
    let proxy = match own {
        Some(own) => Some(own),
        None if tls.client_ca.is_none() || proxy.upstream.is_none() => callers.clone(),
        // The proxy's clients may be anybody, so no certificate is required of them.
        None => load(shared_keys, shared, None)?,
    };
    Ok(Certificates { callers, proxy })
}

/// Name of the key that refers to the keys of signed tokens.
pub(super) const fn key_of_tokens(config: &Config) -> &'static str {
    match config.jwt.jwks {
        Some(_) => "jwt.jwks",
        None => "jwt.key",
    }
}
