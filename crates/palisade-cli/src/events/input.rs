//! Reads a file or standard input, plain or gzip, line by line and within bounds.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;
use palisade_server::failure::Failure;

use super::super::offline;

/// Longest line that is read, in bytes; the rest of a longer one is skipped.
const LINE_BYTES_MAX: usize = 64 * 1024;
const BUFFER_BYTES: usize = 256 * 1024;

/// The lines of a recording.
pub(super) struct Lines {
    input: Box<dyn BufRead + Send>,
    line: Vec<u8>,
    number: u64,
}

/// One line.
pub(super) struct Line<'a> {
    pub(super) number: u64,
    pub(super) bytes: &'a [u8],
    /// True if the line was longer than the bound.
    pub(super) is_cut: bool,
}

/// Opens a recording; `read` counts the bytes taken from the file. Returns its length, too, if it
/// has one.
pub(super) fn open(path: &Path, read: Arc<AtomicU64>) -> Result<(Lines, Option<u64>), Failure> {
    let (raw, length): (Box<dyn Read + Send>, _) = if path == Path::new("-") {
        (Box::new(io::stdin()), None)
    } else {
        let file = File::open(path).map_err(|error| offline::unreadable(path, &error))?;
        let length = file.metadata().ok().filter(std::fs::Metadata::is_file);
        (Box::new(file), length.map(|meta| meta.len()))
    };
    let counted = CountingReader { inner: raw, read };
    let mut input = BufReader::with_capacity(BUFFER_BYTES, counted);
    let start = input.fill_buf();
    let start = start.map_err(|error| offline::unreadable(path, &error))?;
    let input: Box<dyn BufRead + Send> = match start.starts_with(&[0x1f, 0x8b]) {
        true => Box::new(BufReader::with_capacity(
            BUFFER_BYTES,
            MultiGzDecoder::new(input),
        )),
        false => Box::new(input),
    };
    let lines = Lines {
        input,
        line: Vec::with_capacity(1024),
        number: 0,
    };
    Ok((lines, length))
}

impl Lines {
    /// Returns the next line without its end; `None` at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        self.line.clear();
        let mut is_cut = false;
        let mut has_any = false;
        loop {
            let available = self.input.fill_buf()?;
            if available.is_empty() {
                break;
            }
            has_any = true;
            let end = available.iter().position(|byte| *byte == b'\n');
            let part = &available[..end.unwrap_or(available.len())];
            let room = LINE_BYTES_MAX - self.line.len();
            self.line.extend_from_slice(&part[..part.len().min(room)]);
            is_cut |= part.len() > room;
            let used = part.len() + usize::from(end.is_some());
            self.input.consume(used);
            if end.is_some() {
                break;
            }
        }
        if !has_any {
            return Ok(None);
        }
        self.number += 1;
        let bytes = self.line.strip_suffix(b"\r").unwrap_or(&self.line);
        Ok(Some(Line {
            number: self.number,
            bytes,
            is_cut,
        }))
    }
}

/// Counts the bytes that are read from the file itself.
struct CountingReader<R> {
    inner: R,
    read: Arc<AtomicU64>,
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.read.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn lines(bytes: &[u8]) -> Vec<(u64, usize, bool)> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        let (mut lines, length) = open(file.path(), Arc::default()).unwrap();
        assert_eq!(length, Some(bytes.len() as u64));
        let mut all = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            all.push((line.number, line.bytes.len(), line.is_cut));
        }
        all
    }

    #[test]
    fn lines_end_with_or_without_a_return_and_are_bounded() {
        let mut long = vec![b'x'; LINE_BYTES_MAX + 9];
        long.extend_from_slice(b"\nab\r\n\nc");
        let expected = [
            (1, LINE_BYTES_MAX, true),
            (2, 2, false),
            (3, 0, false),
            (4, 1, false),
        ];
        assert_eq!(lines(&long), expected);
    }

    #[test]
    fn gzip_is_found_by_its_first_bytes_several_members_included() {
        let member = |text: &[u8]| {
            let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            writer.write_all(text).unwrap();
            writer.finish().unwrap()
        };
        let mut packed = member(b"one\ntw");
        packed.extend(member(b"o\n"));
        assert_eq!(lines(&packed), [(1, 3, false), (2, 3, false)]);
    }
}
