//! A changed policy file takes effect without a restart.

use std::sync::Arc;
use std::time::Duration;

use palisade_policy::{PolicyBundle, PolicySource, Watching};
use tokio::sync::watch;

use super::edge;
use super::tenants::Policies;
use crate::config::ConfigFile;
use crate::surfaces::Enforcer;

/// Changes that no event tells of are found within this time.
const POLL: Duration = Duration::from_secs(5);

/// Follows the file for as long as the result is kept.
pub(crate) fn follow(
    source: &Arc<ConfigFile>,
    enforcer: &Arc<Enforcer>,
    policies: &Arc<Policies>,
) -> Option<Watching> {
    let watching = source
        .watch(POLL)
        .inspect_err(|error| {
            tracing::error!(%error, "changes of the policy file are not followed");
        })
        .ok()?;
    tokio::spawn(apply(
        source.subscribe(),
        Arc::clone(enforcer),
        Arc::clone(policies),
    ));
    Some(watching)
}

async fn apply(
    mut bundles: watch::Receiver<Arc<PolicyBundle>>,
    enforcer: Arc<Enforcer>,
    policies: Arc<Policies>,
) {
    while bundles.changed().await.is_ok() {
        let bundle = Arc::clone(&bundles.borrow_and_update());
        match edge::with_bots(&enforcer.edge.load(), &bundle.bots) {
            Ok(edge) => enforcer.edge.store(Arc::new(edge)),
            Err(failure) => tracing::error!(%failure, "`[bots]` stays as it was"),
        }
        enforcer.engine.set_policy(Arc::clone(&bundle.policy));
        policies.set_base(&bundle);
    }
}
