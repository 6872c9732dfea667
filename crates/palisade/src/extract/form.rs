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
