//! Names of fields, as the frameworks of applications read them.
//!
//! Applications cut, trim, nest and fold names in many ways (docs/edge.md has the table). The next
//! reader is not known here, so a name is compared as the loosest of all readers would, and a name
//! that readers cannot agree on is [unclear](is_unclear).

use palisade_core::spelling;

use super::path;

/// Characters that belong to a word of a name although they are neither letter nor digit: JSF
/// has `form:field`, Web Forms `ctl00$field`.
const WORD_MARKS: &str = "_-:$";

/// True if some reader takes `key` for `wanted`, for an object that holds it or for a part of it,
/// whether or not that reader decodes the name once more.
pub(super) fn is_alike(key: &str, wanted: &str) -> bool {
    let decoded = decoded(key.as_bytes());
    is_read_as(key, wanted) || is_read_as(&String::from_utf8_lossy(&decoded), wanted)
}

/// True if some reader takes the encoded `key` for the whole of `wanted`.
pub(super) fn is_same(key: &str, wanted: &str) -> bool {
    let decoded = decoded(key.as_bytes());
    let key = spelling::one(&String::from_utf8_lossy(&decoded));
    let key = key.split('\0').next().unwrap_or_default();
    words(key).join("_") == words(&spelling::one(wanted)).join("_")
}

/// True for an encoded name that readers do not decode to the same text, or do not keep whole:
/// PHP and C cut it at NUL, ASP.NET knows `%u0061`, classic ASP drops a `%` that escapes nothing.
pub(super) fn is_unclear(key: &[u8]) -> bool {
    has_odd_escape(key)
        || std::str::from_utf8(&decoded(key)).map_or(true, |text| text.contains(char::is_control))
}

/// True if a `%` does not begin two hexadecimal digits, as in `%u0061`.
pub(super) fn has_odd_escape(encoded: &[u8]) -> bool {
    let digits = |at: usize| encoded.get(at + 1..at + 3);
    let is_escape = |at| digits(at).is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit));
    let marks = encoded
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'%');
    marks.into_iter().any(|(at, _)| !is_escape(at))
}

/// The decoded text of a form field.
pub(super) fn decoded(encoded: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded;
    while let Some((byte, after)) = path::next_byte(rest) {
        bytes.push(if rest[0] == b'+' { b' ' } else { byte });
        rest = after;
    }
    bytes
}

fn is_read_as(key: &str, wanted: &str) -> bool {
    let (key, wanted) = (spelling::one(key), spelling::one(wanted));
    if key == wanted {
        return true;
    }
    let key_words = words(&key);
    // A field `user` may be read as the one that holds `user[email]`.
    let holder = |(at, _)| {
        let holder = words(&wanted[..at]);
        !holder.is_empty() && key_words == holder
    };
    holds(&key_words, &words(&wanted).join("_")) || wanted.match_indices('[').any(holder)
}

/// The words that a name is made of. Brackets and dots nest names, PHP reads a dot, a space and
/// an open bracket as `_`, Spring knows `user['email']`, `_email` and `!email`.
fn words(name: &str) -> Vec<&str> {
    let is_mark = |c: char| !c.is_alphanumeric() && !WORD_MARKS.contains(c);
    let words = name.split(is_mark).map(|word| word.trim_matches('_'));
    words.filter(|word| !word.is_empty()).collect()
}

/// True if some neighbouring words, joined with `_`, are the wanted ones: ASP.NET takes
/// `model.email` for `email`, `qs` and PHP find `email[0]` in it, PHP reads `user.email` as
/// `user_email`.
fn holds(words: &[&str], wanted: &str) -> bool {
    (0..words.len()).any(|from| begins_with(&words[from..], wanted))
}

fn begins_with(words: &[&str], wanted: &str) -> bool {
    let mut rest = wanted;
    for word in words {
        match rest.strip_prefix(word) {
            Some("") => return true,
            Some(after) if after.starts_with('_') => rest = &after[1..],
            _ => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_taken_for_another_if_some_reader_does_so() {
        for (wanted, keys) in [
            (
                "email",
                &[
                    "email",
                    " EMAIL[]",
                    "email[0]x",
                    "email.",
                    ".email",
                    "email ",
                    "+email",
                    "%65mail",
                    "email[",
                    "[email]",
                    "email[]x",
                    "model.Email",
                    "user[email]",
                    "!email",
                    "_email",
                    "ema\u{131}l",
                    "e\u{200b}mail",
                    "\u{feff}email",
                    "email\u{a0}",
                    "email;x",
                ][..],
            ),
            (
                "user_email",
                &[
                    "user.email",
                    "user email",
                    "user[email",
                    "user.email[0]",
                    "USER_EMAIL",
                ],
            ),
            (
                "user[email]",
                &[
                    "user[email]",
                    "User[ email ][]",
                    "user",
                    "user[]",
                    "user.email",
                    "user['email']",
                    "user_email",
                    "model.user[email]",
                    "user[",
                ],
            ),
            ("user.email", &["user[email]", "x.user.email"]),
            ("form:name", &["FORM:name", "form:name[]"]),
        ] {
            for key in keys {
                assert!(is_alike(key, wanted), "{key} for {wanted}");
            }
        }
    }

    #[test]
    fn fields_that_no_reader_confuses_stay_apart() {
        for (wanted, key) in [
            ("email", "emails"),
            ("email", "email_again"),
            ("email", "e-mail"),
            ("user_email", "user"),
            ("user[email]", "user[password]"),
            ("user[email]", "user_id"),
            ("user.email", "user.password"),
            ("user.email", "user"),
            // JSF sends its form's own name with every form.
            ("form:name", "form"),
            ("form:name", "form:password"),
            ("login", "login-token"),
            ("$", "x"),
        ] {
            assert!(!is_alike(key, wanted), "{key} for {wanted}");
        }
        let long = "a.".repeat(20_000);
        assert!(!is_alike(&long, "email"));
    }

    #[test]
    fn s2_a_name_that_readers_cut_or_decode_differently_is_unclear() {
        for key in [
            "email%00",
            "a%00email",
            "email%0A",
            "%7F",
            "%C2%85x",
            "email%ff",
            "%c0%80",
            "%u0065mail",
            "e%mail",
            "email%",
            "email%6",
        ] {
            assert!(is_unclear(key.as_bytes()), "{key}");
        }
        for key in ["email", "user%5Bemail%5D", "caf%C3%A9", "a+b", ""] {
            assert!(!is_unclear(key.as_bytes()), "{key}");
        }
    }
}
