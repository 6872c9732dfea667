//! Reload of a changed policy file without a restart: when the file changes, and on SIGHUP.

use std::sync::Arc;
use std::time::Duration;

use palisade::observe::Metrics;
use palisade_policy::{Env, FileWatch, PolicyBundle, PolicySource, Reload};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch::Receiver;
use tokio::task::JoinHandle;

use super::stop::Stop;
use super::surface::Surface;
use super::tenants::Policies;
use super::workers::Late;
use super::{edge, task};
use crate::config::{Config, ConfigFile};
use crate::surfaces::Enforcer;

/// Interval at which the file is checked for changes that no file event reported.
const POLL: Duration = Duration::from_secs(5);

/// SIGHUP, caught from the moment this is made. Uncaught, the signal ends the process.
pub(crate) struct Hangup(Signal);

impl Hangup {
    pub(crate) fn listen() -> std::io::Result<Self> {
        signal(SignalKind::hangup()).map(Self)
    }
}

/// The tasks that reload. Dropping this ends them.
pub(crate) struct ReloadTasks {
    _watching: Option<FileWatch>,
    asked: JoinHandle<()>,
}

impl Drop for ReloadTasks {
    fn drop(&mut self) {
        self.asked.abort();
    }
}

/// The rate-limit service for Envoy while no limit has a domain.
pub(crate) struct Dormant {
    pub(crate) surface: Box<dyn Surface>,
    pub(crate) workers: Late,
    pub(crate) stop: Stop,
}

impl Dormant {
    /// Binds the address and starts to serve. If the address cannot be bound, the surface stays
    /// dormant and is tried again when the policy changes.
    fn wake(mut self) -> Option<Self> {
        match self.workers.serve(&mut *self.surface, &self.stop) {
            Ok(()) => {
                let url = self.surface.place().url();
                tracing::info!(
                    url,
                    "the rate-limit service is served: a limit has a `domain`"
                );
                None
            }
            Err(failure) => {
                tracing::warn!(
                    hint = "restart the service once the address is free, or choose another with `server.grpc`",
                    "a limit has a `domain`, but the rate-limit service for Envoy cannot start: {failure}"
                );
                Some(self)
            }
        }
    }
}

/// Logs risky settings, and sets the metric that counts them.
pub(crate) fn tell_risks(config: &Config, metrics: &Metrics) {
    for warning in &config.warnings {
        let (place, hint) = (&warning.place, warning.hint.as_deref());
        tracing::warn!(%place, hint, "{}", warning.message);
    }
    metrics.show_risks(config.warnings.len());
}

/// Reloads the file on SIGHUP and, if `watches`, when the file changes. `dormant` is woken by the
/// first limit that has a domain.
pub(crate) fn follow(
    source: Option<&Arc<ConfigFile>>,
    watches: bool,
    hangup: Hangup,
    enforcer: &Arc<Enforcer>,
    policies: &Arc<Policies>,
    metrics: &Arc<Metrics>,
    dormant: Option<Dormant>,
) -> ReloadTasks {
    if let Some(source) = source {
        let replaced = ReloadTarget {
            enforcer: Arc::clone(enforcer),
            policies: Arc::clone(policies),
            metrics: Arc::clone(metrics),
        };
        let bundles = source.subscribe();
        task::spawn(replaced.follow(Arc::clone(source), bundles, dormant));
    }
    ReloadTasks {
        _watching: source.filter(|_| watches).and_then(watch),
        asked: task::spawn(reload_when_asked(hangup, source.cloned())),
    }
}

fn watch(source: &Arc<ConfigFile>) -> Option<FileWatch> {
    source
        .watch(POLL)
        .inspect_err(|error| {
            tracing::error!(%error, "changes of the policy file are not followed");
        })
        .ok()
}

async fn reload_when_asked(mut hangup: Hangup, source: Option<Arc<ConfigFile>>) {
    while hangup.0.recv().await.is_some() {
        let Some(source) = source.clone() else {
            tracing::warn!(
                "asked to reload, and there is no file to read: started without --config"
            );
            continue;
        };
        // The outcome for a changed file is logged by the source itself.
        let reloaded = tokio::task::spawn_blocking(move || source.reload()).await;
        if let Ok(Ok(Reload::Unchanged)) = reloaded {
            tracing::info!("asked to reload: the policy file is as it was");
        }
    }
}

/// The parts of the service that a new policy replaces.
struct ReloadTarget {
    enforcer: Arc<Enforcer>,
    policies: Arc<Policies>,
    metrics: Arc<Metrics>,
}

impl ReloadTarget {
    async fn follow(
        self,
        source: Arc<ConfigFile>,
        mut bundles: Receiver<Arc<PolicyBundle>>,
        mut dormant: Option<Dormant>,
    ) {
        while bundles.changed().await.is_ok() {
            bundles.mark_unchanged();
            let config = source.config();
            self.take_over(&config, &source.loader().env);
            tell_risks(&config, &self.metrics);
            if config.policy().domains().next().is_some() {
                dormant = dormant.and_then(Dormant::wake);
            }
        }
    }

    fn take_over(&self, config: &Config, env: &Env) {
        let (enforcer, bundle) = (&self.enforcer, &config.bundle);
        // The loader has already accepted this configuration, so that only a file that it refers to
        // and that has changed since can be refused.
        match edge::of(config, env) {
            Ok(edge) => enforcer.edge.store(Arc::new(edge)),
            Err(failure) => tracing::error!(%failure, "requests are read as before"),
        }
        enforcer.outcomes.store(Arc::clone(&bundle.outcomes));
        enforcer.spends.store(Arc::clone(&bundle.spends));
        enforcer.engine.set_policy(Arc::clone(&bundle.policy));
        self.policies.set_base(bundle);
        enforcer.engine.set_candidate(bundle.candidate.as_ref());
    }
}
