//! `application/x-www-form-urlencoded`, in queries and bodies.

use palisade_core::FieldError;

use super::field_name::{self, decoded};

/// The value of parameter `name`: decoded, `None` if absent or empty.
///
/// The name is compared decoded too, so that an escaped letter does not hide it.
/// A second value is refused, as RFC 6749 §3.1 and §3.2 ask: two parties could
/// read two different ones.
pub(super) fn value(form: &[u8], name: &'static str) -> Result<Option<String>, FieldError> {
    let mut found = None;
    for pair in form.split(|byte| *byte == b'&') {
        let (key, value) = halves(pair);
        if value.is_empty() || decoded(key) != name.as_bytes() {
            continue;
        }
        if found.replace(text(value, name)?).is_some() {
            return Err(FieldError::new(name, "must be sent only once"));
        }
    }
    Ok(found)
}

/// Returns the only value of field `name`. A missing field is an error.
///
/// Stricter than [`value`]: names that some reader takes for the same one count as the same, and
/// `;` separates fields as it does for some readers. So no reader can find another value than this
/// one.
pub(super) fn only(form: &[u8], name: &str) -> Result<String, FieldError> {
    let wrong = |problem| Err(FieldError::new("username", problem));
    if count_alike(form, name, b"&;") > 1 {
        return wrong("must be sent only once");
    }
    if has_unclear_name(form) || names_charset(form) {
        return wrong("is beside a field that not every reader reads alike");
    }
    match exact(form, name) {
        // Some readers end a field at `;`, and `qs` lets a name go on to a later `]=`.
        Some(value) if value.iter().any(|byte| b";=".contains(byte)) => {
            wrong("must not hold a bare `;` or `=`")
        }
        Some(value @ [_, ..]) => plain_text(value, "username"),
        _ => wrong("is missing: a login must say who tries"),
    }
}

/// Returns the first value of the field of exactly this name, still encoded.
pub(super) fn exact<'a>(form: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut pairs = form.split(|byte| *byte == b'&').map(halves);
    let found = pairs.find(|(key, _)| decoded(key) == name.as_bytes());
    found.map(|(_, value)| value)
}

/// Counts the fields that some reader takes for `name`, if the reader cuts the form at `marks`.
pub(super) fn count_alike(form: &[u8], name: &str, marks: &[u8]) -> usize {
    let pairs = form.split(|byte| marks.contains(byte));
    pairs.filter(|pair| key_alike(halves(pair).0, name)).count()
}

/// True if readers do not agree on the name of some field.
pub(super) fn has_unclear_name(form: &[u8]) -> bool {
    let mut pairs = form.split(|byte| b"&;".contains(byte)).map(halves);
    pairs.any(|(key, _)| field_name::is_unclear(key))
}

/// Returns the values of every field that some reader takes for `name`, for readers that cut a
/// query at `&` and for those that also cut it at `;`.
pub(super) fn values_alike<'a>(query: &'a [u8], name: &str) -> impl Iterator<Item = &'a [u8]> {
    let pairs = query.split(|byte| *byte == b'&').flat_map(|pair| {
        let cuts = pair.split(|byte| *byte == b';');
        std::iter::once(pair).chain(cuts.filter(move |cut| cut.len() < pair.len()))
    });
    pairs
        .map(halves)
        .filter(move |(key, _)| field_name::is_unclear(key) || key_alike(key, name))
        .map(|(_, value)| value)
}

/// Splits a field into name and value, still encoded.
fn halves(pair: &[u8]) -> (&[u8], &[u8]) {
    let equals = pair.iter().position(|byte| *byte == b'=');
    equals.map_or((pair, &b""[..]), |at| (&pair[..at], &pair[at + 1..]))
}

/// True if some reader takes the encoded key for `name`.
fn key_alike(key: &[u8], name: &str) -> bool {
    field_name::is_alike(&String::from_utf8_lossy(&decoded(key)), name)
}

/// True if some field makes readers that know it decode the others in another charset.
fn names_charset(form: &[u8]) -> bool {
    let mut pairs = form.split(|byte| b"&;".contains(byte)).map(halves);
    pairs.any(|(key, value)| {
        let key = String::from_utf8_lossy(&decoded(key)).into_owned();
        is_other_charset(&key, &decoded(value))
    })
}

/// True for a field that announces another charset than UTF-8: HTML's `_charset_`, and the
/// `utf8` of Rails and `qs`, whose check mark becomes an entity where it cannot be written.
pub(super) fn is_other_charset(key: &str, value: &[u8]) -> bool {
    (field_name::is_alike(key, "_charset_") && !value.eq_ignore_ascii_case(b"utf-8"))
        || (field_name::is_alike(key, "utf8") && value.starts_with(b"&#"))
}

/// Returns the decoded text of `field`. Text that readers decode differently is refused.
pub(super) fn plain_text(encoded: &[u8], field: &'static str) -> Result<String, FieldError> {
    if field_name::has_odd_escape(encoded) {
        return Err(FieldError::new(
            field,
            "must not have a `%` that is no escape",
        ));
    }
    text(encoded, field)
}

/// Decoded text of `field`.
pub(super) fn text(encoded: &[u8], field: &'static str) -> Result<String, FieldError> {
    String::from_utf8(decoded(encoded)).map_err(|_| FieldError::new(field, "must be UTF-8"))
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
    fn s2_a_name_hidden_from_some_reader_is_refused() {
        for form in [
            "email=decoy&email%00=ann",
            "email%00=ann&email=decoy",
            "email=decoy&x%00email=ann",
            "email=decoy&email%0a=ann",
            "email=decoy&model.email=ann",
            "email=decoy&+email=ann",
            "email=decoy&email.=ann",
            "email=decoy&e%mail=ann",
            "email=decoy&email%ff=ann",
            "email=decoy&_charset_=utf-7",
            "email=decoy&utf8=%26%2310003%3B",
            "email=a%nn",
            "email=a%unn",
            "email=a]=b",
        ] {
            assert!(only(form.as_bytes(), "email").is_err(), "{form}");
        }
        for form in [
            "utf8=%E2%9C%93&email=x&a.b[c]=100%",
            "email=x&_charset_=UTF-8",
            "email=x&password=a=b;c",
        ] {
            assert_eq!(only(form.as_bytes(), "email").as_deref(), Ok("x"), "{form}");
        }
    }

    #[test]
    fn a_semicolon_separates_fields_to_some_readers() {
        assert_eq!(only(b"a=1;b=2&email=x", "email").as_deref(), Ok("x"));
        for form in [
            "email=x&a=1;email=y",
            "a;%65mail=y&email=x",
            "email=x;y",
            "a;email=x",
        ] {
            assert!(only(form.as_bytes(), "email").is_err(), "{form}");
        }
        let values: Vec<_> = values_alike(b"a=1;Email=x&email=y;z&&", "email").collect();
        assert_eq!(values, [&b"x"[..], b"y;z", b"y"]);
    }

    #[test]
    fn i_client_a_repeated_or_unreadable_value_is_refused() {
        assert!(value(b"client_id=a&client_id=b", "client_id").is_err());
        assert!(value(b"client_id=a&client%5fid=a", "client_id").is_err());
        assert!(value(b"client_id=%ff", "client_id").is_err());
    }
}
