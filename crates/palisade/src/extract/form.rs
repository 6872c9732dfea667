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

/// The only value of field `name`, which must be there.
///
/// Stricter than [`value`]: names that some frameworks take for the same count as the same, and
/// `;` separates fields as it does for some, so that no reader can find another value than this
/// one.
pub(super) fn only(form: &[u8], name: &str) -> Result<String, FieldError> {
    let wrong = |problem| Err(FieldError::new("username", problem));
    if count_alike(form, name, b"&;") > 1 {
        return wrong("must be sent only once");
    }
    let mut pairs = form.split(|byte| b"&;".contains(byte)).map(halves);
    if pairs.any(|(key, _)| has_wide_escape(key)) {
        return wrong("is beside a field that not every reader reads alike");
    }
    match exact(form, name) {
        Some(value) if value.contains(&b';') => wrong("must not hold a bare `;`"),
        Some(value @ [_, ..]) => plain_text(value, "username"),
        _ => wrong("is missing: a login must say who tries"),
    }
}

/// The first value of the field of this very name, as it is written.
pub(super) fn exact<'a>(form: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut pairs = form.split(|byte| *byte == b'&').map(halves);
    let found = pairs.find(|(key, _)| decoded(key) == name.as_bytes());
    found.map(|(_, value)| value)
}

/// How many fields some reader takes for `name` that cuts a form at these marks.
pub(super) fn count_alike(form: &[u8], name: &str, marks: &[u8]) -> usize {
    let pairs = form.split(|byte| marks.contains(byte));
    let alike = |pair: &&[u8]| key_alike(halves(pair).0, name).is_some();
    pairs.filter(alike).count()
}

/// The values of every field that some reader takes for `name`, as each of them cuts a query.
pub(super) fn values_alike<'a>(query: &'a [u8], name: &str) -> impl Iterator<Item = &'a [u8]> {
    let pairs = query.split(|byte| *byte == b'&').flat_map(|pair| {
        let cuts = pair.split(|byte| *byte == b';');
        std::iter::once(pair).chain(cuts.filter(move |cut| cut.len() < pair.len()))
    });
    pairs
        .map(halves)
        .filter(move |(key, _)| has_wide_escape(key) || key_alike(key, name).is_some())
        .map(|(_, value)| value)
}

/// Name and value of a field, as they are written.
fn halves(pair: &[u8]) -> (&[u8], &[u8]) {
    let equals = pair.iter().position(|byte| *byte == b'=');
    equals.map_or((pair, &b""[..]), |at| (&pair[..at], &pair[at + 1..]))
}

/// The decoded key, if some reader takes it for `name`.
fn key_alike(key: &[u8], name: &str) -> Option<Vec<u8>> {
    let key = decoded(key);
    is_read_as(&String::from_utf8_lossy(&key), name).then_some(key)
}

/// True if some reader takes one name for the other, whether or not it decodes it.
pub(super) fn is_alike(key: &str, name: &str) -> bool {
    let decoded = decoded(key.as_bytes());
    is_read_as(key, name) || is_read_as(&String::from_utf8_lossy(&decoded), name)
}

/// True if the loosest readers take `key` for `name`, or for what holds it or is in it.
fn is_read_as(key: &str, name: &str) -> bool {
    let (key, name) = (key.trim_start().to_lowercase(), name.to_lowercase());
    let (nested, wanted) = (nested(&key), nested(&name));
    // `name[]` may be any member.
    let within = |(a, b): (&String, &String)| a == b || a.is_empty();
    let holds = nested.iter().zip(&wanted).skip(1).all(within);
    (nested.first() == wanted.first() && holds) || dotted(&key) == dotted(&name)
}

/// The path of names that PHP and qs read, to which `name[]` is `name` with something in it. PHP
/// reads dots, spaces and a bracket that stays open as `_`.
fn nested(name: &str) -> Vec<String> {
    let plain = |text: &str| text.replace([' ', '.', '\0', '['], "_");
    let mut path = Vec::new();
    let (start, mut rest) = match name.find('[') {
        Some(at) if name[at..].contains(']') => name.split_at(at),
        _ => (name, ""),
    };
    path.push(plain(start));
    while let Some((inner, after)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        path.push(inner.trim().to_owned());
        rest = after;
    }
    path
}

/// The path of names to readers that take `a[b]` for `a.b` (ASP.NET does).
fn dotted(name: &str) -> Vec<&str> {
    let parts = name.split(['.', '[', ']']);
    parts.filter(|part| !part.is_empty()).collect()
}

/// Decoded text of `field`, which every reader decodes to the same.
pub(super) fn plain_text(encoded: &[u8], field: &'static str) -> Result<String, FieldError> {
    if has_wide_escape(encoded) {
        return Err(FieldError::new(field, "must not be escaped with `%u`"));
    }
    text(encoded, field)
}

/// True for what nobody means well with: to ASP.NET `%u0061` is the letter `a`, to others six
/// characters.
fn has_wide_escape(encoded: &[u8]) -> bool {
    encoded
        .windows(2)
        .any(|pair| pair.eq_ignore_ascii_case(b"%u"))
}

/// Decoded text of `field`.
pub(super) fn text(encoded: &[u8], field: &'static str) -> Result<String, FieldError> {
    String::from_utf8(decoded(encoded)).map_err(|_| FieldError::new(field, "must be UTF-8"))
}

/// Without escapes.
pub(super) fn decoded(encoded: &[u8]) -> Vec<u8> {
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
    fn a_field_is_taken_for_another_if_some_reader_does_so() {
        for (name, key, is) in [
            ("email", "email", true),
            ("email", " EMAIL[]", true),
            ("email", "email[0]x", true),
            ("email", "emails", false),
            ("email", "user[email]", false),
            ("user_email", "user.email", true),
            ("user_email", "user email", true),
            ("user_email", "user[email", true),
            ("user[email]", "user[email]", true),
            ("user[email]", "User[ email ][]", true),
            ("user[email]", "user", true),
            ("user[email]", "user[]", true),
            ("user[email]", "user.email", true),
            ("user[email]", "user[password]", false),
            ("user[email]", "user[password][email]", false),
            ("user[email]", "user_id", false),
            ("user.email", "user[email]", true),
            ("user.email", "user.password", false),
            ("user.email", "user", false),
        ] {
            assert_eq!(is_alike(key, name), is, "{key} for {name}");
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
