//! Top-level members of JSON bodies.

use palisade_core::FieldError;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

/// True for what can only be a JSON object.
pub(super) fn looks_like(body: &[u8]) -> bool {
    body.trim_ascii_start().first() == Some(&b'{')
}

/// The text of member `name`; `None` if it is absent, empty or null, or if the body is
/// no JSON object: no server reads a client out of that.
///
/// A second value is refused, as in forms: two parties could read two different ones.
pub(super) fn value(body: &[u8], name: &'static str) -> Result<Option<String>, FieldError> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let Ok(found) = serde::Deserializer::deserialize_map(&mut reader, Member(name)) else {
        return Ok(None);
    };
    match found.as_slice() {
        [] => Ok(None),
        [Value::Null] => Ok(None),
        [Value::String(text)] => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
        [Value::Number(number)] => Ok(Some(number.to_string())),
        [_] => Err(FieldError::new(name, "must be text")),
        _ => Err(FieldError::new(name, "must be sent only once")),
    }
}

/// Every value of one member, the first two of them at least.
struct Member(&'static str);

impl<'de> Visitor<'de> for Member {
    type Value = Vec<Value>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<Value>, A::Error> {
        let mut found = Vec::new();
        while let Some(key) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            if key == self.0 && found.len() < 2 {
                found.push(map.next_value()?);
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
            (r#"["client_id"]"#, None),
            (r#"{"client_id":"spa""#, None),
            ("", None),
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
        ] {
            assert!(value(body.as_bytes(), "client_id").is_err(), "{body}");
        }
    }
}
