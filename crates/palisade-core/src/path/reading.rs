//! The ways in which applications may read a path as the client wrote it.
//!
//! An application decodes escapes or does not, and resolves dot segments or does not: that makes
//! four readings, of which [`super::normalise`] judges one. (It refuses all other spellings that
//! applications read differently.) All readings here include parameters; the judged one does not.

use super::segment::{Bytes, Dots, push_escaped, push_plain_or_escaped};
use super::{EncodedSlash, is_plain};

/// All four readings, without repetitions.
pub(super) fn all(path: &[u8], slash: EncodedSlash) -> Vec<String> {
    let path = path.strip_prefix(b"/").unwrap_or(path);
    let spelt: Vec<Vec<u8>> = path
        .split(|byte| *byte == b'/')
        .flat_map(|segment| separated(segment, slash))
        .collect();
    let literal: Vec<String> = spelt.iter().map(|raw| as_written(raw)).collect();
    let decoded: Vec<String> = spelt.iter().map(|raw| unescaped(raw)).collect();
    let mut readings = Vec::new();
    for reading in [
        joined(&literal),
        joined(&decoded),
        joined(&without_dots(&literal)),
        joined(&without_dots(&decoded)),
    ] {
        if !readings.contains(&reading) {
            readings.push(reading);
        }
    }
    readings
}

fn joined(segments: &[String]) -> String {
    format!("/{}", segments.join("/"))
}

/// Splits a segment at escaped slashes if they separate segments; otherwise returns it whole.
fn separated(segment: &[u8], slash: EncodedSlash) -> Vec<Vec<u8>> {
    let mut parts = vec![Vec::new()];
    let mut rest = segment;
    while let Some((first, after)) = rest.split_first() {
        let escape = rest.get(..3).filter(|text| {
            slash == EncodedSlash::Separator
                && (text.eq_ignore_ascii_case(b"%2F") || text.eq_ignore_ascii_case(b"%5C"))
        });
        if escape.is_some() {
            parts.push(Vec::new());
            rest = rest.get(3..).unwrap_or_default();
        } else {
            if let Some(part) = parts.last_mut() {
                part.push(*first);
            }
            rest = after;
        }
    }
    parts
}

/// Spells a segment without decoding it: escapes stay escapes, with capital digits.
fn as_written(raw: &[u8]) -> String {
    respelt(raw, |text, byte, escaped| {
        if escaped {
            push_escaped(text, byte);
        } else {
            push_plain_or_parameter(text, byte);
        }
    })
}

fn unescaped(raw: &[u8]) -> String {
    respelt(raw, |text, byte, escaped| {
        if escaped {
            push_plain_or_escaped(text, byte);
        } else {
            push_plain_or_parameter(text, byte);
        }
    })
}

fn push_plain_or_parameter(text: &mut String, byte: u8) {
    if is_plain(byte) || byte == b';' {
        text.push(char::from(byte));
    } else {
        push_escaped(text, byte);
    }
}

fn respelt(raw: &[u8], push: impl Fn(&mut String, u8, bool)) -> String {
    let mut text = String::with_capacity(raw.len());
    for (byte, escaped) in Bytes(raw).map_while(Result::ok) {
        push(&mut text, byte, escaped);
    }
    text
}

fn without_dots(segments: &[String]) -> Vec<String> {
    let mut kept: Vec<String> = Vec::new();
    for segment in segments {
        match dots(segment) {
            Some(Dots::Same) => {}
            Some(Dots::Parent) => {
                kept.pop();
            }
            None => kept.push(segment.clone()),
        }
    }
    kept
}

/// The dot segment that `segment` is, if it is one: escaped dots are dots even to readers that
/// decode nothing else.
fn dots(segment: &str) -> Option<Dots> {
    match segment.replace("%2E", ".").as_str() {
        "." => Some(Dots::Same),
        ".." => Some(Dots::Parent),
        _ => None,
    }
}
