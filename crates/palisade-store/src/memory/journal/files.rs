//! The journal's files: numbered logs, and a snapshot that replaces all logs before its number.
//!
//! A log that could not be written or synced is left as it is, because it is unknown what reached
//! the disk; its last changes go to the next log. Replaying the files in the order of their
//! numbers gives the newest state. A damaged frame is left out and reported; the frames after it
//! count.

use std::fmt;
use std::io::{self, Read};
use std::sync::Arc;

use super::codec::{self, Batch, Change, ReadThrough};
use super::disk::{Disk, OpenError, Sink};

const LOG: &str = "log-";
const SNAPSHOT: &str = "snapshot-";
const UNFINISHED: &str = ".tmp";
/// Buckets of short windows, as they were at the last graceful shutdown.
const BURST: &str = "burst";
/// Number of logs from which a snapshot replaces them, however short they are.
const LOGS_MAX: u64 = 16;

/// Result of starting from a data directory. Its text is a sentence for the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Changes that were read from the logs; a thing that was written several times counts several
    /// times.
    pub changes: u64,
    /// Buckets of short windows that a graceful shutdown had kept.
    pub bursts: u64,
    /// Buckets that were restored.
    pub buckets: u64,
    /// Records that were restored.
    pub records: u64,
    /// Registry entries that were restored.
    pub entries: u64,
    /// Bytes of incomplete writes at the ends of logs, which were cut off.
    pub torn_bytes: u64,
    /// Damaged frames: their content is lost, the rest is not.
    pub skipped_frames: u32,
    /// Snapshots that are damaged: they end too early.
    pub damaged_files: u32,
}

impl RecoveryReport {
    /// True if something was lost that had been written. A crash alone does not cause that.
    #[must_use]
    pub const fn is_damaged(&self) -> bool {
        self.skipped_frames > 0 || self.damaged_files > 0
    }
}

impl fmt::Display for RecoveryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            buckets,
            bursts,
            records,
            entries,
            ..
        } = self;
        write!(
            f,
            "recovered {buckets} buckets, {records} records and {entries} registry entries"
        )?;
        if *bursts == 0 {
            f.write_str("; windows under 10 minutes start empty")?;
        }
        if self.torn_bytes > 0 {
            let torn = self.torn_bytes;
            write!(f, "; {torn} bytes of an unfinished write were cut off")?;
        }
        if self.skipped_frames > 0 {
            write!(f, "; damaged frames left out: {}", self.skipped_frames)?;
        }
        if self.damaged_files > 0 {
            write!(f, "; damaged files: {}", self.damaged_files)?;
        }
        Ok(())
    }
}

/// Kind of file that a change was read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A log or a snapshot: the change is on disk.
    Journal,
    /// The short windows that a graceful shutdown kept.
    Burst,
}

/// Files of a journal that is being written.
pub(crate) struct Files {
    disk: Arc<dyn Disk>,
    /// Number of the log that is or will be written.
    number: u64,
    /// Number of the oldest log that is still needed.
    first: u64,
    sink: Option<Box<dyn Sink>>,
    /// Whether the current log holds anything but its header.
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

/// One open file of a state, and its kind.
pub(crate) struct Part {
    pub(crate) file: Box<dyn Read>,
    pub(crate) source: Source,
}

/// Attempts at listing a directory whose files are just being replaced, which happens once in
/// megabytes of changes.
const LOOKS_MAX: usize = 100;

/// Opens the files that make up the state, the oldest first, while another process may go on
/// writing: read to their ends, they hold what a crash at this moment would have left.
///
/// # Errors
/// [`OpenError`]; also if the files are replaced at every attempt.
pub(crate) fn opened(disk: &dyn Disk) -> Result<Vec<Part>, OpenError> {
    for _ in 0..LOOKS_MAX {
        let names = needed(&disk.list()?);
        let parts: io::Result<Vec<Part>> = names.iter().map(|name| part(disk, name)).collect();
        match parts {
            // Only the last log grows. If a snapshot replaced the others meanwhile, the list
            // itself might be half old, half new.
            Ok(parts) if needed(&disk.list()?) == names => return Ok(parts),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::from(io::ErrorKind::ResourceBusy).into())
}

fn part(disk: &dyn Disk, name: &str) -> io::Result<Part> {
    let source = match name {
        BURST => Source::Burst,
        _ => Source::Journal,
    };
    Ok(Part {
        file: disk.read(name)?,
        source,
    })
}

/// Selects the files that count: the last snapshot, the logs since, and the short windows.
fn needed(names: &[String]) -> Vec<String> {
    let snapshot = numbers(names, SNAPSHOT).last().copied();
    let logs = numbers(names, LOG).into_iter();
    let since = logs.filter(|log| snapshot.is_none_or(|first| *log >= first));
    let burst = names.iter().find(|name| *name == BURST).cloned();
    let snapshot = snapshot.map(snapshot_name).into_iter();
    snapshot.chain(since.map(log_name)).chain(burst).collect()
}

/// Names of the first file of a state and of its short windows.
pub(crate) fn first_names() -> (String, &'static str) {
    (snapshot_name(1), BURST)
}

/// True if one of the names is that of a file with state.
pub(crate) fn is_state(names: &[String]) -> bool {
    !needed(names).is_empty()
}

/// All files of the journal, including those that no longer count.
pub(crate) fn all_of_state(names: &[String]) -> Vec<String> {
    let is_ours = |name: &&String| {
        let begins = |with: &str| name.starts_with(with);
        begins(LOG) || begins(SNAPSHOT) || begins(BURST)
    };
    names.iter().filter(is_ours).cloned().collect()
}

impl Files {
    /// Reads all files and prepares for writing.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        compact_bytes: u64,
        mut each: impl FnMut(Change, Source),
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
            each(change, Source::Journal);
        };
        let (mut damaged, mut skipped) = (0, 0);
        if let Some(number) = numbers(&names, SNAPSHOT).last().copied() {
            let through = files.read(&snapshot_name(number), &mut count)?;
            damaged += u32::from(!through.is_whole || through.torn > 0);
            skipped += through.skipped;
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
            skipped += through.skipped;
            files.log_bytes += through.good;
            // A new log for each run: nothing is appended to one that a crash may have torn.
            files.number = number + 1;
        }
        report.torn_bytes = torn_bytes;
        report.damaged_files = damaged;
        report.skipped_frames = skipped;
        files.read_burst(&names, &mut report, &mut each)?;
        files.remove_outdated(&names);
        files.begin_log()?;
        Ok((files, report))
    }

    /// Reads the short windows that the last graceful shutdown kept, and removes the file: a later
    /// crash must not bring back what was reset or used up since.
    fn read_burst(
        &self,
        names: &[String],
        report: &mut RecoveryReport,
        each: &mut impl FnMut(Change, Source),
    ) -> Result<(), OpenError> {
        if !names.iter().any(|name| name == BURST) {
            return Ok(());
        }
        let through = self.read(BURST, &mut |change| {
            report.bursts += 1;
            each(change, Source::Burst);
        })?;
        report.skipped_frames += through.skipped;
        report.damaged_files += u32::from(!through.is_whole);
        let _ = self.disk.remove(BURST);
        Ok(())
    }

    /// Keeps buckets of short windows for the next start, a part at a time; `collect` returns
    /// false if there is no such part.
    pub(crate) fn write_burst(
        &self,
        mut collect: impl FnMut(usize, &mut Batch) -> bool,
    ) -> io::Result<()> {
        let unfinished = BURST.to_owned() + UNFINISHED;
        let mut sink: Option<Box<dyn Sink>> = None;
        for part in 0.. {
            let mut batch = Batch::nameless();
            if !collect(part, &mut batch) {
                break;
            }
            if batch.is_empty() {
                continue;
            }
            let begun = match sink.take() {
                Some(begun) => begun,
                None => self.begin(&unfinished)?,
            };
            sink.insert(begun).append(&batch.finish().0)?;
        }
        let Some(mut sink) = sink else {
            return Ok(());
        };
        sink.append(&codec::trailer())?;
        sink.sync()?;
        // Only now: under this name, the file must be whole.
        self.disk.rename(&unfinished, BURST)?;
        self.disk.sync()
    }

    fn read(&self, name: &str, each: &mut impl FnMut(Change)) -> Result<ReadThrough, OpenError> {
        let through = codec::read(self.disk.read(name)?, each)?;
        if through.is_newer {
            return Err(OpenError::Newer);
        }
        Ok(through)
    }

    /// Removes files that a newer snapshot replaces, and unfinished snapshots. A file that cannot
    /// be removed does no harm: the next start ignores it too.
    fn remove_outdated(&self, names: &[String]) {
        for name in names {
            let is_outdated = |prefix: &str| {
                let number = name
                    .strip_prefix(prefix)
                    .and_then(|n| n.parse::<u64>().ok());
                number.is_some_and(|number| number < self.first)
            };
            let is_ours = name.starts_with(SNAPSHOT) || name.starts_with(BURST);
            let is_unfinished = is_ours && name.ends_with(UNFINISHED);
            if is_outdated(LOG) || is_outdated(SNAPSHOT) || is_unfinished {
                let _ = self.disk.remove(name);
            }
        }
    }

    fn begin(&self, name: &str) -> io::Result<Box<dyn Sink>> {
        let mut sink = self.disk.create(name)?;
        sink.append(&codec::header())?;
        Ok(sink)
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

    /// Appends frames and makes them durable. After an error, they may or may not be on disk.
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

    /// Ends the current log. A log without changes is written again under its number, so that
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

    /// Path of the directory, for logs.
    pub(crate) fn place(&self) -> String {
        self.disk.place()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.log_bytes + self.snapshot_bytes
    }

    /// Begins a snapshot. Everything in the logs so far is in memory; later changes also go to the
    /// next log.
    pub(crate) fn begin_snapshot(&mut self) -> io::Result<Snapshot> {
        self.has_changes = true;
        self.end_log();
        let number = self.number;
        let sink = self.begin(&(snapshot_name(number) + UNFINISHED))?;
        Ok(Snapshot {
            number,
            sink,
            bytes: 0,
        })
    }

    /// Puts a finished snapshot in place of the logs that it replaces.
    pub(crate) fn finish_snapshot(&mut self, mut snapshot: Snapshot) -> io::Result<()> {
        snapshot.append(&codec::trailer())?;
        snapshot.sink.sync()?;
        let name = snapshot_name(snapshot.number);
        // Only now: under this name, the snapshot replaces the logs.
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
