//! A member of a JSON body, at any depth, that no reader can find twice.

use std::fmt;

use palisade_core::FieldError;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

const FIELD: &str = "username";

/// The text at `path`, outermost member first. A member that is there twice is refused, in
/// letters of either case too: some readers take the last, and some do not tell them apart.
pub(super) fn text(body: &[u8], path: &[String]) -> Result<String, FieldError> {
    let wrong = |problem| FieldError::new(FIELD, problem);
    let mut reader = serde_json::Deserializer::from_slice(body);
    let found = Seek(path).deserialize(&mut reader);
    let found = found.and_then(|found| reader.end().map(|()| found));
    match found {
        Ok(Found::Text(text)) if !text.is_empty() => Ok(text),
        Ok(Found::Text(_) | Found::Nothing) => Err(wrong("is missing: a login must say who tries")),
        Ok(Found::Twice) => Err(wrong("must be sent only once")),
        Ok(Found::NoText) => Err(wrong("must be text")),
        Err(_) => Err(wrong("cannot be read: the body is no JSON")),
    }
}

enum Found {
    Text(String),
    Nothing,
    Twice,
    NoText,
}

/// What is left of the path below a value.
struct Seek<'p>(&'p [String]);

impl<'de> DeserializeSeed<'de> for Seek<'_> {
    type Value = Found;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Found, D::Error> {
        reader.deserialize_any(self)
    }
}

impl Seek<'_> {
    /// A value that is no object: what is looked for, if the path ends here.
    fn plain(&self, text: impl FnOnce() -> String) -> Found {
        match self.0 {
            [] => Found::Text(text()),
            [_, ..] => Found::NoText,
        }
    }
}

impl<'de> Visitor<'de> for Seek<'_> {
    type Value = Found;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_str<E>(self, text: &str) -> Result<Found, E> {
        Ok(self.plain(|| text.to_owned()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Found, E> {
        Ok(self.plain(|| number.to_string()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Found, E> {
        Ok(self.plain(|| number.to_string()))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Found, E> {
        Ok(Found::NoText)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Found, E> {
        Ok(Found::NoText)
    }

    fn visit_unit<E>(self) -> Result<Found, E> {
        Ok(Found::Nothing)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Found, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Found::NoText)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Found, A::Error> {
        let mut found = Found::Nothing;
        let mut alike = 0_u8;
        while let Some(key) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            let name = self.0.first().filter(|name| folded(name) == folded(&key));
            alike = alike.saturating_add(u8::from(name.is_some()));
            match (name, self.0) {
                (Some(name), [_, rest @ ..]) if **name == *key => {
                    found = map.next_value_seed(Seek(rest))?;
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(match (self.0, alike) {
            ([], _) => Found::NoText,
            (_, 2..) => Found::Twice,
            _ => found,
        })
    }
}

/// As readers fold names that do not look at case.
fn folded(name: &str) -> String {
    name.to_uppercase().to_lowercase()
}
