//! A thread that reads and parses events ahead of the thread that decides, in batches, a few at a
//! time. It gets the batches back when they are decided: memory is freed most cheaply by the thread
//! that allocated it, and deciding is the slower of the two.

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
use super::{LineError, NumberedEvent, RecordingArgs, WrongLines};

/// Events in one batch.
const BATCH: usize = 512;
/// Most batches that wait: with their events, the memory for reading ahead stays below a few
/// megabytes.
const WAITING_MAX: usize = 8;

/// Events that were read together, and the lines among them that are no event.
#[derive(Default)]
struct Batch {
    events: Vec<NumberedEvent>,
    wrong: WrongLines,
    /// Lines that report no decision.
    others: u64,
}

/// The events that a thread reads ahead.
pub(crate) struct Ahead {
    batches: Receiver<io::Result<Batch>>,
    pub(crate) done: BatchReturn,
    path: PathBuf,
    read: Arc<AtomicU64>,
    /// Bytes of the file, if it is one.
    pub(crate) length: Option<u64>,
    pub(crate) wrong: WrongLines,
    pub(crate) others: u64,
}

/// Starts to read a recording ahead, with escaped slashes in paths read as `slash` says.
pub(crate) fn read_ahead(
    recording: &RecordingArgs,
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
        done: BatchReturn(done),
        path: recording.events.clone(),
        read,
        length,
        wrong: WrongLines::default(),
        others: 0,
    })
}

impl Ahead {
    /// Returns the next events; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<Vec<NumberedEvent>>, Failure> {
        let Ok(batch) = self.batches.recv() else {
            return Ok(None);
        };
        let batch = batch.map_err(|error| offline::unreadable(&self.path, &error))?;
        self.wrong.extend(batch.wrong);
        self.others += batch.others;
        Ok(Some(batch.events))
    }

    /// Returns how many bytes of the file were read.
    pub(crate) fn read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }
}

/// Returns batches to the reading thread.
#[derive(Clone)]
pub(crate) struct BatchReturn(SyncSender<Vec<NumberedEvent>>);

impl BatchReturn {
    /// Returns a batch. This never waits: a batch that the other thread cannot take is freed here.
    pub(crate) fn give_back(&self, batch: Vec<NumberedEvent>) {
        drop(self.0.try_send(batch));
    }
}

/// The recording, and everything needed to read it.
struct Source {
    lines: Lines,
    reader: Reader,
    whose: Whose,
    /// Batches that were returned, so that their memory is used again.
    back: Receiver<Vec<NumberedEvent>>,
}

impl Source {
    /// Sends batches until the recording ends or the receiver is gone.
    fn send_all(mut self, sender: &SyncSender<io::Result<Batch>>) {
        loop {
            let batch = self.next_batch();
            // An error ends the recording as well.
            let is_last = !matches!(&batch, Ok((_, false)));
            if sender.send(batch.map(|(batch, _)| batch)).is_err() || is_last {
                return;
            }
        }
    }

    /// Returns an empty batch, in the memory of a returned one if there is one.
    fn room(&self) -> Vec<NumberedEvent> {
        let mut room = self.back.try_recv().unwrap_or_default();
        room.clear();
        room.reserve_exact(BATCH);
        room
    }

    /// Returns a batch, and whether it is the last.
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
                _ if line.is_cut => Err(LineError::Line("is longer than 64 KiB")),
                Ok(text) if text.trim().is_empty() => continue,
                Ok(text) => Ok(text),
                Err(_) => Err(LineError::Line("is not UTF-8")),
            };
            match text.and_then(|text| self.reader.event(text)) {
                Ok(Some(event)) => batch.events.push(NumberedEvent {
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
