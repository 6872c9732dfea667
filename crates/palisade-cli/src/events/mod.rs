//! Turns recorded traffic into events, in any of several formats: the source ([`input`]), the
//! reader of a line ([`format`]), and a thread that runs both ahead of the thread that decides
//! ([`ahead`]).

mod ahead;
mod audit;
mod combined;
mod envoy;
mod format;
mod input;
mod logged;
mod pattern;
mod whose;

use std::path::PathBuf;

use clap::Args;
use palisade::cases::{CaseError, Event};

pub(super) use ahead::{Ahead, BatchReturn, read_ahead};
pub(super) use format::{Format, Names};

/// Most wrong lines that are named.
const NAMED_MAX: usize = 10;

/// The recording to read.
#[derive(Clone, Debug, Args)]
pub(crate) struct RecordingArgs {
    /// File of the recording, plain or gzip; `-` is standard input
    #[arg(value_name = "EVENTS")]
    pub(super) events: PathBuf,
    /// Format of the recording: `jsonl` (as for `palisade test`), `combined` or `common`, `envoy`
    /// (JSON access log), `audit` (Palisade's own), or a pattern in the form of nginx's
    /// `log_format`, for example '$remote_addr [$time_iso8601] "$request"'
    #[arg(long, default_value = "auto", value_name = "FORMAT")]
    pub(super) format: Format,
}

/// An event and the number of its line.
pub(super) struct NumberedEvent {
    pub(super) line: u64,
    pub(super) event: Event,
    /// A keyed hash of its subject, if it has one.
    pub(super) whose: Option<u64>,
    /// Whether the event was allowed, once it is decided.
    pub(super) is_allowed: Option<bool>,
}

/// A reason why a line gave no event. Names fields, never their values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LineError {
    /// The line is no request in the format of the recording.
    Line(&'static str),
    /// A field of the line is not valid.
    Field(CaseError),
}

impl From<CaseError> for LineError {
    fn from(error: CaseError) -> Self {
        Self::Field(error)
    }
}

impl std::fmt::Display for LineError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Line(problem) => f.write_str(problem),
            Self::Field(error) => error.fmt(f),
        }
    }
}

/// Number of lines that could not be used, and the first of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WrongLines {
    pub(super) count: u64,
    pub(super) first: Vec<(u64, String)>,
}

impl WrongLines {
    pub(super) fn note(&mut self, line: u64, why: &LineError) {
        self.count += 1;
        if self.first.len() < NAMED_MAX {
            self.first.push((line, why.to_string()));
        }
    }

    pub(super) fn extend(&mut self, other: Self) {
        self.count += other.count;
        let room = NAMED_MAX - self.first.len();
        self.first.extend(other.first.into_iter().take(room));
    }
}
