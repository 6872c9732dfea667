//! The place of the path within a request target. Its meaning is up to [`palisade_core::path`].

pub use palisade_core::path::{EncodedSlash, NormalPath, normalise};

/// Treatment of a path that leads to another route if the case of its letters is ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathCase {
    /// Refused: an application that ignores case would serve one route while the other is counted.
    #[default]
    Refused,
    /// Accepted as a path of its own: the application heeds case.
    Significant,
}

/// Path and query of a request target in origin or absolute form.
#[must_use]
pub fn split_target(target: &[u8]) -> (&[u8], Option<&[u8]>) {
    let target = without_authority(target);
    let query = target.iter().position(|byte| *byte == b'?');
    query.map_or((target, None), |at| {
        (&target[..at], Some(&target[at + 1..]))
    })
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

/// Returns the first byte that `text` encodes, and the rest of the text.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i_path_targets_split_into_path_and_query() {
        let cases: [(&str, &str, Option<&str>); 7] = [
            ("/a?b=c?d", "/a", Some("b=c?d")),
            ("/a", "/a", None),
            ("HTTPS://h:1/a?b", "/a", Some("b")),
            ("http://h?b", "", Some("b")),
            ("http://h", "", None),
            ("//h/a#?x", "//h/a#", Some("x")),
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
}
