//! Finds a member of a JSON body, at any depth, whose value is the same to every reader.

use std::borrow::Cow;
use std::fmt;

use palisade_core::{FieldError, spelling};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

const FIELD: &str = "username";

/// Returns the text at `path`, outermost member first.
///
/// A member that is there twice is refused, also when the second one has other letters or
/// punctuation: some readers take the last one, and some do not tell them apart. The same path
/// below another member is refused too, because Rails finds it there (`wrap_parameters`), and so is
/// a name that C cuts at its NUL.
pub(super) fn text(body: &[u8], path: &[String]) -> Result<String, FieldError> {
    let wrong = |problem| FieldError::new(FIELD, problem);
    // The parser does not validate text that it skips; other readers reject such a body.
    let Ok(body) = std::str::from_utf8(body) else {
        return Err(wrong("cannot be read: the body is not UTF-8"));
    };
    let mut reader = serde_json::Deserializer::from_str(body);
    let found = Seek::root(path).deserialize(&mut reader);
    let found = found.and_then(|found| reader.end().map(|()| found));
    match found {
        Ok(MemberLookup::Text(text)) if !text.is_empty() => Ok(text),
        Ok(MemberLookup::Text(_) | MemberLookup::Nothing) => {
            Err(wrong("is missing: a login must say who tries"))
        }
        Ok(MemberLookup::Twice) => Err(wrong("must be sent only once, by its own name")),
        Ok(MemberLookup::NoText) => Err(wrong("must be text")),
        Ok(MemberLookup::Unclear) => Err(wrong(
            "is beside a member that not every reader reads alike",
        )),
        Err(_) => Err(wrong("cannot be read: the body is no JSON")),
    }
}

/// A search's result below one value.
enum MemberLookup {
    Text(String),
    Nothing,
    NoText,
    Twice,
    Unclear,
}

impl MemberLookup {
    /// Combines the results of two members of one object.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Unclear, _) | (_, Self::Unclear) => Self::Unclear,
            (Self::Nothing, found) | (found, Self::Nothing) => found,
            _ => Self::Twice,
        }
    }
}

/// The search for a path below one value.
struct Seek<'p> {
    path: &'p [String],
    /// Length of the path that leads here; `None` off the path.
    exact: Option<usize>,
    /// Numbers of path elements that have been matched here by readers that begin at another
    /// member, or that read names loosely.
    loose: Vec<usize>,
}

impl<'p> Seek<'p> {
    const fn root(path: &'p [String]) -> Self {
        Self {
            path,
            exact: Some(0),
            loose: Vec::new(),
        }
    }

    /// The search below member `key`.
    fn below(&self, key: &str) -> Self {
        let is = |at: usize| self.path.get(at).is_some_and(|name| name == key);
        let alike = |at: &usize| self.path.get(*at).is_some_and(|name| is_alike(name, key));
        let exact = self.exact.filter(|at| is(*at)).map(|at| at + 1);
        let here = self.exact.into_iter().chain(self.loose.iter().copied());
        // Lenient readers may begin the path at any member.
        let mut loose: Vec<usize> = here.chain([0]).filter(alike).map(|at| at + 1).collect();
        loose.sort_unstable();
        loose.dedup();
        loose.retain(|at| Some(*at) != exact);
        Self {
            exact,
            loose,
            ..*self
        }
    }

    /// The search below a value that is not on the path.
    const fn elsewhere(&self) -> Self {
        Self {
            path: self.path,
            exact: None,
            loose: Vec::new(),
        }
    }

    /// Returns the result for a value that is no object: its text, if the path ends here.
    fn plain(&self, text: impl FnOnce() -> String) -> MemberLookup {
        let end = self.path.len();
        match self.exact {
            _ if self.loose.contains(&end) => MemberLookup::Twice,
            Some(at) if at == end => MemberLookup::Text(text()),
            Some(1..) => MemberLookup::NoText,
            Some(0) | None => MemberLookup::Nothing,
        }
    }

    /// Returns the result for a value that cannot be a name.
    fn no_text(&self) -> MemberLookup {
        match self.plain(String::new) {
            MemberLookup::Text(_) => MemberLookup::NoText,
            found => found,
        }
    }
}

impl<'de> DeserializeSeed<'de> for Seek<'_> {
    type Value = MemberLookup;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<MemberLookup, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seek<'_> {
    type Value = MemberLookup;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_str<E>(self, text: &str) -> Result<MemberLookup, E> {
        Ok(self.plain(|| text.to_owned()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<MemberLookup, E> {
        Ok(self.plain(|| number.to_string()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<MemberLookup, E> {
        Ok(self.plain(|| number.to_string()))
    }

    fn visit_f64<E>(self, _: f64) -> Result<MemberLookup, E> {
        Ok(self.no_text())
    }

    fn visit_bool<E>(self, _: bool) -> Result<MemberLookup, E> {
        Ok(self.no_text())
    }

    fn visit_unit<E>(self) -> Result<MemberLookup, E> {
        Ok(match self.no_text() {
            MemberLookup::NoText => MemberLookup::Nothing,
            found => found,
        })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<MemberLookup, A::Error> {
        let mut found = self.no_text();
        // The path does not continue within a list.
        while let Some(inner) = items.next_element_seed(self.elsewhere())? {
            found = found.and(inner);
        }
        Ok(found)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<MemberLookup, A::Error> {
        let end = self.path.len();
        let mut found = match self.exact {
            Some(at) if at == end => MemberLookup::NoText,
            _ if self.loose.contains(&end) => MemberLookup::Twice,
            _ => MemberLookup::Nothing,
        };
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            if key.contains(char::is_control) {
                found = MemberLookup::Unclear;
            }
            found = found.and(map.next_value_seed(self.below(&key))?);
        }
        Ok(found)
    }
}

/// True if some reader takes one member's name for the other: ASP.NET and Go ignore case, others
/// read `userName` and `user_name` as one.
fn is_alike(name: &str, key: &str) -> bool {
    let letters = |text: &str| -> String {
        let letters = spelling::one(text);
        letters.chars().filter(|c| c.is_alphanumeric()).collect()
    };
    name == key || (letters(name) == letters(key) && !letters(name).is_empty())
}

#[cfg(test)]
mod tests {
    use super::text;

    fn read(path: &str, body: &str) -> Result<String, String> {
        let path: Vec<String> = path.split('.').map(str::to_owned).collect();
        text(body.as_bytes(), &path).map_err(|error| error.to_string())
    }

    #[test]
    fn s2_a_member_that_some_reader_finds_elsewhere_is_refused() {
        for (path, body) in [
            ("email", r#"{"email":"decoy","email\u0000":"ann"}"#),
            ("email", r#"{"email":"decoy","x":{"a\u0000":1}}"#),
            ("email", r#"{"email":"decoy","session":{"email":"ann"}}"#),
            ("email", r#"{"email":"decoy","a":[{"b":{"Email":"ann"}}]}"#),
            ("email", r#"{"email":"decoy","email\u200b":"ann"}"#),
            ("email", r#"{"email":"decoy","ema\u0131l":"ann"}"#),
            ("user_name", r#"{"user_name":"decoy","userName":"ann"}"#),
            ("email", r#"[{"email":"ann"}]"#),
            ("email", r#"{"EMAIL":"ann"}"#),
            (
                "user.name",
                r#"{"user":{"name":"decoy"},"x":{"user":{"name":"ann"}}}"#,
            ),
            (
                "user.name",
                r#"{"user":{"name":"decoy","user":{"name":"ann"}}}"#,
            ),
            (
                "user.name",
                r#"{"user":{"name":"decoy"},"User":{"name":"ann"}}"#,
            ),
            ("email", r#"{"email":"decoy","x":"\ud800"}"#),
        ] {
            let refused = read(path, body).unwrap_err();
            assert!(!refused.contains("decoy"), "{refused}");
        }
        assert!(text(b"{\"email\":\"a\",\"x\":\"\xe0\"}", &["email".to_owned()]).is_err());
        let deep = format!(
            r#"{{"email":"a","x":{}1{}}}"#,
            "[".repeat(500),
            "]".repeat(500)
        );
        assert!(read("email", &deep).is_err());
    }

    #[test]
    fn members_that_no_reader_confuses_stay_apart() {
        for (path, body) in [
            (
                "user.name",
                r#"{"user":{"name":"a"},"device":{"name":"b"},"name":"c"}"#,
            ),
            (
                "email",
                r#"{"email":"a","emails":["b"],"x":{"y":[1,null,true,2.5]}}"#,
            ),
            ("a.a", r#"{"a":{"a":"a"}}"#),
        ] {
            assert_eq!(read(path, body).as_deref(), Ok("a"), "{body}");
        }
    }
}
