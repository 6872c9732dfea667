//! Copies of a data directory: taken while its process runs, checked, and restored.
//!
//! A copy holds what a crash at that moment would have left (L-DURABLE): quotas, windows of ten
//! minutes and longer, records and registries, up to the last 100 ms. After a graceful shutdown it
//! also holds the shorter windows. It consists of two files: `state`, all changes in the journal's
//! own frames with a last frame that marks it as whole, and `burst`, the short windows, if there
//! were any. Copying takes the memory of the longest frame, however large the directory is.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::journal::codec;
use super::journal::disk::{Directory, Disk, OpenError, Sink};
use super::journal::files::{self, Part, Source};

/// File of a copy that holds all but short windows.
pub const STATE: &str = "state";
/// File of a copy that holds short windows, if there were any.
pub const BURST: &str = "burst";

/// Most bytes that are read at a time.
const PIECE_BYTES: usize = 1 << 16;

/// Content of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopySummary {
    /// Changes: the latest of each bucket, record and entry, and earlier ones.
    pub changes: u64,
    /// Bytes of both files.
    pub bytes: u64,
    /// Damaged frames of the directory, which are not in the copy.
    pub skipped_frames: u32,
}

/// Reason why a copy could not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The data directory cannot be used.
    #[error(transparent)]
    Data(#[from] OpenError),
    /// The copy cannot be read or written.
    #[error("the copy cannot be read or written: {0}")]
    Copy(#[source] io::Error),
    /// The copy was not written to its end, or is damaged.
    #[error("the copy is damaged or not whole; use another one")]
    Damaged,
    /// The data directory holds state already.
    #[error("the data directory is not empty; name another, or move it away first")]
    NotEmpty,
}

/// Copies the state in `data` into the directory `into`; a process that holds `data` may go on.
/// The files are readable by this user alone, and are on disk when this returns.
///
/// # Errors
/// [`BackupError`]. Files that were written until then stay, and are not taken for a whole copy.
pub fn copy(data: &Path, into: &Path) -> Result<CopySummary, BackupError> {
    let parts = files::opened(&Directory::look(data))?;
    let mut copied = CopySummary::default();
    let (state, burst): (Vec<Part>, Vec<Part>) = parts
        .into_iter()
        .partition(|part| part.source == Source::Journal);
    copied.add(&write(state, &into.join(STATE))?);
    if !burst.is_empty() {
        copied.add(&write(burst, &into.join(BURST))?);
    }
    File::open(into)
        .and_then(|directory| directory.sync_all())
        .map_err(BackupError::Copy)?;
    // Read back, to find a bad copy now and not when it is needed.
    let found = check(into)?;
    Ok(CopySummary {
        skipped_frames: copied.skipped_frames,
        ..found
    })
}

fn write(parts: Vec<Part>, path: &Path) -> Result<CopySummary, BackupError> {
    let mut options = OpenOptions::new();
    let created = options.write(true).create_new(true).mode(0o600).open(path);
    let mut to = BufWriter::with_capacity(PIECE_BYTES, created.map_err(BackupError::Copy)?);
    let mut copied = CopySummary::default();
    let copy = || -> io::Result<bool> {
        to.write_all(&codec::header())?;
        for part in parts {
            let through = codec::copy(part.file, &mut to)?;
            copied.skipped_frames += through.skipped;
            if through.is_newer {
                return Ok(false);
            }
        }
        to.write_all(&codec::trailer())?;
        to.flush()?;
        to.get_ref().sync_all()?;
        Ok(true)
    };
    match copy() {
        Ok(true) => Ok(copied),
        Ok(false) => Err(OpenError::Newer.into()),
        Err(error) => Err(BackupError::Copy(error)),
    }
}

impl CopySummary {
    const fn add(&mut self, other: &Self) {
        self.changes += other.changes;
        self.bytes += other.bytes;
        self.skipped_frames += other.skipped_frames;
    }
}

/// Checks a copy by reading it to its end: every frame must be whole, and the last one present.
///
/// # Errors
/// [`BackupError`].
pub fn check(copy: &Path) -> Result<CopySummary, BackupError> {
    let mut found = read(&copy.join(STATE))?;
    if copy.join(BURST).exists() {
        found.add(&read(&copy.join(BURST))?);
    }
    Ok(found)
}

fn read(path: &Path) -> Result<CopySummary, BackupError> {
    let file = File::open(path).map_err(BackupError::Copy)?;
    let mut changes = 0;
    let file = BufReader::with_capacity(PIECE_BYTES, file);
    let through = codec::read(file, |_| changes += 1).map_err(BackupError::Copy)?;
    if through.is_newer {
        return Err(OpenError::Newer.into());
    }
    if !through.is_whole || through.torn > 0 || through.skipped > 0 {
        return Err(BackupError::Damaged);
    }
    Ok(CopySummary {
        changes,
        bytes: through.good,
        skipped_frames: 0,
    })
}

/// Restores a copy into the data directory `data`, which is created if need be, must hold no state
/// yet and must be held by no other process. The copy appears there whole or not at all.
///
/// # Errors
/// [`BackupError`]; a copy that is not whole changes nothing.
pub fn restore(copy: &Path, data: &Path) -> Result<CopySummary, BackupError> {
    let found = check(copy)?;
    let directory = Directory::open(data)?;
    if files::is_state(&directory.list().map_err(OpenError::from)?) {
        return Err(BackupError::NotEmpty);
    }
    let (first, burst) = files::first_names();
    // Short windows first: without them, the state could be taken for the whole copy.
    if copy.join(BURST).exists() {
        place(&copy.join(BURST), &directory, burst)?;
    }
    place(&copy.join(STATE), &directory, &first)?;
    Ok(found)
}

/// Creates a data directory that only this user can enter, unless it exists. It must be held by no
/// other process.
///
/// # Errors
/// [`BackupError`].
pub fn prepare(data: &Path) -> Result<(), BackupError> {
    Directory::open(data)?;
    Ok(())
}

/// Moves the state in a data directory that no process holds, and the files `others`, into a
/// folder of that directory. Returns the folder, or `None` if there was nothing to move.
///
/// # Errors
/// [`BackupError`]; files that were moved until then stay moved.
pub fn set_aside(
    data: &Path,
    folder: &str,
    others: &[&str],
) -> Result<Option<PathBuf>, BackupError> {
    let directory = Directory::open(data)?;
    let names = directory.list().map_err(OpenError::from)?;
    let mut moved = files::all_of_state(&names);
    moved.extend(
        names
            .into_iter()
            .filter(|name| others.contains(&name.as_str())),
    );
    if moved.is_empty() {
        return Ok(None);
    }
    let into = data.join(folder);
    let made = DirBuilder::new().mode(0o700).create(&into);
    made.map_err(OpenError::from)?;
    for name in moved {
        let to = format!("{folder}/{name}");
        directory.rename(&name, &to).map_err(OpenError::from)?;
    }
    directory.sync().map_err(OpenError::from)?;
    Ok(Some(into))
}

fn place(from: &Path, directory: &Directory, name: &str) -> Result<(), BackupError> {
    let mut file = File::open(from).map_err(BackupError::Copy)?;
    // Under another name until it is whole and on disk: after a crash, no part of it passes for
    // state.
    let unfinished = format!("{name}.tmp");
    let mut sink = directory.create(&unfinished).map_err(OpenError::from)?;
    pour(&mut file, &mut *sink)?;
    sink.sync().map_err(OpenError::from)?;
    let renamed = directory.rename(&unfinished, name);
    renamed
        .and_then(|()| directory.sync())
        .map_err(OpenError::from)?;
    Ok(())
}

fn pour(from: &mut File, to: &mut dyn Sink) -> Result<(), BackupError> {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let count = from.read(&mut piece).map_err(BackupError::Copy)?;
        if count == 0 {
            return Ok(());
        }
        to.append(&piece[..count]).map_err(OpenError::from)?;
    }
}
