//! Builds metrics, denial log and audit from the configuration.

use std::io;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use palisade::observe::audit::{FileSink, Keeps, PostgresSink, Sink, StdoutSink};
use palisade::observe::{Audit, AuditSettings, DenialLog, Fanout, Lookout, Metrics};
use palisade::store::postgres::PostgresConfig;
use palisade_core::key::Keyring;
use palisade_core::time::Clock;

use super::data;
use crate::config::{self, Config, StoreUrl};
use crate::failure::Failure;
use crate::webhook::{Delivery, Webhook};

const AUDIT_FILE: &str = "audit.jsonl";

/// The observers of decisions.
pub(crate) struct Observers {
    pub(crate) fanout: Arc<Fanout>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) audit: Arc<Audit>,
    pub(crate) lookout: Arc<Lookout>,
    /// Sends to the webhook, if one is configured; to be run in the background.
    pub(crate) delivery: Option<Delivery>,
}

impl Observers {
    pub(crate) fn start(
        config: &Config,
        keyring: &Arc<Keyring>,
        clock: &Arc<dyn Clock>,
        directory: Option<&Path>,
        audit_table: Option<PostgresConfig>,
        webhook: Option<Webhook>,
    ) -> Result<Self, Failure> {
        let orgs_max = usize::try_from(config.metrics.orgs_max).unwrap_or(usize::MAX);
        let metrics = Metrics::new(Arc::clone(keyring), orgs_max);
        let metrics = Arc::new(match config.store.url {
            StoreUrl::Redis(_) | StoreUrl::RedisCluster(_) => metrics.of_redis(),
            _ => metrics,
        });
        if let Some(directory) = directory.map(Path::to_owned) {
            metrics.show_last_backup(move || data::last_backup(&directory));
        }
        let audit = Arc::new(audit(config, keyring, clock, directory, audit_table)?);
        let log = DenialLog::new(Arc::clone(keyring), at_least_one(config.log.sample))
            .about_store(&config.store.url.shown());
        let fanout = Fanout::new(
            Arc::clone(keyring),
            Arc::clone(&metrics),
            log,
            Some(Arc::clone(&audit)),
        );
        let started = webhook.map(|webhook| webhook.start(Arc::clone(clock), Arc::clone(&metrics)));
        let (fanout, delivery) = match started {
            Some((sender, delivery)) => (fanout.with_thresholds(sender), Some(delivery)),
            None => (fanout, None),
        };
        let lookout = Arc::new(Lookout::new(Arc::clone(keyring), clock.now()));
        Ok(Self {
            fanout: Arc::new(fanout.with_lookout(Arc::clone(&lookout))),
            metrics,
            audit,
            lookout,
            delivery,
        })
    }

    /// Writes queued audit events, at shutdown.
    pub(crate) fn flush(&self, patience: Duration) {
        if !self.audit.flush(patience) {
            tracing::error!("audit events were still waiting to be written at the end");
        }
    }
}

fn at_least_one(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN)
}

fn audit(
    config: &Config,
    keyring: &Arc<Keyring>,
    clock: &Arc<dyn Clock>,
    directory: Option<&Path>,
    audit_table: Option<PostgresConfig>,
) -> Result<Audit, Failure> {
    let audit = &config.audit;
    let refused = |error: io::Error| {
        Failure::unavailable(
            format!("the audit cannot be written: {error}"),
            "check the path of `audit.file` and its permissions",
        )
    };
    // Without a configured destination, events go to the data directory or, if there is none, to
    // standard output. They are never dropped silently.
    let has_place = audit.file.is_some() || audit.stdout || audit.postgres.is_some();
    let path = match &audit.file {
        None if !has_place => directory.map(|directory| directory.join(AUDIT_FILE)),
        file => file.clone(),
    };
    let to_stdout = audit.stdout || (!has_place && path.is_none());
    let mut sinks: Vec<Box<dyn Sink>> = Vec::new();
    let file = match &path {
        Some(path) => {
            for (beside, keeps) in audit_files_beside(path) {
                sinks.push(Box::new(
                    open_beside(&beside, keeps, audit).map_err(refused)?,
                ));
            }
            Some(FileSink::open(path, audit.rotate_bytes, audit.rotate_keep).map_err(refused)?)
        }
        None => None,
    };
    if file.is_some() || to_stdout {
        sinks.push(Box::new(Sinks {
            file,
            stdout: to_stdout.then_some(StdoutSink),
        }));
    }
    if let Some(address) = audit_table {
        let table = PostgresSink::new(address).map_err(|error| {
            let message = format!("the audit table cannot be written: {error}");
            Failure::unavailable(message, TABLE_HINT)
        })?;
        sinks.push(Box::new(table));
    }
    let settings = AuditSettings {
        buffer_max: usize::try_from(audit.buffer_max).unwrap_or(usize::MAX),
        repeated_throttling: at_least_one(audit.repeated_throttling),
        privilege_probing: at_least_one(audit.privilege_probing),
        privilege_probing_window: audit.privilege_probing_window,
    };
    Audit::start_all(Arc::clone(keyring), Arc::clone(clock), sinks, settings).map_err(refused)
}

/// Files for parts of the audit, next to the file with all events. They have a rotation of their
/// own, so that other events cannot displace theirs. A device or pipe has none.
pub fn audit_files_beside(file: &Path) -> Vec<(PathBuf, Keeps)> {
    if std::fs::metadata(file).is_ok_and(|found| !found.is_file()) {
        return Vec::new();
    }
    let beside = |part: &str| {
        let mut name = file.file_stem().unwrap_or_default().to_owned();
        name.push(part);
        if let Some(extension) = file.extension() {
            name.push(".");
            name.push(extension);
        }
        file.with_file_name(name)
    };
    vec![
        (beside("-security"), Keeps::Security),
        (beside("-changes"), Keeps::Changes),
    ]
}

fn open_beside(file: &Path, keeps: Keeps, audit: &config::Audit) -> io::Result<FileSink> {
    let sink = FileSink::open(file, audit.rotate_bytes, audit.security_rotate_keep)?;
    Ok(sink.keeping(keeps))
}

const TABLE_HINT: &str = "correct `audit.postgres`; `palisade migrate` makes the table";

/// The configured audit table. Its database may be unreachable: events wait for it.
pub(crate) fn audit_table(config: &Config) -> Result<Option<PostgresConfig>, Failure> {
    let url = config.audit.postgres.as_ref();
    let address = url
        .map(|url| PostgresConfig::parse(url.as_str()))
        .transpose();
    address.map_err(|_| Failure::usage("`audit.postgres` cannot be used as an address", TABLE_HINT))
}

/// The configured destinations other than a table. The file is written first: otherwise a line that
/// standard output fails to take would be written to the file again.
struct Sinks {
    file: Option<FileSink>,
    stdout: Option<StdoutSink>,
}

impl Sink for Sinks {
    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        if let Some(file) = &mut self.file {
            file.write(lines)?;
        }
        match (&mut self.stdout, &self.file) {
            (Some(stdout), None) => stdout.write(lines),
            (Some(stdout), Some(_)) => {
                let _ = stdout.write(lines);
                Ok(())
            }
            (None, _) => Ok(()),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), Sink::sync)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s10_the_parts_of_an_audit_are_beside_it_and_named_after_it() {
        let named = |file: &str| -> Vec<String> {
            let beside = audit_files_beside(Path::new(file)).into_iter();
            beside.map(|(path, _)| path.display().to_string()).collect()
        };
        let parts = [
            "/nowhere/audit-security.jsonl",
            "/nowhere/audit-changes.jsonl",
        ];
        assert_eq!(named("/nowhere/audit.jsonl"), parts);
        assert_eq!(named("a.b.log"), ["a.b-security.log", "a.b-changes.log"]);
        assert_eq!(named("audit"), ["audit-security", "audit-changes"]);
        assert!(named("/dev/null").is_empty());
    }
}
