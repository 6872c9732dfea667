//! One spelling per path, so that no other spelling dodges a route's class.
//!
//! Servers disagree on which spellings mean the same. Where they do, this takes
//! the reading under which the fewest spellings differ:
//!
//! * the query, the fragment and `;parameters` of a segment are dropped;
//! * an escaped character that may stand unescaped is unescaped, once
//!   (`%74` → `t`, `%2574` stays), every other byte that is not plain is
//!   escaped with capital digits, a stray `%` becomes `%25`;
//! * `//` collapses, `.` and `..` are resolved, a trailing slash goes;
//! * `\`, `%5C` and `%2F` separate segments, unless configured as literals;
//! * letter case stays significant.
//!
//! Refused, because no honest client sends them and servers differ on where they
//! lead: control characters, and dot segments behind an escaped slash or with
//! parameters (`..%2Fx`, `..;/x`).

use std::borrow::Cow;

use palisade_core::FieldError;
use palisade_core::facts::PATH_BYTES_MAX;

/// What `%2F`, `%5C` and `\` are within a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EncodedSlash {
    /// Separators, as servers that decode before they route take them.
    #[default]
    Separator,
    /// Part of a segment, for applications with slashes in their path parameters.
    Literal,
}

/// The path's one spelling: starts with `/`, plain and escaped characters only,
/// at most [`PATH_BYTES_MAX`] bytes. Normalising it again changes nothing.
///
/// # Errors
/// Too long, control characters, or hidden dot segments.
pub fn normalise_path(path: &[u8], slash: EncodedSlash) -> Result<Cow<'_, str>, FieldError> {
    if path.len() > PATH_BYTES_MAX {
        return Err(refused("is too long"));
    }
    match already_normal(path) {
        Some(text) => Ok(Cow::Borrowed(text)),
        None => rewritten(path, slash).map(Cow::Owned),
    }
}

/// Path and query of a request target in origin or absolute form.
#[must_use]
pub fn split_target(target: &[u8]) -> (&[u8], Option<&[u8]>) {
    let target = until(target, |byte| byte == b'#').0;
    let (path, query) = until(without_authority(target), |byte| byte == b'?');
    (path, query)
}

fn without_authority(target: &[u8]) -> &[u8] {
    let authority = [&b"http://"[..], b"https://"]
        .into_iter()
        .find(|scheme| {
            target
                .get(..scheme.len())
                .is_some_and(|start| start.eq_ignore_ascii_case(scheme))
        })
        .map(|scheme| &target[scheme.len()..]);
    authority.map_or(target, |rest| {
        let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?'));
        end.map_or(&b""[..], |at| &rest[at..])
    })
}

fn until(text: &[u8], stop: impl Fn(u8) -> bool) -> (&[u8], Option<&[u8]>) {
    text.iter()
        .position(|byte| stop(*byte))
        .map_or((text, None), |at| (&text[..at], Some(&text[at + 1..])))
}

const fn refused(problem: &'static str) -> FieldError {
    FieldError::new("path", problem)
}

/// Characters that stand for themselves in a segment: RFC 3986 `pchar` without
/// the percent sign and the parameter separator.
const fn is_plain(byte: u8) -> bool {
    matches!(byte,
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'!' | b'$' | b'&' | b'\''
        | b'(' | b')' | b'*' | b'+' | b',' | b'=' | b':' | b'@')
}

/// The text itself if nothing can need rewriting: most requests end here.
fn already_normal(path: &[u8]) -> Option<&str> {
    if path == b"/" {
        return Some("/");
    }
    let mut segments = path.strip_prefix(b"/")?.split(|byte| *byte == b'/');
    let plain = segments.all(|segment| {
        !matches!(segment, b"" | b"." | b"..") && segment.iter().all(|byte| is_plain(*byte))
    });
    plain.then(|| std::str::from_utf8(path).ok()).flatten()
}

fn rewritten(path: &[u8], slash: EncodedSlash) -> Result<String, FieldError> {
    let mut kept: Vec<String> = Vec::new();
    for raw in until(path, |byte| matches!(byte, b'?' | b'#'))
        .0
        .split(|byte| *byte == b'/')
    {
        let segment = Segment::parse(raw, slash)?;
        match segment.dots()? {
            Some(Dots::Same) => {}
            Some(Dots::Parent) => {
                kept.pop();
            }
            None => kept.extend(segment.parts.into_iter().filter(|part| !part.is_empty())),
        }
    }
    let text = format!("/{}", kept.join("/"));
    if text.len() > PATH_BYTES_MAX {
        return Err(refused("is too long"));
    }
    Ok(text)
}

enum Dots {
    Same,
    Parent,
}

/// What stood between two slashes: its parts between escaped slashes.
struct Segment {
    parts: Vec<String>,
    parameters: bool,
}

impl Segment {
    fn parse(raw: &[u8], slash: EncodedSlash) -> Result<Self, FieldError> {
        let (name, parameters) = until(raw, |byte| byte == b';');
        let mut segment = Self {
            parts: vec![String::new()],
            parameters: parameters.is_some(),
        };
        let mut rest = name;
        while let Some((byte, after)) = next_byte(rest) {
            segment.push(byte, slash)?;
            rest = after;
        }
        Ok(segment)
    }

    fn push(&mut self, byte: u8, slash: EncodedSlash) -> Result<(), FieldError> {
        if byte.is_ascii_control() {
            return Err(refused("must not contain control characters"));
        }
        if matches!(byte, b'/' | b'\\') && slash == EncodedSlash::Separator {
            self.parts.push(String::new());
        } else if let Some(part) = self.parts.last_mut() {
            push_plain_or_escaped(part, byte);
        }
        Ok(())
    }

    fn dots(&self) -> Result<Option<Dots>, FieldError> {
        let hidden = self.parameters || self.parts.len() > 1;
        let mut dots = self.parts.iter().filter_map(|part| match part.as_str() {
            "." => Some(Dots::Same),
            ".." => Some(Dots::Parent),
            _ => None,
        });
        match dots.next() {
            Some(_) if hidden => Err(refused("must not hide dot segments")),
            found => Ok(found),
        }
    }
}

/// The next byte that `text` spells, and what follows it.
pub(super) fn next_byte(text: &[u8]) -> Option<(u8, &[u8])> {
    let (first, rest) = text.split_first()?;
    if *first == b'%'
        && let [high, low, after @ ..] = rest
        && let (Some(high), Some(low)) = (hex(*high), hex(*low))
    {
        return Some(((high << 4) | low, after));
    }
    Some((*first, rest))
}

const fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

fn push_plain_or_escaped(part: &mut String, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    if is_plain(byte) {
        part.push(char::from(byte));
    } else {
        part.push('%');
        part.push(char::from(DIGITS[usize::from(byte >> 4)]));
        part.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn normal(path: &str) -> String {
        normalise_path(path.as_bytes(), EncodedSlash::Separator)
            .unwrap()
            .into_owned()
    }

    #[test]
    fn i_key_every_spelling_of_a_path_is_one_path() {
        let spellings = [
            "/auth/token",
            "/auth/token/",
            "//auth//token",
            "/auth/./token",
            "/auth/%2e/token",
            "/x/../auth/token",
            "/x/%2E%2e/auth/token",
            "/../auth/token",
            "/auth/%74oken",
            "/%61uth/%74oken",
            "/auth%2Ftoken",
            "/auth%2f/token",
            "/auth\\token",
            "/auth/token;v=1",
            "/auth;a=b;c/token;",
            "/auth/token?client_id=x",
            "/auth/token#there",
            "auth/token",
        ];
        for spelling in spellings {
            assert_eq!(normal(spelling), "/auth/token", "{spelling}");
        }
    }

    #[test]
    fn i_key_different_paths_stay_different() {
        let same = [
            "/",
            "/AUTH/token",
            "/auth/token2",
            "/a.b/..c/...",
            "/v1/users:login",
            "/caf%C3%A9",
            "/a%2574",
            "/%3Bx",
        ];
        for path in same {
            assert_eq!(normal(path), path);
        }
        assert_eq!(normal(""), "/");
        assert_eq!(normal("*"), "/*");
        assert_eq!(normal("/caf\u{e9}"), "/caf%C3%A9");
        assert_eq!(normal("/v1/users%3alogin"), "/v1/users:login");
        assert_eq!(normal("/100%"), "/100%25");
        assert_eq!(normal("/%%374"), "/%2574");
    }

    #[test]
    fn i_key_ambiguous_paths_are_refused() {
        for path in [
            "/a%00",
            "/a\n",
            "/mfa/..%2Fread",
            "/mfa/%2e%2e%5cread",
            "/mfa/..;/read",
            "/mfa/.;x",
            "/a%7f",
        ] {
            assert!(
                normalise_path(path.as_bytes(), EncodedSlash::Separator).is_err(),
                "{path}"
            );
        }
        let long = format!("/{}", "x".repeat(PATH_BYTES_MAX));
        assert!(normalise_path(long.as_bytes(), EncodedSlash::Separator).is_err());
        let grows = format!("/{}", "\u{e9}".repeat(PATH_BYTES_MAX / 4));
        assert!(normalise_path(grows.as_bytes(), EncodedSlash::Separator).is_err());
    }

    #[test]
    fn i_key_an_escaped_slash_may_be_part_of_a_segment() {
        let literal = |path: &str| {
            normalise_path(path.as_bytes(), EncodedSlash::Literal)
                .unwrap()
                .into_owned()
        };
        assert_eq!(literal("/projects/a%2fb/issues"), "/projects/a%2Fb/issues");
        assert_eq!(literal("/a\\b"), "/a%5Cb");
    }

    #[test]
    fn i_key_targets_split_into_path_and_query() {
        let cases: [(&str, &str, Option<&str>); 7] = [
            ("/a?b=c?d", "/a", Some("b=c?d")),
            ("/a", "/a", None),
            ("HTTPS://h:1/a?b", "/a", Some("b")),
            ("http://h?b", "", Some("b")),
            ("http://h", "", None),
            ("//h/a#?x", "//h/a", None),
            ("/http://h/a", "/http://h/a", None),
        ];
        for (target, path, query) in cases {
            let (found, rest) = split_target(target.as_bytes());
            assert_eq!(
                (found, rest),
                (path.as_bytes(), query.map(str::as_bytes)),
                "{target}"
            );
        }
    }

    fn pathlike() -> impl Strategy<Value = Vec<u8>> {
        const PIECES: [&[u8]; 22] = [
            b"/",
            b"//",
            b".",
            b"..",
            b"%2e",
            b"%2F",
            b"%5c",
            b"\\",
            b"%",
            b"%25",
            b"%7",
            b"4",
            b"a",
            b";",
            b"%3b",
            b"?",
            b"#",
            b"\xc3\xa9",
            b"\xff",
            b" ",
            b"%00",
            b"Z",
        ];
        let piece = proptest::sample::select(&PIECES[..]);
        prop_oneof![
            proptest::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat()),
            proptest::collection::vec(any::<u8>(), 0..64),
        ]
    }

    proptest! {
        #[test]
        fn i_key_normalising_is_total_idempotent_and_plain(path in pathlike(), literal in any::<bool>()) {
            let slash = if literal { EncodedSlash::Literal } else { EncodedSlash::Separator };
            if let Ok(once) = normalise_path(&path, slash) {
                let twice = normalise_path(once.as_bytes(), slash).unwrap();
                prop_assert_eq!(&once, &twice);
                prop_assert!(once.starts_with('/'));
                prop_assert!(once.len() == 1 || !once.ends_with('/'));
                prop_assert!(!once.contains("//"));
                prop_assert!(once.split('/').all(|segment| segment != "." && segment != ".."));
                prop_assert!(once.bytes().all(|byte| is_plain(byte) || matches!(byte, b'/' | b'%')));
            }
        }

        #[test]
        fn i_key_the_short_cut_agrees_with_the_long_way(path in pathlike()) {
            if let Some(text) = already_normal(&path) {
                prop_assert_eq!(rewritten(&path, EncodedSlash::Separator).unwrap(), text);
            }
        }

        #[test]
        fn i_key_escaping_any_letter_changes_nothing(at in 0_usize..10) {
            let plain = "/auth/token";
            let at = at + 1;
            let byte = plain.as_bytes()[at];
            let spelt = format!("{}%{byte:02x}{}", &plain[..at], &plain[at + 1..]);
            prop_assert_eq!(normal(&spelt), plain);
        }
    }
}
