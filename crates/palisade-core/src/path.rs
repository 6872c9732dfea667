//! One spelling per path (I-PATH): the path that is counted is the path that the application sees.
//!
//! Applications read the same bytes differently: some decode before they route and
//! some do not, some resolve dot segments, merge slashes or drop `;parameters`.
//! [`normalise`] takes the spellings that RFC 3986 calls equal to one:
//!
//! * an escaped character that may stand unescaped is unescaped, once (`%74` → `t`,
//!   `%2574` stays), every other byte is escaped with capital digits;
//! * `.` and `..` are resolved, escaped ones too;
//! * letter case stays significant.
//!
//! What is left for readers to differ on is refused: an empty segment, a backslash,
//! a control character, an escaped separator that the policy does not allow, a `%`
//! that escapes nothing, a letter in more bytes than it needs, and dot segments
//! behind an escaped separator or with parameters (`..%2Fx`, `..;/x`).
//!
//! Where the request's own bytes go on to the application ([`NormalPath::readings`]),
//! every way to read them must lead to the same route.

use std::borrow::Cow;

use crate::facts::{FieldError, PATH_BYTES_MAX};

mod reading;
mod segment;

use segment::{Dots, Segment};

/// Meaning of `%2F` and `%5C` within a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EncodedSlash {
    /// Refused: some applications take them for separators and some do not.
    #[default]
    Refused,
    /// Separators, for applications that decode before they route.
    Separator,
    /// Part of a segment, for applications with slashes in their path parameters.
    Literal,
}

/// A path in its one spelling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NormalPath<'a> {
    judged: Cow<'a, str>,
    forwarded: Option<String>,
    readings: Vec<String>,
}

impl<'a> NormalPath<'a> {
    /// A path that is already in its one spelling.
    const fn as_written(text: &'a str) -> Self {
        Self {
            judged: Cow::Borrowed(text),
            forwarded: None,
            readings: Vec::new(),
        }
    }

    /// The text that routes are matched with: without `;parameters` and trailing slash.
    #[must_use]
    pub fn judged(&self) -> &str {
        &self.judged
    }

    /// The text that an application is given: with parameters and trailing slash, which change what
    /// it serves.
    #[must_use]
    pub fn forwarded(&self) -> &str {
        self.forwarded.as_deref().unwrap_or(&self.judged)
    }

    /// True if the application is given exactly the text that the client wrote.
    #[must_use]
    pub const fn is_as_written(&self) -> bool {
        self.forwarded.is_none() && matches!(self.judged, Cow::Borrowed(_))
    }

    /// Other ways in which an application that gets the client's own bytes may read them; none for
    /// most requests.
    #[must_use]
    pub fn readings(&self) -> &[String] {
        &self.readings
    }

    /// Other ways in which an application that gets [`NormalPath::forwarded`] may read it.
    #[must_use]
    pub fn forwarded_reading(&self) -> &[String] {
        self.forwarded.as_slice()
    }

    /// [`NormalPath::judged`], owned.
    #[must_use]
    pub fn into_judged(self) -> Box<str> {
        self.judged.into_owned().into()
    }
}

/// Returns the one spelling of a request's path. Normalising it again changes nothing.
///
/// # Errors
/// Too long, or read differently by different applications.
pub fn normalise(path: &[u8], slash: EncodedSlash) -> Result<NormalPath<'_>, FieldError> {
    if path.len() > PATH_BYTES_MAX {
        return Err(refused("is too long"));
    }
    if is_normal(path)
        && let Ok(text) = std::str::from_utf8(path)
    {
        return Ok(NormalPath::as_written(text));
    }
    let path = before_query(path);
    let segments = segments(path, slash)?;
    let (judged, forwarded) = resolved(&segments);
    if forwarded.len() > PATH_BYTES_MAX {
        return Err(refused("is too long"));
    }
    Ok(NormalPath {
        readings: reading::all(path, slash),
        forwarded: (forwarded != judged).then_some(forwarded),
        judged: Cow::Owned(judged),
    })
}

/// [`normalise`] for a path that is known to be text, as most are.
///
/// # Errors
/// Those of [`normalise`].
pub fn normalise_text(path: &str, slash: EncodedSlash) -> Result<NormalPath<'_>, FieldError> {
    match path.len() <= PATH_BYTES_MAX && is_normal(path.as_bytes()) {
        true => Ok(NormalPath::as_written(path)),
        false => normalise(path.as_bytes(), slash),
    }
}

/// Returns the one spelling of a route pattern's literal part; `open` if anything may follow.
///
/// # Errors
/// A pattern that no request's path can match: the reason in words for the author of the policy.
pub fn normalise_pattern(literal: &str, open: bool) -> Result<String, &'static str> {
    if literal.contains(['?', '#', ';']) {
        return Err("no path has `?`, `#` or `;parameters` when routes are found");
    }
    // Escaped slashes are literal here: whether a request with one is let in depends on the
    // policy.
    let segments = segments(literal.as_bytes(), EncodedSlash::Literal)
        .map_err(|_| "a request with such a path is refused")?;
    // The last segment of an open pattern is unfinished: `/a/.*` matches more than `/a/.`.
    let unfinished = usize::from(open);
    let whole = segments.len().saturating_sub(unfinished);
    if segments
        .iter()
        .take(whole)
        .any(|segment| segment.dots().is_some())
    {
        return Err("dot segments are resolved before routes are found");
    }
    let names: Vec<&str> = segments.iter().map(Segment::names).collect();
    Ok(format!("/{}", names.join("/")))
}

/// True if a normal path or pattern holds an escaped separator.
#[must_use]
pub fn has_escaped_slash(normal: &str) -> bool {
    normal.contains("%2F") || normal.contains("%5C")
}

const fn refused(problem: &'static str) -> FieldError {
    FieldError::new("path", problem)
}

fn before_query(path: &[u8]) -> &[u8] {
    let end = path.iter().position(|byte| *byte == b'?');
    end.map_or(path, |end| &path[..end])
}

/// Characters that stand for themselves in a segment: RFC 3986 `pchar` without
/// the percent sign and the parameter separator.
const fn is_plain(byte: u8) -> bool {
    matches!(byte,
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'!' | b'$' | b'&' | b'\''
        | b'(' | b')' | b'*' | b'+' | b',' | b'=' | b':' | b'@')
}

/// Whether a path needs no rewriting: it has only plain bytes, and only names as segments. Every
/// path is tested and most pass, so the bytes are looked up in a table.
fn is_normal(path: &[u8]) -> bool {
    const IN_NAMES: [bool; 256] = {
        let mut plain = [false; 256];
        let mut byte = 0;
        while byte < u8::MAX {
            plain[byte as usize] = is_plain(byte) && byte != b'.';
            byte += 1;
        }
        plain
    };
    let Some(rest) = path.strip_prefix(b"/") else {
        return false;
    };
    // Dots in the segment so far. More than two, with nothing else, are a name.
    let mut dots = 0_usize;
    let mut is_name = false;
    for byte in rest {
        if IN_NAMES[usize::from(*byte)] {
            is_name = true;
        } else if *byte == b'.' {
            dots += 1;
        } else if *byte == b'/' && (is_name || dots > 2) {
            (dots, is_name) = (0, false);
        } else {
            return false;
        }
    }
    is_name || dots > 2 || rest.is_empty()
}

/// Splits a path into segments; the last may be empty (a trailing slash).
fn segments(path: &[u8], slash: EncodedSlash) -> Result<Vec<Segment>, FieldError> {
    let path = path.strip_prefix(b"/").unwrap_or(path);
    let mut segments = Vec::new();
    for raw in path.split(|byte| *byte == b'/') {
        if segments.last().is_some_and(Segment::is_empty) {
            return Err(refused("must not have an empty segment"));
        }
        Segment::parse(raw, slash, &mut segments)?;
    }
    Ok(segments)
}

/// Returns the judged and the forwarded text, with dot segments resolved.
fn resolved(segments: &[Segment]) -> (String, String) {
    let mut kept: Vec<&Segment> = Vec::new();
    let mut trailing = false;
    for segment in segments {
        trailing = segment.is_empty() || segment.dots().is_some();
        match segment.dots() {
            Some(Dots::Same) => {}
            Some(Dots::Parent) => {
                // At the root, `..` stays at the root, as RFC 3986 says.
                kept.pop();
            }
            None if segment.is_empty() => {}
            None => kept.push(segment),
        }
    }
    let joined = |text: fn(&Segment) -> &str| {
        let parts: Vec<&str> = kept.iter().map(|segment| text(segment)).collect();
        format!("/{}", parts.join("/"))
    };
    let judged = joined(Segment::names);
    let mut forwarded = joined(Segment::whole);
    if trailing && !kept.is_empty() {
        forwarded.push('/');
    }
    (judged, forwarded)
}

#[cfg(test)]
mod tests;
