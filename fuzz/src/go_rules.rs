//! How Go's net/http reads a path, as a table: compared with what was judged by the fuzzer,
//! and by a test beside programs that are run.

/// Go's net/http: the path is unescaped once, a malformed escape is 400, and ServeMux
/// redirects whatever path.Clean would change (a trailing slash stays).
#[must_use]
pub fn go(target: &[u8]) -> Option<String> {
    let raw = target.split(|byte| *byte == b'?').next()?;
    let mut path = Vec::new();
    let mut at = 0;
    while at < raw.len() {
        if raw[at] == b'%' {
            let digits = std::str::from_utf8(raw.get(at + 1..at + 3)?).ok()?;
            path.push(u8::from_str_radix(digits, 16).ok()?);
            at += 3;
        } else {
            path.push(raw[at]);
            at += 1;
        }
    }
    (cleaned(&path) == path).then(|| spelt_bytes(&path))
}

fn cleaned(path: &[u8]) -> Vec<u8> {
    let mut kept: Vec<&[u8]> = Vec::new();
    for segment in path.split(|byte| *byte == b'/') {
        match segment {
            b"" | b"." => {}
            b".." => {
                kept.pop();
            }
            _ => kept.push(segment),
        }
    }
    let mut clean = [b"/", &kept.join(&b'/')[..]].concat();
    if path.ends_with(b"/") && clean.len() > 1 {
        clean.push(b'/');
    }
    clean
}

/// A decoded path, spelt like route patterns are.
#[must_use]
pub fn spelt_bytes(path: &[u8]) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~!$&'()*+,=:@;".contains(&byte);
    let mut text = String::new();
    for byte in path {
        if plain(*byte) {
            text.push(char::from(*byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}
