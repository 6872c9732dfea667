//! The `Forwarded` header (RFC 7239), read from the right.
//!
//! Splitting starts at the end because only the end was written by a trusted
//! proxy: an unbalanced quote in what a client sent cannot swallow the elements
//! that proxies appended.

use std::net::IpAddr;

use super::client_ip::parse_address;

/// Elements of one header line, last first.
pub(super) fn elements(line: &[u8]) -> Elements<'_> {
    Elements { rest: Some(line) }
}

pub(super) struct Elements<'a> {
    rest: Option<&'a [u8]>,
}

impl<'a> Iterator for Elements<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.rest?;
        let element = match last_comma(rest) {
            Some(comma) => {
                self.rest = Some(&rest[..comma]);
                &rest[comma + 1..]
            }
            None => {
                self.rest = None;
                rest
            }
        };
        Some(element.trim_ascii())
    }
}

/// The last comma outside a quoted string.
fn last_comma(line: &[u8]) -> Option<usize> {
    let mut end = line.len();
    while let Some(at) = line[..end]
        .iter()
        .rposition(|byte| matches!(byte, b',' | b'"'))
    {
        if line[at] == b',' {
            return Some(at);
        }
        // Read from the right, this quote ends a string: continue before its beginning.
        end = opening_quote(&line[..at])?;
    }
    None
}

/// Position at which the quoted string opens whose closing quote is just behind `line`.
fn opening_quote(line: &[u8]) -> Option<usize> {
    let mut end = line.len();
    loop {
        let at = line[..end].iter().rposition(|byte| *byte == b'"')?;
        let backslashes = line[..at]
            .iter()
            .rev()
            .take_while(|byte| **byte == b'\\')
            .count();
        // Backslashes in pairs escape each other, so the quote is not escaped.
        if backslashes % 2 == 0 {
            return Some(at);
        }
        end = at;
    }
}

/// The address in an element's one `for` parameter; `None` if the element is
/// malformed, has none, or hides it (`unknown`, `_name`).
pub(super) fn node(element: &[u8]) -> Option<IpAddr> {
    let mut rest = std::str::from_utf8(element).ok()?;
    let mut node = None;
    loop {
        rest = rest.trim_start_matches([' ', '\t']);
        if !rest.is_empty() && !rest.starts_with(';') {
            let (name, value, after) = pair(rest)?;
            if name.eq_ignore_ascii_case("for") && node.replace(value).is_some() {
                return None;
            }
            rest = after.trim_start_matches([' ', '\t']);
        }
        match rest.strip_prefix(';') {
            Some(after) => rest = after,
            None if rest.is_empty() => break,
            None => return None,
        }
    }
    node_address(&node?)
}

/// `token "=" (token / quoted-string)`, and what follows.
fn pair(text: &str) -> Option<(&str, String, &str)> {
    let (name, rest) = token(text)?;
    let rest = rest.strip_prefix('=')?;
    if let Some(quoted) = rest.strip_prefix('"') {
        let (value, rest) = quoted_rest(quoted)?;
        return Some((name, value, rest));
    }
    let (value, rest) = token(rest)?;
    Some((name, value.to_owned(), rest))
}

fn token(text: &str) -> Option<(&str, &str)> {
    let end = text
        .bytes()
        .position(|byte| !is_token(byte))
        .unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

/// Characters of an HTTP token (RFC 9110 §5.6.2).
pub(super) const fn is_token(byte: u8) -> bool {
    matches!(byte,
        b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~'
        | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z')
}

/// The text of a quoted string whose opening quote is consumed, and the rest.
fn quoted_rest(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(chars.next()?.1),
            _ => value.push(char),
        }
    }
    None
}

/// RFC 7239 §6: IPv6 only in brackets; a port may be obfuscated.
fn node_address(node: &str) -> Option<IpAddr> {
    let node = without_obfuscated_port(node);
    if !node.starts_with('[') && node.matches(':').count() > 1 {
        return None;
    }
    parse_address(node)
}

fn without_obfuscated_port(node: &str) -> &str {
    let obfuscated = |port: &str| {
        port.len() > 1
            && port.starts_with('_')
            && port
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
    };
    match node.rsplit_once(':') {
        Some((address, port)) if obfuscated(port) => address,
        _ => node,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i_xff_forwarded_elements_split_from_the_right_outside_quotes() {
        let split =
            |line: &'static str| -> Vec<&'static [u8]> { elements(line.as_bytes()).collect() };
        assert_eq!(split("a, b"), [b"b", b"a"]);
        assert_eq!(
            split(r#"for=a;host="x,y" , b"#),
            [&b"b"[..], br#"for=a;host="x,y""#]
        );
        assert_eq!(
            split(r#"a, host="x\",\\""#),
            [&br#"host="x\",\\""#[..], b"a"]
        );
        assert_eq!(split(r#"for="evil, for=1"#)[0], b"for=1");
        assert_eq!(split(r#"for="evil", for=1"#)[0], b"for=1");
    }

    #[test]
    fn i_xff_forwarded_nodes() {
        let good = [
            ("for=203.0.113.5", "203.0.113.5"),
            ("For=203.0.113.5", "203.0.113.5"),
            (r#"for="203.0.113.5:80""#, "203.0.113.5"),
            (r#"for="203.0.113.5:_p-1""#, "203.0.113.5"),
            (r#"for="[2001:db8::1]:4711""#, "2001:db8::1"),
            (r#"for="[2001:db8::1]""#, "2001:db8::1"),
            (r#"for="[2001:db8::\1]""#, "2001:db8::1"),
            ("proto=https;for=203.0.113.5; by=10.0.0.1", "203.0.113.5"),
            (";;for=203.0.113.5;", "203.0.113.5"),
        ];
        for (element, ip) in good {
            assert_eq!(node(element.as_bytes()), ip.parse().ok(), "{element}");
        }
        let bad = [
            "",
            "for",
            "for=",
            "=203.0.113.5",
            "for=unknown",
            "for=_hidden",
            "proto=https",
            "for=203.0.113.5;for=203.0.113.6",
            "for=203.0.113.5:80",
            "for=[2001:db8::1]",
            r#"for="2001:db8::1""#,
            r#"for="203.0.113.5"#,
            r#"for="203.0.113.5"x"#,
            "for = 203.0.113.5",
            "for=203.0.113.5 by=1",
            r#"for="[fe80::1%eth0]""#,
            r#"for="203.0.113.5:_""#,
        ];
        for element in bad {
            assert_eq!(node(element.as_bytes()), None, "{element}");
        }
    }
}
