//! Content of the journal's files: frames of changes.
//!
//! A frame is a mark, its payload's length and CRC-32, four bytes each, then the payload. The
//! first frame of a file names format and version; the others hold changes. A change carries the
//! whole new state, so that replaying it twice does no harm, and losing it loses no more than what
//! it held. See [`super::frames`] for how frames are found after a damaged one.

use std::io::{self, Read, Write};

use palisade_core::Digest;
use palisade_core::limit::{Hits, State};
use palisade_core::record::{RecordKey, RecordKind};
use palisade_core::time::Micros;

use super::frames::{Frames, NextFrame, frame};
use crate::memory::records::StoredRecord;
use crate::{Entry, Record, Registry};

const MAGIC: &[u8; 8] = b"palisade";
/// Version of the format. Version 1 had no marks; it is still read.
const VERSION: u8 = 2;
/// Kind of a state of hits, 32 bits each, and of one with hits of 64 bits.
const HITS: u8 = 3;
const LARGE_HITS: u8 = 4;
/// Length of a payload at which its frame is closed.
const FRAME_BYTES: usize = 8 << 20;

/// One change; `None` is a removal.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Bucket(Digest, Option<(State, Micros)>),
    Record(RecordKey, Option<StoredRecord>),
    Entry(Registry, String, Option<Entry>),
}

/// Name of a changed bucket, record or entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Bucket(Digest),
    Record(RecordKey),
    Entry(Registry, String),
}

/// Changes to be written to a file.
pub(crate) struct Batch {
    framed: Vec<u8>,
    payload: Vec<u8>,
    names: Vec<Name>,
    keeps_names: bool,
    is_empty: bool,
}

impl Default for Batch {
    fn default() -> Self {
        Self {
            framed: Vec::new(),
            payload: Vec::new(),
            names: Vec::new(),
            keeps_names: true,
            is_empty: true,
        }
    }
}

impl Batch {
    pub(crate) fn bucket(&mut self, id: Digest, held: Option<(&State, Micros)>) {
        self.name(|| Name::Bucket(id));
        self.tag(1, held.is_some());
        self.bytes(&id.to_bytes());
        if let Some((state, expires_at)) = held {
            self.number(expires_at.0);
            self.state(state);
        }
        self.close_if_long();
    }

    pub(crate) fn record(&mut self, key: RecordKey, held: Option<&StoredRecord>) {
        self.name(|| Name::Record(key));
        self.tag(2, held.is_some());
        self.bytes(&[key.kind.code()]);
        self.bytes(&key.digest.to_bytes());
        if let Some(stored) = held {
            self.number(stored.expires_at.0);
            self.number(stored.record.revision);
            self.text(&stored.record.bytes);
        }
        self.close_if_long();
    }

    pub(crate) fn entry(&mut self, registry: Registry, id: &str, held: Option<&Entry>) {
        self.name(|| Name::Entry(registry, id.to_owned()));
        self.tag(3, held.is_some());
        self.bytes(&[code_of(registry)]);
        self.text(id.as_bytes());
        if let Some(entry) = held {
            self.number(entry.expires_at.map_or(u64::MAX, |at| at.0));
            self.text(&entry.bytes);
        }
        self.close_if_long();
    }

    /// A batch that does not remember the names of what it changes: a snapshot is written again as
    /// a whole, or not at all.
    pub(crate) fn nameless() -> Self {
        Self {
            keeps_names: false,
            ..Self::default()
        }
    }

    fn name(&mut self, name: impl FnOnce() -> Name) {
        self.is_empty = false;
        if self.keeps_names {
            self.names.push(name());
        }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.is_empty
    }

    /// The frames, ready to be written, and the names of what they change.
    pub(crate) fn finish(mut self) -> (Vec<u8>, Vec<Name>) {
        self.close();
        (self.framed, self.names)
    }

    fn tag(&mut self, kind: u8, is_held: bool) {
        self.payload.push(kind << 1 | u8::from(is_held));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.payload.extend_from_slice(bytes);
    }

    fn number(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }

    fn text(&mut self, text: &[u8]) {
        self.bytes(&u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
        self.bytes(text);
    }

    fn state(&mut self, state: &State) {
        match state {
            State::Empty => self.bytes(&[0]),
            State::Gcra(arrival) => {
                self.bytes(&[1]);
                self.number(*arrival);
            }
            State::Fixed { start, count } => {
                self.bytes(&[2]);
                self.number(start.0);
                self.number(*count);
            }
            State::Hits(hits) => self.hits(hits),
        }
    }

    fn hits(&mut self, hits: &Hits) {
        // Few limits are so large, and versions that know no others can still read the rest.
        let is_large = hits.entries().any(|(_, count)| count > u64::from(u32::MAX));
        self.bytes(&[if is_large { LARGE_HITS } else { HITS }]);
        self.bytes(&u32::try_from(hits.len()).unwrap_or(0).to_le_bytes());
        for (at, count) in hits.entries() {
            self.number(at.0);
            match u32::try_from(count) {
                Ok(count) if !is_large => self.bytes(&count.to_le_bytes()),
                _ => self.number(count),
            }
        }
    }

    fn close_if_long(&mut self) {
        if self.payload.len() >= FRAME_BYTES {
            self.close();
        }
    }

    fn close(&mut self) {
        if !self.payload.is_empty() {
            frame(&mut self.framed, &self.payload);
            self.payload.clear();
        }
    }
}

/// Number of a registry in the journal. Never changes, because it is on disk.
const fn code_of(registry: Registry) -> u8 {
    match registry {
        Registry::Allowlist => 1,
        Registry::Tiers => 2,
        Registry::Resets => 3,
        Registry::Overages => 4,
        Registry::ApiKeys => 5,
        Registry::Clients => 6,
        Registry::Attacks => 7,
    }
}

/// The first frame of every file.
pub(crate) fn header() -> Vec<u8> {
    let mut payload = MAGIC.to_vec();
    payload.push(VERSION);
    let mut out = Vec::new();
    frame(&mut out, &payload);
    out
}

/// The last frame of a whole snapshot.
pub(crate) fn trailer() -> Vec<u8> {
    let mut out = Vec::new();
    frame(&mut out, &[0]);
    out
}

/// Result of reading a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadThrough {
    /// Bytes up to the end of the last whole frame.
    pub(crate) good: u64,
    /// Bytes after that.
    pub(crate) torn: u64,
    /// Damaged frames before that, which were left out.
    pub(crate) skipped: u32,
    /// True if a snapshot's last frame was found.
    pub(crate) is_whole: bool,
    /// True if a newer version wrote the file; nothing was read then.
    pub(crate) is_newer: bool,
}

/// Reads a file to its end. A damaged frame is left out, and those after it are read all the same;
/// bytes after the last whole frame were not written completely.
pub(crate) fn read(file: impl Read, mut each: impl FnMut(Change)) -> io::Result<ReadThrough> {
    walk(file, |payload| Ok(changes(payload, &mut each).is_some()))
}

/// Copies the changes of a file to another one, in order, without its first and last frame.
/// Damaged frames are left out.
pub(crate) fn copy(file: impl Read, to: &mut dyn Write) -> io::Result<ReadThrough> {
    let mut framed = Vec::new();
    walk(file, |payload| {
        if changes(payload, &mut drop).is_none() {
            return Ok(false);
        }
        framed.clear();
        frame(&mut framed, payload);
        to.write_all(&framed)?;
        Ok(true)
    })
}

/// Reads a file to its end, frame by frame; `each` returns whether a frame makes sense.
fn walk(
    file: impl Read,
    mut each: impl FnMut(&[u8]) -> io::Result<bool>,
) -> io::Result<ReadThrough> {
    let mut through = ReadThrough::default();
    let mut frames = Frames::new(file)?;
    let mut damaged = 0;
    loop {
        let payload = match frames.next()? {
            NextFrame::Whole(payload) => payload,
            NextFrame::Damaged => {
                damaged += 1;
                continue;
            }
            NextFrame::End => {
                through.torn = frames.position() - through.good;
                return Ok(through);
            }
        };
        let is_read = match payload.strip_prefix(MAGIC) {
            Some([version]) if *version <= VERSION => true,
            Some([_, ..]) => {
                through.is_newer = true;
                return Ok(through);
            }
            _ if *payload == [0] => {
                through.is_whole = true;
                true
            }
            _ => each(&payload)?,
        };
        if is_read {
            through.good = frames.position();
            through.skipped += std::mem::take(&mut damaged);
        } else {
            damaged += 1;
        }
    }
}

/// Reads the changes of one frame; `None` if they make no sense.
fn changes(payload: &[u8], each: &mut impl FnMut(Change)) -> Option<()> {
    let mut cursor = Cursor(payload);
    let mut read = Vec::new();
    while !cursor.0.is_empty() {
        read.push(cursor.change()?);
    }
    // Only now, so that a frame is applied whole or not at all.
    read.into_iter().for_each(each);
    Some(())
}

struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn change(&mut self) -> Option<Change> {
        let [tag] = self.array()?;
        let is_held = tag & 1 == 1;
        Some(match tag >> 1 {
            1 => {
                let id = Digest::from_bytes(self.array()?);
                let held = if is_held {
                    let expires_at = Micros(self.number()?);
                    Some((self.state()?, expires_at))
                } else {
                    None
                };
                Change::Bucket(id, held)
            }
            2 => {
                let [code] = self.array()?;
                let key = RecordKey {
                    kind: RecordKind::from_code(code)?,
                    digest: Digest::from_bytes(self.array()?),
                };
                let held = if is_held {
                    Some(self.stored(key)?)
                } else {
                    None
                };
                Change::Record(key, held)
            }
            3 => {
                let [code] = self.array()?;
                let registry = *Registry::ALL.iter().find(|r| code_of(**r) == code)?;
                let id = String::from_utf8(self.text()?.to_vec()).ok()?;
                let held = if is_held {
                    Some(self.entry(&id)?)
                } else {
                    None
                };
                Change::Entry(registry, id, held)
            }
            _ => return None,
        })
    }

    fn stored(&mut self, key: RecordKey) -> Option<StoredRecord> {
        let expires_at = Micros(self.number()?);
        let revision = self.number()?;
        let bytes = self.text()?.to_vec();
        Some(StoredRecord {
            key,
            record: Record { bytes, revision },
            expires_at,
        })
    }

    fn entry(&mut self, id: &str) -> Option<Entry> {
        let expires_at = match self.number()? {
            u64::MAX => None,
            at => Some(Micros(at)),
        };
        Some(Entry {
            id: id.to_owned(),
            bytes: self.text()?.to_vec(),
            expires_at,
        })
    }

    fn state(&mut self) -> Option<State> {
        let [kind] = self.array()?;
        Some(match kind {
            0 => State::Empty,
            1 => State::Gcra(self.number()?),
            2 => State::Fixed {
                start: Micros(self.number()?),
                count: self.number()?,
            },
            kind @ (HITS | LARGE_HITS) => {
                let len = u32::from_le_bytes(self.array()?);
                let mut entries = Vec::new();
                for _ in 0..len {
                    let at = Micros(self.number()?);
                    let count = match kind {
                        HITS => u32::from_le_bytes(self.array()?).into(),
                        _ => self.number()?,
                    };
                    entries.push((at, count));
                }
                State::Hits(Hits::from_entries(entries))
            }
            _ => return None,
        })
    }

    fn number(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(u32::from_le_bytes(self.array()?)).ok()?;
        let (text, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(text)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }
}
