//! `application/x-www-form-urlencoded`, in queries and bodies.

use palisade_core::FieldError;

use super::path::next_byte;

/// The value of parameter `name`: decoded, `None` if absent or empty.
///
/// The name is compared decoded too, so that an escaped letter does not hide it.
/// A second value is refused, as RFC 6749 §3.1 and §3.2 ask: two parties could
/// read two different ones.
pub(super) fn value(form: &[u8], name: &'static str) -> Result<Option<String>, FieldError> {
    let mut found = None;
    for pair in form.split(|byte| *byte == b'&') {
        let equals = pair.iter().position(|byte| *byte == b'=');
        let (key, value) = equals.map_or((pair, &b""[..]), |at| (&pair[..at], &pair[at + 1..]));
        if value.is_empty() || decoded(key) != name.as_bytes() {
            continue;
        }
        if found.replace(text(value, name)?).is_some() {
            return Err(FieldError::new(name, "must be sent only once"));
        }
    }
    Ok(found)
}

/// The only value of field `name`, which must be there.
///
/// Stricter than [`value`]: names that some frameworks take for the same count as the same,
/// so that no reader can find another value than this one.
pub(super) fn only(form: &[u8], name: &str) -> Result<String, FieldError> {
    let wrong = |problem| Err(FieldError::new("username", problem));
    match alike(form, name) {
        (2.., _) => wrong("must be sent only once"),
        (_, Some(value)) if !value.is_empty() => text(value, "username"),
        _ => wrong("is missing: a login must say who tries"),
    }
}

/// How many fields some reader takes for `name`, and the value of the last of them if it has
/// this very name.
pub(super) fn alike<'a>(form: &'a [u8], name: &str) -> (usize, Option<&'a [u8]>) {
    let (mut count, mut found) = (0, None);
    for pair in form.split(|byte| *byte == b'&') {
        let equals = pair.iter().position(|byte| *byte == b'=');
        let (key, value) = equals.map_or((pair, &b""[..]), |at| (&pair[..at], &pair[at + 1..]));
        let key = decoded(key);
        if loosely(&String::from_utf8_lossy(&key)) == loosely(name) {
            count += 1;
            found = (key == name.as_bytes()).then_some(value);
        }
    }
    (count, found)
}

/// True if some reader takes one name for the other, whether or not it decodes it.
pub(super) fn is_alike(key: &str, name: &str) -> bool {
    let decoded = decoded(key.as_bytes());
    let decoded = String::from_utf8_lossy(&decoded);
    [key, &*decoded].map(loosely).contains(&loosely(name))
}

/// What the name of a field is to the loosest reader. (PHP and qs read `name[]` as `name`, PHP
/// reads dots and spaces as `_`, ASP.NET does not look at case.)
fn loosely(name: &str) -> String {
    let name = name.trim_start();
    let start = name.split('[').next().unwrap_or_default();
    start.replace([' ', '.', '\0'], "_").to_lowercase()
}

/// Decoded text of `field`.
pub(super) fn text(encoded: &[u8], field: &'static str) -> Result<String, FieldError> {
    String::from_utf8(decoded(encoded)).map_err(|_| FieldError::new(field, "must be UTF-8"))
}

fn decoded(encoded: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded;
    while let Some((byte, after)) = next_byte(rest) {
        bytes.push(if rest[0] == b'+' { b' ' } else { byte });
        rest = after;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i_client_form_values_are_decoded_once() {
        let cases = [
            ("client_id=spa", Some("spa")),
            ("a=b&client_id=my%20app%2B1+x&c", Some("my app+1 x")),
            ("client%5Fid=spa", Some("spa")),
            ("client_id=%2573", Some("%73")),
            ("client_id=100%", Some("100%")),
            ("client_id=", None),
            ("client_id", None),
            ("xclient_id=spa", None),
            ("client_id=&client_id=spa", Some("spa")),
            ("client_id=caf%C3%A9", Some("café")),
            ("", None),
        ];
        for (form, expected) in cases {
            assert_eq!(
                value(form.as_bytes(), "client_id").unwrap().as_deref(),
                expected,
                "{form}"
            );
        }
    }

    #[test]
    fn i_client_a_repeated_or_unreadable_value_is_refused() {
        assert!(value(b"client_id=a&client_id=b", "client_id").is_err());
        assert!(value(b"client_id=a&client%5fid=a", "client_id").is_err());
        assert!(value(b"client_id=%ff", "client_id").is_err());
    }
}
