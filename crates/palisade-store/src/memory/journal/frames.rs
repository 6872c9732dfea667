//! Frames in a file, and the search for the next whole one after a damaged one.
//!
//! If the length of a frame is damaged, nothing says where the next one begins. Therefore each
//! frame starts with a mark that can be searched for; the checksum tells marks from bytes that
//! look like one by chance.

use std::io::{self, Read};

const MARK: [u8; 4] = *b"\xabPl\x1e";
/// Length and checksum, in bytes.
const HEAD: usize = 8;
/// Longest payload; a frame that claims more is damaged.
const FRAME_BYTES_MAX: usize = 64 << 20;
/// First frame of a file of version 1, which had no marks.
const UNMARKED: [u8; 17] = *b"\x09\0\0\0\xac\xc9\xbd\x74palisade\x01";

/// Appends `payload` as a frame.
pub(super) fn frame(out: &mut Vec<u8>, payload: &[u8]) {
    let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&MARK);
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&crc32fast::hash(payload).to_le_bytes());
    out.extend_from_slice(payload);
}

/// Result of reading the next frame.
pub(super) enum NextFrame {
    Whole(Vec<u8>),
    /// Bytes that are no frame, or no whole one; the search goes on after them.
    Damaged,
    End,
}

/// Reads frames one after the other.
pub(super) struct Frames<R> {
    file: R,
    /// Bytes that were read ahead; those from `used` on are yet to be returned.
    ahead: Vec<u8>,
    used: usize,
    position: u64,
    mark: &'static [u8],
}

impl<R: Read> Frames<R> {
    pub(super) fn new(file: R) -> io::Result<Self> {
        let mut frames = Self {
            file,
            ahead: Vec::new(),
            used: 0,
            position: 0,
            mark: &MARK,
        };
        if frames.peek(UNMARKED.len())? == UNMARKED {
            frames.mark = &[];
        }
        Ok(frames)
    }

    /// Position of the next frame in the file.
    pub(super) const fn position(&self) -> u64 {
        self.position
    }

    pub(super) fn next(&mut self) -> io::Result<NextFrame> {
        let (marked, mark) = (self.mark, self.mark.len());
        let head = self.peek(mark + HEAD)?;
        if head.is_empty() {
            return Ok(NextFrame::End);
        }
        let Some(len) = payload_len(head, marked) else {
            return self.skip();
        };
        let expected = head[mark + 4..].to_vec();
        let whole = mark + HEAD + len;
        let bytes = self.peek(whole)?;
        let payload = bytes.get(mark + HEAD..whole);
        match payload.filter(|payload| crc32fast::hash(payload).to_le_bytes() == *expected) {
            Some(payload) => {
                let payload = payload.to_vec();
                self.consume(whole);
                Ok(NextFrame::Whole(payload))
            }
            None => self.skip(),
        }
    }

    /// Moves on to the next mark, at least a byte further.
    fn skip(&mut self) -> io::Result<NextFrame> {
        self.consume(1);
        loop {
            let ahead = self.peek(1 << 16)?;
            let len = ahead.len();
            let is_mark = |window: &[u8]| window == MARK;
            let found = ahead.windows(MARK.len()).position(is_mark);
            let is_last = len < 1 << 16;
            match found {
                // Without marks, nothing says where the next frame would be.
                Some(at) if !self.mark.is_empty() => {
                    self.consume(at);
                    return Ok(NextFrame::Damaged);
                }
                _ if is_last => {
                    self.consume(len);
                    return Ok(NextFrame::End);
                }
                // A mark may lie across the end of what was read.
                _ => self.consume(len - MARK.len() + 1),
            }
        }
    }

    /// Returns up to `count` of the next bytes; fewer only at the end of the file.
    fn peek(&mut self, count: usize) -> io::Result<&[u8]> {
        let held = self.ahead.len() - self.used;
        if held < count {
            self.ahead.drain(..self.used);
            self.used = 0;
            let missing = (count - held) as u64;
            (&mut self.file)
                .take(missing)
                .read_to_end(&mut self.ahead)?;
        }
        let end = self.ahead.len().min(self.used + count);
        Ok(&self.ahead[self.used..end])
    }

    fn consume(&mut self, count: usize) {
        self.used += count;
        self.position += count as u64;
    }
}

fn payload_len(head: &[u8], mark: &[u8]) -> Option<usize> {
    let rest = head.strip_prefix(mark)?;
    let (len, _) = rest.get(..HEAD)?.split_first_chunk()?;
    let len = usize::try_from(u32::from_le_bytes(*len)).ok()?;
    (len <= FRAME_BYTES_MAX).then_some(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(payloads: &[&[u8]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        payloads
            .iter()
            .for_each(|payload| frame(&mut bytes, payload));
        bytes
    }

    fn read(bytes: &[u8]) -> (Vec<Vec<u8>>, u32, u64) {
        let mut frames = Frames::new(bytes).unwrap();
        let (mut whole, mut damaged) = (Vec::new(), 0);
        loop {
            match frames.next().unwrap() {
                NextFrame::Whole(payload) => whole.push(payload),
                NextFrame::Damaged => damaged += 1,
                NextFrame::End => return (whole, damaged, frames.position()),
            }
        }
    }

    #[test]
    fn a_damaged_frame_hides_no_other() {
        let payloads: [&[u8]; 3] = [b"first", b"the second one", b"third"];
        let whole = file(&payloads);
        assert_eq!(
            read(&whole),
            (payloads.map(<[u8]>::to_vec).to_vec(), 0, whole.len() as u64)
        );
        let second = 12 + 5..whole.len() - 12 - 5;
        for at in second {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x40;
            let (read, ..) = read(&bytes);
            assert_eq!(read, [b"first".to_vec(), b"third".to_vec()], "byte {at}");
        }
    }

    #[test]
    fn the_first_version_had_no_marks() {
        let mut header = Vec::new();
        header.extend_from_slice(&9_u32.to_le_bytes());
        header.extend_from_slice(&crc32fast::hash(b"palisade\x01").to_le_bytes());
        header.extend_from_slice(b"palisade\x01");
        assert_eq!(header, UNMARKED, "the bytes are those on old disks");
        let (whole, damaged, _) = read(&header);
        assert_eq!((whole.len(), damaged), (1, 0));
    }
}
