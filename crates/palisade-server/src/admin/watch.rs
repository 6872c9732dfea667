//! Configuration → what watches the engine: metrics, log lines and audit.

use std::io;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use palisade::engine::Observer;
use palisade::observe::audit::{FileSink, Sink, StdoutSink};
use palisade::observe::{Audit, AuditSettings, DenialLog, Fanout, Metrics};
use palisade_core::Keyring;
use palisade_core::time::Clock;
use palisade_policy::Config;

use crate::failure::Failure;

const AUDIT_FILE: &str = "audit.jsonl";
/// How long the end waits for audit events to be written.
const FLUSH_PATIENCE: Duration = Duration::from_secs(5);

/// What watches the engine of this process.
pub(crate) struct Watch {
    metrics: Arc<Metrics>,
    audit: Option<Arc<Audit>>,
    observer: Arc<dyn Observer>,
}

impl Watch {
    /// Starts what the configuration asks for. Without a place for audit events they
    /// go to the data directory, if there is one.
    pub(crate) fn start(
        config: &Config,
        keyring: Keyring,
        clock: Arc<dyn Clock>,
        directory: Option<&Path>,
    ) -> Result<Self, Failure> {
        let keyring = Arc::new(keyring);
        let orgs_max = usize::try_from(config.metrics.orgs_max).unwrap_or(usize::MAX);
        let metrics = Arc::new(Metrics::new(Arc::clone(&keyring), orgs_max));
        let audit = match sinks(config, directory)? {
            Some(sink) => Some(audit(config, &keyring, clock, sink)?),
            None => {
                tracing::warn!("audit events are not kept: set `audit.file` or `audit.stdout`");
                None
            }
        };
        let one_in = NonZeroU32::new(config.log.sample).unwrap_or(NonZeroU32::MIN);
        let log = DenialLog::new(Arc::clone(&keyring), one_in);
        let fanout = Fanout::new(keyring, Arc::clone(&metrics), log, audit.clone());
        Ok(Self {
            metrics,
            audit,
            observer: Arc::new(fanout),
        })
    }

    /// For the engine.
    pub(crate) fn observer(&self) -> Arc<dyn Observer> {
        Arc::clone(&self.observer)
    }

    /// For `/metrics`.
    pub(crate) fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(&self.metrics)
    }

    /// Writes the audit events that wait; part of a graceful end.
    pub(crate) fn flush(&self) {
        if let Some(audit) = &self.audit
            && !audit.flush(FLUSH_PATIENCE)
        {
            tracing::error!("some audit events could not be written");
        }
    }
}

fn audit(
    config: &Config,
    keyring: &Arc<Keyring>,
    clock: Arc<dyn Clock>,
    sink: Sinks,
) -> Result<Arc<Audit>, Failure> {
    let settings = AuditSettings {
        buffer_max: usize::try_from(config.audit.buffer_max).unwrap_or(usize::MAX),
        repeated_throttling: NonZeroU32::new(config.audit.repeated_throttling)
            .unwrap_or(NonZeroU32::MIN),
    };
    let started = Audit::start(Arc::clone(keyring), clock, sink, settings);
    let audit = started.map_err(|error| {
        Failure::unavailable(
            format!("the audit cannot be started: {error}"),
            "raise the limit on threads",
        )
    })?;
    Ok(Arc::new(audit))
}

/// Every configured place, one after the other.
struct Sinks {
    file: Option<FileSink>,
    stdout: Option<StdoutSink>,
}

impl Sink for Sinks {
    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        let shown = self.stdout.as_mut().map_or(Ok(()), |out| out.write(lines));
        // A closed standard output must not keep events from the file, nor make
        // them come twice.
        match &mut self.file {
            Some(file) => file.write(lines),
            None => shown,
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        if let Some(file) = &mut self.file {
            file.sync()?;
        }
        self.stdout.as_mut().map_or(Ok(()), StdoutSink::sync)
    }
}

fn sinks(config: &Config, directory: Option<&Path>) -> Result<Option<Sinks>, Failure> {
    let audit = &config.audit;
    if audit.postgres.is_some() {
        return Err(Failure::usage(
            "this build cannot keep audit events in Postgres",
            "use `audit.file` or `audit.stdout`",
        ));
    }
    let kept = directory.map(|directory| directory.join(AUDIT_FILE));
    let path = match (&audit.file, audit.stdout) {
        (Some(path), _) => Some(path.clone()),
        (None, true) => None,
        (None, false) => kept,
    };
    let file = path
        .map(|path| FileSink::open(&path, audit.rotate_bytes, audit.rotate_keep))
        .transpose()
        .map_err(|error| {
            Failure::unavailable(
                format!("the audit file cannot be written: {error}"),
                "make it writable for this user, or choose another with `audit.file`",
            )
        })?;
    let stdout = audit.stdout.then_some(StdoutSink);
    let any = file.is_some() || stdout.is_some();
    Ok(any.then_some(Sinks { file, stdout }))
}
