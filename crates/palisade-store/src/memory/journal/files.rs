//! The journal's files: numbered logs, and a snapshot that stands for all logs
//! before its number.
//!
//! A log that could not be written or synced is left as it is, for nobody knows
//! what reached the disk; what it should have held goes to the next one. Replaying
//! in the order of numbers, each up to its first frame that is not whole, gives the
//! newest state.

use std::io;
use std::sync::Arc;

use super::codec::{self, Change, ReadThrough};
use super::disk::{Disk, OpenError, Sink};

const LOG: &str = "log-";
const SNAPSHOT: &str = "snapshot-";
const UNFINISHED: &str = ".tmp";
/// More logs than this are replaced by a snapshot, however short they are.
const LOGS_MAX: u64 = 16;

/// What starting from a data directory came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Quota buckets, records and registry entries that were read; one that was
    /// written several times counts several times.
    pub changes: u64,
    /// Bytes at the end of a log that had not been written whole, and were cut off.
    pub torn_bytes: u64,
    /// Files that end before they should otherwise: something has damaged them.
    pub damaged_files: u32,
}

/// The files.
pub(crate) struct Files {
    disk: Arc<dyn Disk>,
    /// Number of the log that is or will be written.
    number: u64,
    /// Of the oldest log that is still needed.
    first: u64,
    sink: Option<Box<dyn Sink>>,
    /// Whether that log holds anything but its header.
    has_changes: bool,
    log_bytes: u64,
    snapshot_bytes: u64,
    compact_bytes: u64,
}

/// A snapshot that is being written.
pub(crate) struct Snapshot {
    number: u64,
    sink: Box<dyn Sink>,
    bytes: u64,
}

fn log_name(number: u64) -> String {
    format!("{LOG}{number:020}")
}

fn snapshot_name(number: u64) -> String {
    format!("{SNAPSHOT}{number:020}")
}

fn numbers(names: &[String], prefix: &str) -> Vec<u64> {
    let mut numbers: Vec<u64> = names
        .iter()
        .filter_map(|name| name.strip_prefix(prefix)?.parse().ok())
        .collect();
    numbers.sort_unstable();
    numbers
}

impl Files {
    /// Reads everything and gets ready to write.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        compact_bytes: u64,
        mut each: impl FnMut(Change),
    ) -> Result<(Self, RecoveryReport), OpenError> {
        let names = disk.list()?;
        let mut report = RecoveryReport::default();
        let mut files = Self {
            disk,
            number: 1,
            first: 1,
            sink: None,
            has_changes: false,
            log_bytes: 0,
            snapshot_bytes: 0,
            compact_bytes,
        };
        let mut count = |change: Change| {
            report.changes += 1;
            each(change);
        };
        let mut damaged = 0;
        if let Some(number) = numbers(&names, SNAPSHOT).last().copied() {
            let through = files.read(&snapshot_name(number), &mut count)?;
            damaged += u32::from(!through.is_whole || through.torn > 0);
            files.snapshot_bytes = through.good;
            files.first = number;
            files.number = number;
        }
        let mut torn_bytes = 0;
        for number in numbers(&names, LOG) {
            if number < files.first {
                continue;
            }
            let name = log_name(number);
            let through = files.read(&name, &mut count)?;
            if through.torn > 0 {
                files.disk.truncate(&name, through.good)?;
            }
            torn_bytes += through.torn;
            files.log_bytes += through.good;
            files.number = number + 1;
        }
        report.torn_bytes = torn_bytes;
        report.damaged_files = damaged;
        files.remove_outdated(&names);
        files.begin_log()?;
        Ok((files, report))
    }

    fn read(&self, name: &str, each: &mut impl FnMut(Change)) -> Result<ReadThrough, OpenError> {
        let through = codec::read(self.disk.read(name)?, each)?;
        if through.is_newer {
            return Err(OpenError::Newer);
        }
        Ok(through)
    }

    /// Removes what a newer snapshot stands for, and unfinished snapshots. What
    /// cannot be removed is ignored by the next start as well.
    fn remove_outdated(&self, names: &[String]) {
        for name in names {
            let is_outdated = |prefix: &str| {
                let number = name
                    .strip_prefix(prefix)
                    .and_then(|n| n.parse::<u64>().ok());
                number.is_some_and(|number| number < self.first)
            };
            let is_unfinished = name.starts_with(SNAPSHOT) && name.ends_with(UNFINISHED);
            if is_outdated(LOG) || is_outdated(SNAPSHOT) || is_unfinished {
                let _ = self.disk.remove(name);
            }
        }
    }

    fn begin_log(&mut self) -> io::Result<()> {
        let header = codec::header();
        let mut sink = self.disk.create(&log_name(self.number))?;
        sink.append(&header)?;
        sink.sync()?;
        self.disk.sync()?;
        self.sink = Some(sink);
        self.has_changes = false;
        self.log_bytes += header.len() as u64;
        Ok(())
    }

    /// Appends frames and makes them durable, all or, on an error, perhaps.
    pub(crate) fn append(&mut self, frames: &[u8]) -> io::Result<()> {
        if self.sink.is_none() {
            self.begin_log()?;
        }
        let Some(sink) = &mut self.sink else {
            return Ok(());
        };
        let written = sink.append(frames).and_then(|()| sink.sync());
        match written {
            Ok(()) => {
                self.has_changes = true;
                self.log_bytes += frames.len() as u64;
            }
            Err(_) => self.end_log(),
        }
        written
    }

    /// Writes no more to this log. One without changes is written anew, so that
    /// failures do not leave file after file.
    fn end_log(&mut self) {
        self.sink = None;
        if self.has_changes {
            self.number += 1;
            self.has_changes = false;
        }
    }

    /// True if a snapshot would shorten the next start.
    pub(crate) fn is_long(&self) -> bool {
        self.log_bytes > self.compact_bytes.max(2 * self.snapshot_bytes)
            || self.number - self.first >= LOGS_MAX
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.log_bytes + self.snapshot_bytes
    }

    /// Begins a snapshot. Everything in the logs so far is in memory; what changes
    /// from here on goes to the next log as well.
    pub(crate) fn begin_snapshot(&mut self) -> io::Result<Snapshot> {
        self.has_changes = true;
        self.end_log();
        let number = self.number;
        let mut sink = self.disk.create(&(snapshot_name(number) + UNFINISHED))?;
        sink.append(&codec::header())?;
        Ok(Snapshot {
            number,
            sink,
            bytes: 0,
        })
    }

    /// Puts a finished snapshot in the place of the logs it stands for.
    pub(crate) fn finish_snapshot(&mut self, mut snapshot: Snapshot) -> io::Result<()> {
        snapshot.append(&codec::trailer())?;
        snapshot.sink.sync()?;
        let name = snapshot_name(snapshot.number);
        self.disk.rename(&(name.clone() + UNFINISHED), &name)?;
        self.disk.sync()?;
        self.first = snapshot.number;
        self.snapshot_bytes = snapshot.bytes;
        self.log_bytes = 0;
        self.remove_outdated(&self.disk.list()?);
        Ok(())
    }
}

impl Snapshot {
    pub(crate) fn append(&mut self, frames: &[u8]) -> io::Result<()> {
        self.bytes += frames.len() as u64;
        self.sink.append(frames)
    }
}
