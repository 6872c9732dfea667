//! The lines of a state file.

use std::io::{self, BufRead, Read, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use palisade_core::Digest;
use palisade_core::key::Keyring;
use palisade_core::record::{RecordKey, RecordKind};
use palisade_core::time::Micros;
use palisade_store::{Entry, ListedRecord, Registry, StoreError};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::Counts;

/// Version of the format. Files of other versions are refused.
pub(super) const VERSION: u32 = 1;
/// Longest line that is read. A record has at most a few kilobytes.
const LINE_BYTES_MAX: u64 = 4 << 20;

/// Error of an export or import.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The file cannot be read or written.
    #[error("the state file cannot be read or written: {0}")]
    Io(#[from] io::Error),
    /// The file does not begin like a state file.
    #[error("this is no state file of `palisade export`")]
    NotState,
    /// The file has another version.
    #[error("the state file has version {0}; use the palisade that wrote it, or a newer one")]
    Version(u32),
    /// The file's digests belong to another secret.
    #[error(
        "the state file was written under another secret: its digests fit none of `secrets.key` and `secrets.previous_key`"
    )]
    OtherSecret,
    /// The file ends before its last line, or its checksum does not fit.
    #[error("the state file is damaged or not whole (line {line}); export it again")]
    Damaged {
        /// Number of the line.
        line: u64,
    },
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    /// The first line.
    PalisadeState {
        version: u32,
        /// Names of the secrets under which the digests were made.
        secrets: Vec<String>,
        taken_at: String,
    },
    Record {
        kind: String,
        id: String,
        expires_at: u64,
        bytes: String,
    },
    Entry {
        registry: String,
        id: String,
        expires_at: Option<u64>,
        bytes: String,
    },
    Quota {
        api_key: String,
        used: u64,
        reset_at: u64,
    },
    /// The last line.
    End {
        counts: Counts,
        /// Checksum over all lines before this one.
        sha256: String,
    },
}

/// The names of a keyring's secrets, the current one first.
pub(super) fn secrets_of(keyring: &Keyring) -> Vec<String> {
    let names = keyring.fingerprints();
    let all = [Some(names.current), names.previous];
    all.into_iter().flatten().map(Digest::hex).collect()
}

impl Line {
    pub(super) fn record(listed: &ListedRecord) -> Self {
        Self::Record {
            kind: listed.key.kind.name().to_owned(),
            id: listed.key.digest.hex(),
            expires_at: listed.expires_at.0,
            bytes: STANDARD.encode(&listed.record.bytes),
        }
    }

    pub(super) fn entry(registry: Registry, entry: &Entry) -> Self {
        Self::Entry {
            registry: registry.name().to_owned(),
            id: entry.id.clone(),
            expires_at: entry.expires_at.map(|at| at.0),
            bytes: STANDARD.encode(&entry.bytes),
        }
    }

    /// Returns the item of this line; `None` if the line is not valid.
    pub(super) fn item(self) -> Option<Item> {
        Some(match self {
            Self::Record {
                kind,
                id,
                expires_at,
                bytes,
            } => Item::Record(RecordLine {
                key: RecordKey {
                    kind: *RecordKind::ALL.iter().find(|known| known.name() == kind)?,
                    digest: Digest::from_hex(&id)?,
                },
                bytes: STANDARD.decode(bytes).ok()?,
                expires_at: Micros(expires_at),
            }),
            Self::Entry {
                registry,
                id,
                expires_at,
                bytes,
            } => Item::Entry(
                *MOVED.iter().find(|known| known.name() == registry)?,
                Entry {
                    id,
                    bytes: STANDARD.decode(bytes).ok()?,
                    expires_at: expires_at.map(Micros),
                },
            ),
            Self::Quota {
                api_key,
                used,
                reset_at,
            } => Item::Quota(QuotaLine {
                api_key,
                used,
                reset_at: Micros(reset_at),
            }),
            Self::PalisadeState { .. } | Self::End { .. } => return None,
        })
    }
}

/// The registries that are exported. Resets are left out, because they are announcements between
/// the nodes of one store.
pub(super) const MOVED: [Registry; 5] = [
    Registry::Allowlist,
    Registry::Tiers,
    Registry::Overages,
    Registry::ApiKeys,
    Registry::Clients,
];

/// The item on a line between the first and the last.
pub(super) enum Item {
    Record(RecordLine),
    Entry(Registry, Entry),
    Quota(QuotaLine),
}

pub(super) struct RecordLine {
    pub(super) key: RecordKey,
    pub(super) bytes: Vec<u8>,
    pub(super) expires_at: Micros,
}

pub(super) struct QuotaLine {
    pub(super) api_key: String,
    pub(super) used: u64,
    pub(super) reset_at: Micros,
}

impl Counts {
    pub(super) const fn count(&mut self, item: &Item) {
        match item {
            Item::Record(_) => self.records += 1,
            Item::Entry(..) => self.entries += 1,
            Item::Quota(_) => self.quotas += 1,
        }
    }
}

/// Writes lines and keeps their checksum.
pub(super) struct Writer<W> {
    to: W,
    sum: Sha256,
    pub(super) counts: Counts,
}

impl<W: Write> Writer<W> {
    pub(super) fn new(to: W) -> Self {
        Self {
            to,
            sum: Sha256::new(),
            counts: Counts::default(),
        }
    }

    pub(super) fn line(&mut self, line: &Line) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        self.sum.update(&bytes);
        self.to.write_all(&bytes)
    }

    /// Writes the last line and flushes.
    pub(super) fn end(mut self) -> io::Result<Counts> {
        let counts = self.counts;
        // Taken before the last line is written, which then is not part of the sum.
        let sha256 = hex(self.sum.clone());
        self.line(&Line::End { counts, sha256 })?;
        self.to.flush()?;
        Ok(counts)
    }
}

/// Reads lines and keeps their checksum.
pub(super) struct Reader<R> {
    from: R,
    sum: Sha256,
    /// Number of the line that was read last, from 1.
    pub(super) number: u64,
}

impl<R: BufRead> Reader<R> {
    pub(super) fn new(from: R) -> Self {
        Self {
            from,
            sum: Sha256::new(),
            number: 0,
        }
    }

    /// Returns the next line; the last one only if the checksum of all lines before it fits.
    pub(super) fn line(&mut self) -> Result<Line, StateError> {
        self.number += 1;
        let mut bytes = Vec::new();
        let mut bounded = (&mut self.from).take(LINE_BYTES_MAX);
        bounded.read_until(b'\n', &mut bytes)?;
        // A line without its line break was cut off, or is longer than the bound.
        if bytes.pop() != Some(b'\n') {
            return Err(self.damaged());
        }
        let line = serde_json::from_slice(&bytes).map_err(|_| self.damaged())?;
        if let Line::End { sha256, .. } = &line
            && *sha256 != hex(self.sum.clone())
        {
            return Err(self.damaged());
        }
        bytes.push(b'\n');
        self.sum.update(&bytes);
        Ok(line)
    }

    pub(super) const fn damaged(&self) -> StateError {
        StateError::Damaged { line: self.number }
    }
}

fn hex(sum: Sha256) -> String {
    use std::fmt::Write;
    let digest = sum.finalize();
    digest.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
