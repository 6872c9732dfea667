//! The text between two slashes of a path.

use super::{EncodedSlash, is_plain, refused};
use crate::facts::FieldError;

/// A dot segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dots {
    Same,
    Parent,
}

/// A segment in its one spelling.
#[derive(Debug)]
pub(super) struct Segment {
    text: String,
    /// Where `;parameters` begin.
    name_end: usize,
}

impl Segment {
    /// Appends the segments that `raw` holds: one, or several where escaped slashes separate.
    pub(super) fn parse(
        raw: &[u8],
        slash: EncodedSlash,
        into: &mut Vec<Self>,
    ) -> Result<(), FieldError> {
        let first = into.len();
        let mut text = String::with_capacity(raw.len());
        let mut name_end = None;
        let mut before = 0;
        for step in Bytes(raw) {
            let (byte, escaped) = step?;
            if is_overlong(before, byte) {
                return Err(refused("must not spell a character in too many bytes"));
            }
            before = byte;
            match byte {
                _ if byte.is_ascii_control() => {
                    return Err(refused("must not contain control characters"));
                }
                b'/' | b'\\' if slash == EncodedSlash::Separator && escaped => {
                    into.push(Self::new(std::mem::take(&mut text), name_end.take()));
                }
                // A plain slash ends the segment before, so an unescaped byte here is a backslash.
                b'/' | b'\\' if slash == EncodedSlash::Refused || !escaped => {
                    return Err(refused("must not contain a backslash or an escaped slash"));
                }
                b'#' if !escaped => return Err(refused("must not contain a fragment")),
                b';' if !escaped => {
                    name_end.get_or_insert(text.len());
                    text.push(';');
                }
                _ => push_plain_or_escaped(&mut text, byte),
            }
        }
        into.push(Self::new(text, name_end));
        Self::none_hidden(into.get(first..).unwrap_or_default())
    }

    fn new(text: String, name_end: Option<usize>) -> Self {
        let name_end = name_end.unwrap_or(text.len());
        Self { text, name_end }
    }

    /// Refuses dot segments and empty ones that come with an escaped slash or parameters: some
    /// servers split there before they resolve dots and drop empty segments, some after.
    fn none_hidden(parsed: &[Self]) -> Result<(), FieldError> {
        let several = parsed.len() > 1;
        for segment in parsed {
            let parameters = segment.name_end < segment.text.len();
            if (several || parameters) && (segment.dots().is_some() || segment.names().is_empty()) {
                return Err(refused("must not hide dot segments or empty ones"));
            }
        }
        Ok(())
    }

    /// Text of the segment without parameters.
    pub(super) fn names(&self) -> &str {
        self.text.get(..self.name_end).unwrap_or_default()
    }

    /// Text of the segment with parameters.
    pub(super) fn whole(&self) -> &str {
        &self.text
    }

    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    pub(super) fn dots(&self) -> Option<Dots> {
        match self.names() {
            "." => Some(Dots::Same),
            ".." => Some(Dots::Parent),
            _ => None,
        }
    }
}

/// Bytes that a segment spells, each with whether it was escaped.
pub(super) struct Bytes<'a>(pub(super) &'a [u8]);

impl Iterator for Bytes<'_> {
    type Item = Result<(u8, bool), FieldError>;

    fn next(&mut self) -> Option<Self::Item> {
        let (first, rest) = self.0.split_first()?;
        if *first != b'%' {
            self.0 = rest;
            return Some(Ok((*first, false)));
        }
        let [high, low, after @ ..] = rest else {
            return Some(Err(stray()));
        };
        let (Some(high), Some(low)) = (hex(*high), hex(*low)) else {
            return Some(Err(stray()));
        };
        self.0 = after;
        Some(Ok(((high << 4) | low, true)))
    }
}

const fn stray() -> FieldError {
    refused("must not contain a `%` that escapes nothing")
}

const fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

/// UTF-8 in more bytes than needed: lenient decoders find slashes and dots in such bytes.
const fn is_overlong(before: u8, byte: u8) -> bool {
    matches!(
        (before, byte),
        (0xC0 | 0xC1, 0x80..=0xBF) | (0xE0, 0x80..=0x9F) | (0xF0, 0x80..=0x8F)
    )
}

pub(super) fn push_plain_or_escaped(text: &mut String, byte: u8) {
    if is_plain(byte) {
        text.push(char::from(byte));
    } else {
        push_escaped(text, byte);
    }
}

pub(super) fn push_escaped(text: &mut String, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    text.push('%');
    text.push(char::from(DIGITS[usize::from(byte >> 4)]));
    text.push(char::from(DIGITS[usize::from(byte & 15)]));
}
