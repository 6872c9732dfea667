//! `palisade bench`: a reproducible load on a store in this process or on a running service.

mod http;
mod over;

use std::path::PathBuf;

use clap::Args;

use palisade_server::failure::{CommandStatus, Failure};
use palisade_server::load::{self, Load};
use palisade_server::output;
use serde_json::Value;

/// Measures decisions per second and latency, and checks that no request too many was admitted.
///
/// Without `--target`, the engine runs in this process on `--store`. With it, running services are
/// asked over HTTP, and the number of admitted requests is compared with `--limit`, if given.
/// Numbers are only comparable within one run on one machine. The exit code is 1 if a request too
/// many was admitted or a request failed.
///
/// With `--over-admission`, any limiter is asked by all callers as one client, some of which hang
/// up in the middle of a request, and the requests are counted that it admitted beyond `--limit`
/// in one `--window`. The target is http://HOST:PORT/PATH, where success means admitted and 429 or
/// 503 refused, HOST:PORT or a URL of Palisade's `/v1/check`, or
/// grpc://HOST:PORT/DOMAIN/KEY=VALUE for Envoy's rate-limit service. The exit code is 1 also if the
/// limit was never reached.
#[derive(Clone, Debug, Args)]
pub(crate) struct Bench {
    /// Store to measure: memory:, embedded:DIR, redis://…, postgres://…
    #[arg(long, value_name = "URL", default_value = "memory:")]
    store: String,
    /// Services to measure over HTTP instead, for example 127.0.0.1:8080; nodes that share a store,
    /// separated by commas
    #[arg(
        long,
        value_name = "ADDRESS",
        value_delimiter = ',',
        conflicts_with = "store"
    )]
    target: Vec<String>,
    /// File with the service's caller token [default: the variable `PALISADE_CALLER_TOKEN`]
    #[arg(long, value_name = "FILE", requires = "target")]
    token_file: Option<PathBuf>,
    /// Count what a limiter admits beyond its limit in one window
    #[arg(long, requires_all = ["target", "limit", "window"])]
    over_admission: bool,
    /// Length of the limit's window in seconds
    #[arg(long, value_name = "SECONDS", requires = "over_admission")]
    window: Option<u64>,
    /// Windows begin at multiples of their length, instead of at any instant
    #[arg(long, requires = "over_admission")]
    fixed_window: bool,
    /// Number of distinct callers
    #[arg(long, default_value_t = 100_000)]
    keys: u32,
    /// Requests that each caller may make, in a window that is longer than the run; with
    /// `--target`, the limit in the service's policy [default: 1000000, with `--target` none]
    #[arg(long)]
    limit: Option<u32>,
    /// Concurrent requests (connections over HTTP)
    #[arg(long, default_value_t = 64)]
    concurrency: u32,
    /// Number of threads
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Seconds to run
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Requests that each caller may make, where the engine runs in this process.
const ENGINE_LIMIT: u32 = 1_000_000;

impl Bench {
    pub(crate) fn run(self) -> Result<CommandStatus, Failure> {
        let bounded = (1..=600).contains(&self.seconds)
            && (1..=64).contains(&self.threads)
            && (1..=10_000).contains(&self.concurrency)
            && (1..=20_000_000).contains(&self.keys)
            && self.target.len() <= 64
            && self.window.is_none_or(|window| (1..=600).contains(&window))
            && self.limit != Some(0);
        if !bounded {
            return Err(Failure::usage(
                "a figure of the load is out of range",
                "seconds 1 to 600, threads and targets 1 to 64, concurrency 1 to 10000, keys 1 to 20000000, window 1 to 600, limit at least 1",
            ));
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(self.threads)
            .enable_all()
            .build()
            .map_err(|error| Failure::unavailable(error.to_string(), "try again"))?;
        if let (true, Some(count), Some(window)) = (self.over_admission, self.limit, self.window) {
            let limit = over::Limit {
                count,
                window_us: window * 1_000_000,
                is_fixed: self.fixed_window,
            };
            let report = runtime.block_on(over::run(&self, limit))?;
            return Ok(self.print(&report.as_json(), &report.as_text(), report.is_sound()));
        }
        let report = match self.target.is_empty() {
            false => runtime.block_on(http::run(&self))?,
            true => runtime.block_on(load::run(&self.of_an_engine()))?,
        };
        Ok(self.print(&report.as_json(), &report.as_text(), report.is_sound()))
    }

    fn print(&self, json: &Value, text: &str, is_sound: bool) -> CommandStatus {
        if self.json {
            output::json(json);
        } else {
            output::print(text);
        }
        match is_sound {
            true => CommandStatus::Done,
            false => CommandStatus::Negative,
        }
    }

    fn of_an_engine(&self) -> Load {
        Load {
            store: self.store.clone(),
            keys: self.keys,
            limit: self.limit.unwrap_or(ENGINE_LIMIT),
            concurrency: self.concurrency,
            threads: self.threads,
            seconds: self.seconds,
        }
    }
}
