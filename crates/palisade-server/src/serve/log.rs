//! Logging to standard error, as text or JSON, and spans to a collector if one is configured.

use std::sync::atomic::{AtomicU64, Ordering};

use palisade::observe::SPAN_TARGET;
use palisade_core::time::Micros;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

use super::trace::Traces;
use crate::config::{Log, LogFormat, LogLevel};
use crate::failure::Failure;

/// Starts logging. A second start in the same process changes nothing.
pub(crate) fn start(log: &Log) -> Result<Traces, Failure> {
    let traces = Traces::start()?;
    let filter = Targets::new()
        .with_default(threshold(log.level))
        .with_target("hyper", LevelFilter::WARN)
        .with_target("h2", LevelFilter::WARN)
        .with_target(SPAN_TARGET, LevelFilter::OFF);
    let lines = tracing_subscriber::fmt::layer()
        .with_target(false)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_writer(std::io::stderr);
    let lines: Box<dyn Layer<Registry> + Send + Sync> = match log.format {
        LogFormat::Text => lines.with_filter(filter).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).with_filter(filter).boxed(),
    };
    #[cfg_attr(
        not(feature = "otlp"),
        expect(unused_mut, reason = "there is a second layer with the feature")
    )]
    let mut layers = vec![lines];
    #[cfg(feature = "otlp")]
    layers.extend(traces.layer());
    let _ = tracing_subscriber::registry().with(layers).try_init();
    Ok(traces)
}

/// Limits how often a repeated log line is written.
pub(crate) struct LogLimit {
    period: u64,
    /// The period of the last line, from 1 on; 0 if there was none yet.
    last: AtomicU64,
}

impl LogLimit {
    /// Allows at most one line in each period of this many microseconds.
    pub(crate) const fn once_per(period: u64) -> Self {
        Self {
            period,
            last: AtomicU64::new(0),
        }
    }

    /// Whether a line may be written now.
    pub(crate) fn allows(&self, now: Micros) -> bool {
        let period = now.0 / self.period + 1;
        // One step, so that of several threads only the first in a period gets true.
        self.last.swap(period, Ordering::Relaxed) != period
    }
}

const fn threshold(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

#[cfg(test)]
mod tests {
    use palisade_core::time::SECOND;

    use super::*;

    #[test]
    fn a_line_is_written_once_in_each_period() {
        let limit = LogLimit::once_per(SECOND);
        let at = |millis: u64| limit.allows(Micros(millis * 1_000));
        let asked = [0, 1, 999, 1_000, 1_500, 7_000].map(at);
        assert_eq!(asked, [true, false, false, true, false, true]);
    }
}
