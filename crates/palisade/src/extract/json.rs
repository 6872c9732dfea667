//! Top-level members of JSON bodies.

use palisade_core::FieldError;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

/// True for a body that can only be a JSON object.
pub(super) fn looks_like(body: &[u8]) -> bool {
    body.trim_ascii_start().first() == Some(&b'{')
}

/// Returns the text of member `name`; `None` if it is absent, empty or null.
///
/// A body that is more or less than one JSON object is refused: a more lenient reader may find a
/// client in it. A second value is refused too, as in forms, and so is a name in other letters: two
/// parties could read two different values.
pub(super) fn value(body: &[u8], name: &'static str) -> Result<Option<String>, FieldError> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let found = serde::Deserializer::deserialize_map(&mut reader, Member(name));
    let found = found.and_then(|found| reader.end().map(|()| found));
    let found =
        found.map_err(|_| FieldError::new(name, "cannot be read: the body is no JSON object"))?;
    match found.as_slice() {
        [] => Ok(None),
        [(false, _)] => Err(FieldError::new(name, "must be spelt plainly")),
        [(true, Value::Null)] => Ok(None),
        [(true, Value::String(text))] => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
        [(true, Value::Number(number))] => Ok(Some(number.to_string())),
        [_] => Err(FieldError::new(name, "must be text")),
        _ => Err(FieldError::new(name, "must be sent only once")),
    }
}

/// Collects the values of members whose names some reader takes for this one, two of them at most,
/// and whether each has exactly this name.
struct Member(&'static str);

impl<'de> Visitor<'de> for Member {
    type Value = Vec<(bool, Value)>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = Vec::new();
        while let Some(key) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            if key.eq_ignore_ascii_case(self.0) && found.len() < 2 {
                found.push((key == self.0, map.next_value()?));
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i_client_json_members_are_read_at_the_top_only() {
        for (body, expected) in [
            (r#"{"client_id":"spa"}"#, Some("spa")),
            (r#" {"a":{"client_id":"x"},"client_id":"spa"}"#, Some("spa")),
            (r#"{"client\u005fid":"s\u0070a"}"#, Some("spa")),
            (r#"{"client_id":7}"#, Some("7")),
            (r#"{"client_id":""}"#, None),
            (r#"{"client_id":null}"#, None),
            (r#"{"a":{"client_id":"x"}}"#, None),
            (" {} \n", None),
        ] {
            let found = value(body.as_bytes(), "client_id").unwrap();
            assert_eq!(found.as_deref(), expected, "{body}");
        }
    }

    #[test]
    fn i_client_a_second_member_or_one_that_is_no_text_is_refused() {
        for body in [
            r#"{"client_id":"a","client_id":"b"}"#,
            r#"{"client_id":"a","client\u005fid":"a"}"#,
            r#"{"client_id":["a"]}"#,
            r#"{"client_id":{}}"#,
            r#"{"Client_Id":"a"}"#,
            r#"{"client_id":"a","CLIENT_ID":"a"}"#,
        ] {
            assert!(value(body.as_bytes(), "client_id").is_err(), "{body}");
        }
    }

    #[test]
    fn i_client_what_only_a_lenient_reader_reads_is_refused() {
        for body in [
            r#"["client_id"]"#,
            r#"{"client_id":"spa""#,
            r#"{"client_id":"spa",}"#,
            r#"{'client_id':'spa'}"#,
            r#"{"client_id":"spa"}{"client_id":"web"}"#,
            "\u{feff}{\"client_id\":\"spa\"}",
            "client_id=spa",
            "",
        ] {
            assert!(value(body.as_bytes(), "client_id").is_err(), "{body}");
        }
    }
}
