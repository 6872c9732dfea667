//! Destinations of audit lines.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The events that a sink takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keeps {
    /// All events.
    #[default]
    Everything,
    /// Security events that requests cause: blocks, lockouts, probing. An attacker makes
    /// many of them.
    Security,
    /// Changes by operators and events of the node. No request makes one.
    Changes,
}

/// Takes whole lines. Called from the writer's own thread: it may block.
pub trait Sink: Send + 'static {
    /// Returns which events the sink takes.
    fn keeps(&self) -> Keeps {
        Keeps::Everything
    }

    /// Writes lines; on an error none of them may be left half written, since all
    /// are written again.
    ///
    /// # Errors
    /// The lines could not be written.
    fn write(&mut self, lines: &[u8]) -> io::Result<()>;

    /// Makes what was written durable.
    ///
    /// # Errors
    /// The lines could not be made durable.
    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Lines on standard output.
#[derive(Clone, Copy, Debug, Default)]
pub struct StdoutSink;

impl Sink for StdoutSink {
    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        io::stdout().lock().write_all(lines)
    }

    fn sync(&mut self) -> io::Result<()> {
        io::stdout().lock().flush()
    }
}

/// A file that is rotated at a size: `audit.jsonl`, `audit.jsonl.1` and so on, the highest number
/// the oldest.
#[derive(Debug)]
pub struct FileSink {
    path: PathBuf,
    bytes_max: u64,
    keep: u32,
    file: File,
    /// Length of the file up to the last whole line.
    len: u64,
    keeps: Keeps,
}

impl FileSink {
    /// Opens or creates the file. A line that a crash left half written is ended.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(path: &Path, bytes_max: u64, keep: u32) -> io::Result<Self> {
        let (file, len) = open_whole(path)?;
        Ok(Self {
            path: path.to_owned(),
            bytes_max,
            keep,
            file,
            len,
            keeps: Keeps::Everything,
        })
    }

    /// Takes only these events.
    #[must_use]
    pub fn keeping(self, keeps: Keeps) -> Self {
        Self { keeps, ..self }
    }

    fn rotate(&mut self) -> io::Result<()> {
        // `sync` reaches the current file only.
        self.file.sync_data()?;
        let numbered = |number: u32| {
            let mut name = self.path.clone().into_os_string();
            name.push(format!(".{number}"));
            PathBuf::from(name)
        };
        // From the highest number down, so that only the oldest file is overwritten.
        for number in (1..self.keep).rev() {
            rename_if_there(&numbered(number), &numbered(number + 1))?;
        }
        if self.keep > 0 {
            rename_if_there(&self.path, &numbered(1))?;
        } else {
            std::fs::remove_file(&self.path)?;
        }
        (self.file, self.len) = open_whole(&self.path)?;
        Ok(())
    }
}

fn rename_if_there(from: &Path, to: &Path) -> io::Result<()> {
    match std::fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn open_whole(path: &Path) -> io::Result<(File, u64)> {
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    let mut len = file.seek(SeekFrom::End(0))?;
    if len > 0 {
        file.seek(SeekFrom::End(-1))?;
        let mut last = [0];
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            file.write_all(b"\n")?;
            len += 1;
        }
    }
    Ok((file, len))
}

impl Sink for FileSink {
    fn keeps(&self) -> Keeps {
        self.keeps
    }

    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.len > 0 && self.len + lines.len() as u64 > self.bytes_max {
            self.rotate()?;
        }
        match self.file.write_all(lines) {
            Ok(()) => {
                self.len += lines.len() as u64;
                Ok(())
            }
            Err(error) => {
                // A torn line must not stay: the same lines are written again.
                let _ = self.file.set_len(self.len);
                Err(error)
            }
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }
}
