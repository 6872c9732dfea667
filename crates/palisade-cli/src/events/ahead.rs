//! A thread that reads and parses ahead of whoever decides, by batches, a few at a time. It
//! gets them back when they are done with: memory is freed cheaply by who allocated it, and
//! deciding is the slower of the two.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use palisade_core::path::EncodedSlash;
use palisade_server::failure::Failure;

use super::super::offline;
use super::format::{Names, Reader};
use super::input::{self, Lines};
use super::whose::Whose;
use super::{Numbered, Recording, Unread, WrongLines};

/// Events that are handed over at once.
const BATCH: usize = 512;
/// Batches that wait: with their events, what is read ahead stays below a few megabytes.
const WAITING_MAX: usize = 8;

/// Events that were read together, and lines among them that gave none.
#[derive(Default)]
struct Batch {
    events: Vec<Numbered>,
    wrong: WrongLines,
    /// Lines that tell of no decision.
    others: u64,
}

/// What a thread reads ahead.
pub(crate) struct Ahead {
    batches: Receiver<io::Result<Batch>>,
    pub(crate) done: Done,
    path: PathBuf,
    read: Arc<AtomicU64>,
    /// Bytes of the file, if it is one.
    pub(crate) length: Option<u64>,
    pub(crate) wrong: WrongLines,
    pub(crate) others: u64,
}

/// Starts to read a recording of an application with this reading of escaped slashes.
pub(crate) fn read_ahead(
    recording: &Recording,
    names: Names,
    slash: EncodedSlash,
) -> Result<Ahead, Failure> {
    let read = Arc::new(AtomicU64::new(0));
    let (lines, length) = input::open(&recording.events, Arc::clone(&read))?;
    let (sender, batches) = sync_channel(WAITING_MAX);
    let (done, back) = sync_channel(WAITING_MAX);
    let source = Source {
        lines,
        reader: Reader::new(recording.format.clone(), names, slash),
        whose: Whose::default(),
        back,
    };
    std::thread::Builder::new()
        .name("palisade-read".to_owned())
        .spawn(move || source.send_all(&sender))
        .map_err(|error| {
            Failure::unavailable(format!("cannot start a thread: {error}"), "try again")
        })?;
    Ok(Ahead {
        batches,
        done: Done(done),
        path: recording.events.clone(),
        read,
        length,
        wrong: WrongLines::default(),
        others: 0,
    })
}

impl Ahead {
    /// The next events; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<Vec<Numbered>>, Failure> {
        let Ok(batch) = self.batches.recv() else {
            return Ok(None);
        };
        let batch = batch.map_err(|error| offline::unreadable(&self.path, &error))?;
        self.wrong.extend(batch.wrong);
        self.others += batch.others;
        Ok(Some(batch.events))
    }

    /// Bytes of the file that were read.
    pub(crate) fn read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }
}

/// Takes batches that are done with.
#[derive(Clone)]
pub(crate) struct Done(SyncSender<Vec<Numbered>>);

impl Done {
    /// Gives a batch back. Nobody waits for that: where it cannot be taken, it ends here.
    pub(crate) fn give_back(&self, batch: Vec<Numbered>) {
        drop(self.0.try_send(batch));
    }
}

/// Where events come from.
struct Source {
    lines: Lines,
    reader: Reader,
    whose: Whose,
    /// Batches that are done with.
    back: Receiver<Vec<Numbered>>,
}

impl Source {
    /// Ends with the recording, or when nobody wants more of it.
    fn send_all(mut self, sender: &SyncSender<io::Result<Batch>>) {
        loop {
            let batch = self.next_batch();
            let is_last = !matches!(&batch, Ok((_, false)));
            if sender.send(batch.map(|(batch, _)| batch)).is_err() || is_last {
                return;
            }
        }
    }

    /// Room for a batch, of one that is done with if there is one.
    fn room(&self) -> Vec<Numbered> {
        let mut room = self.back.try_recv().unwrap_or_default();
        room.clear();
        room.reserve_exact(BATCH);
        room
    }

    /// A batch, and whether it is the last.
    fn next_batch(&mut self) -> io::Result<(Batch, bool)> {
        let mut batch = Batch {
            events: self.room(),
            ..Batch::default()
        };
        while batch.events.len() < BATCH {
            let Some(line) = self.lines.next()? else {
                return Ok((batch, true));
            };
            let text = match std::str::from_utf8(line.bytes) {
                _ if line.is_cut => Err(Unread::Line("is longer than 64 KiB")),
                Ok(text) if text.trim().is_empty() => continue,
                Ok(text) => Ok(text),
                Err(_) => Err(Unread::Line("is not UTF-8")),
            };
            match text.and_then(|text| self.reader.event(text)) {
                Ok(Some(event)) => batch.events.push(Numbered {
                    line: line.number,
                    whose: self.whose.of(&event),
                    event,
                    is_allowed: None,
                }),
                Ok(None) => batch.others += 1,
                Err(why) => batch.wrong.note(line.number, &why),
            }
        }
        Ok((batch, false))
    }
}
