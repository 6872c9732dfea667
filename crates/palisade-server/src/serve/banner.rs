//! The text that `serve` prints at its start: its addresses, its data directory and a command to
//! try.

use std::fmt::Write;
use std::path::Path;

use crate::config::{Config, StoreUrl, words};

use super::surface::SurfaceAddress;

/// The parts of that text.
pub(crate) struct Banner<'a> {
    pub(crate) config: &'a Config,
    pub(crate) decide: SurfaceAddress,
    pub(crate) admin: SurfaceAddress,
    pub(crate) others: Vec<SurfaceAddress>,
}

impl Banner<'_> {
    /// Formats the text.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("palisade {}\n", env!("CARGO_PKG_VERSION"));
        let mut row = |name: &str, value: &str| {
            let _ = writeln!(text, "  {name:<14}{value}");
        };
        row(self.decide.name, &self.decide.url());
        row(
            self.admin.name,
            &format!("{} (/metrics, /health/ready)", self.admin.url()),
        );
        for place in &self.others {
            row(place.name, &place.url());
        }
        row("store", &store(&self.config.store.url));
        row("policy", &policy(self.config));
        row("each address", &words::addresses(self.config.policy()));
        row("guard", &words::guard(self.config.policy()));
        if audit_is_printed(self.config) {
            row("audit", "standard output (choose with `[audit]`)");
        }
        if !self.config.policy().enabled {
            row("enforcement", "OFF: RATE_LIMIT_ENABLED is false");
        }
        text.push_str(&self.try_it());
        text.push_str("ready\n");
        text
    }

    /// A command to try. It is shown only with the embedded policy, which it fits.
    fn try_it(&self) -> String {
        if self.config.path.is_some() || !self.config.policy().enabled {
            return String::new();
        }
        let token = match self.config.server.caller_token {
            Some(_) => " -H \"X-Palisade-Caller: $TOKEN\"",
            None => "",
        };
        format!(
            "\nTry it: the eleventh sign-in of an address within a minute is refused with 429\n  \
             for i in $(seq 11); do curl -s {}/v1/check{token} -d '{{\"ip\":\"203.0.113.7\",\"method\":\"POST\",\"path\":\"/auth/token\"}}' | grep -o '\"status\":[0-9]*'; done\n",
            self.decide.url()
        )
    }
}

/// Whether audit events go to standard output because no destination was chosen and there is no
/// data directory.
fn audit_is_printed(config: &Config) -> bool {
    let audit = &config.audit;
    let chosen = audit.file.is_some() || audit.stdout || audit.postgres.is_some();
    !chosen && !matches!(config.store.url, StoreUrl::Embedded(_))
}

fn store(url: &StoreUrl) -> String {
    match url {
        StoreUrl::Memory => "memory: counters end with the process".to_owned(),
        StoreUrl::Embedded(directory) => format!("embedded, data in {}", shown(directory)),
        StoreUrl::Redis(_) => "Redis".to_owned(),
        StoreUrl::RedisCluster(_) => "Redis Cluster".to_owned(),
        StoreUrl::Postgres(_) => "Postgres".to_owned(),
    }
}

fn policy(config: &Config) -> String {
    let policy = config.policy();
    let source = match &config.path {
        Some(path) => shown(path),
        None => "embedded default policy".to_owned(),
    };
    format!(
        "{source}: {} limits, {} routes (`palisade policy` shows them)",
        policy.limits().len(),
        policy.routes().iter().count()
    )
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}
