//! Log lines go to standard error, as text or JSON; spans to a collector, if there
//! is one.

use palisade::observe::SPAN_TARGET;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

use super::trace::Traces;
use crate::config::{Log, LogFormat, LogLevel};
use crate::failure::Failure;

/// Starts logging. A second start in one process changes nothing.
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

const fn threshold(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}
