//! Log lines go to standard error, as text or JSON.

use palisade_policy::{Log, LogFormat};
use tracing_subscriber::EnvFilter;

/// Starts logging. A second start in one process changes nothing.
pub(crate) fn start(log: &Log) {
    let filter = EnvFilter::new(format!("{},hyper=warn,h2=warn", log.level.name()));
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_writer(std::io::stderr);
    let _ = match log.format {
        LogFormat::Text => lines.try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
}
