//! JSON in and out, shared by all surfaces: the HTTP API, policy cases and replay.
//!
//! Errors name the refused field and never repeat its value.

mod answer;
mod challenge;
mod costs;
mod guard;
mod render;
mod request;
mod reservation;

use std::borrow::Cow;

use palisade_core::facts::FieldError;
use serde::{Deserialize, Deserializer};

pub use answer::Answer;
pub use challenge::{IssuedAnswer, RawChallenge, VerifiedAnswer, read_solution, solution_text};
pub use costs::RawCosts;
pub use guard::{RawDevice, RawGuard};
pub use request::{RawClient, RawReceipt, RawRequest, Refund};
pub use reservation::{
    ExtendedAnswer, FollowUp, HeldMembers, RawFollowUp, ReserveCall, ReservedAnswer, SettledAnswer,
};

/// Reason why a body was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Not JSON, or cut short.
    #[error("the body is not valid JSON")]
    Syntax,
    /// A field of the wrong type, or an unknown or missing one.
    #[error("`{field}` {problem}")]
    Shape {
        /// Place, as a path of field names.
        field: String,
        /// The problem with the field.
        problem: String,
    },
    /// A field outside its bounds.
    #[error(transparent)]
    Field(#[from] FieldError),
}

impl WireError {
    /// Returns the name of the field that was refused, if one was.
    #[must_use]
    pub fn field(&self) -> Option<&str> {
        match self {
            Self::Syntax => None,
            Self::Shape { field, .. } => Some(field),
            Self::Field(error) => Some(error.field),
        }
    }
}

/// Reads JSON; an error names the place and never a value.
///
/// # Errors
/// See [`WireError`].
pub fn parse<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, WireError> {
    // serde would read a struct from an array, too, position by position.
    if json.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        return Err(WireError::Shape {
            field: "body".to_owned(),
            problem: "must be a JSON object".to_owned(),
        });
    }
    // Checking the text as a whole is faster than string by string.
    let text = std::str::from_utf8(json).map_err(|_| explain::<T>(json))?;
    serde_json::from_str(text).map_err(|_| explain::<T>(json))
}

/// Parses again, in a slower way that finds the place of the error.
fn explain<'a, T: Deserialize<'a>>(json: &'a [u8]) -> WireError {
    let mut reader = serde_json::Deserializer::from_slice(json);
    match serde_path_to_error::deserialize::<_, T>(&mut reader) {
        Ok(_) => WireError::Syntax,
        Err(error) if error.inner().is_data() => shape(&error.path().to_string(), error.inner()),
        Err(_) => WireError::Syntax,
    }
}

/// Returns the problem without the value that was sent. The allowed values are at the end of the
/// message, the value is before them.
fn unknown_variant(message: &str) -> String {
    let allowed = message.rsplit_once(", expected ").map(|(_, rest)| rest);
    let allowed = allowed.and_then(|rest| rest.split(" at line").next());
    allowed.map_or_else(
        || "is not one of the allowed values".to_owned(),
        |allowed| format!("is not one of the allowed values: write {allowed}"),
    )
}

fn shape(path: &str, error: &serde_json::Error) -> WireError {
    let message = error.to_string();
    let named = |prefix: &str| {
        let rest = message.strip_prefix(prefix)?;
        let name = rest.split('`').next()?;
        let plain = name.len() <= 40 && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        plain.then(|| name.to_owned())
    };
    let (field, problem) = if let Some(name) = named("missing field `") {
        let name = if path == "." {
            name
        } else {
            format!("{path}.{name}")
        };
        (name, "is required".to_owned())
    } else if message.starts_with("unknown field") {
        let name = named("unknown field `").unwrap_or_else(|| "body".to_owned());
        if name == "body" {
            let problem = "has a field that does not belong to this request";
            (name, problem.to_owned())
        } else {
            (name, "is not a field of this request".to_owned())
        }
    } else if message.starts_with("unknown variant") {
        (path.to_owned(), unknown_variant(&message))
    } else {
        let problem = "has the wrong type or is out of range";
        (path.to_owned(), problem.to_owned())
    };
    let field = if field == "." {
        "body".to_owned()
    } else {
        field
    };
    WireError::Shape { field, problem }
}

/// Text that borrows from the body where it can.
pub(crate) type Text<'a> = Cow<'a, str>;

/// Reads text that borrows from the body. Without this function serde would copy a [`Cow`] that is
/// behind an `Option`, or in a type of another name.
pub(crate) fn text<'de: 'a, 'a, D: Deserializer<'de>>(
    reader: D,
) -> Result<Option<Text<'a>>, D::Error> {
    #[derive(Deserialize)]
    struct BorrowedText<'a>(#[serde(borrow)] Cow<'a, str>);

    let text = Option::<BorrowedText<'a>>::deserialize(reader)?;
    Ok(text.map(|BorrowedText(text)| text))
}

#[cfg(test)]
mod tests {
    use palisade_core::facts::RequestKind;

    use super::*;

    #[test]
    fn text_without_escapes_is_not_copied() {
        let json = br#"{"ip":"::1","path":"\/x","user":null,"client":{"id":"spa"}}"#;
        let raw: RawRequest<'_> = parse(json).unwrap();
        assert!(matches!(raw.ip, Some(Cow::Borrowed("::1"))));
        assert!(matches!(raw.path, Some(Cow::Owned(path)) if path == "/x"));
        assert!(raw.user.is_none() && raw.method.is_none());
        assert!(matches!(raw.client.unwrap().id, Cow::Borrowed("spa")));
    }

    fn refused(json: &str) -> String {
        let raw: Result<RawRequest<'_>, _> = parse(json.as_bytes());
        match raw {
            Err(error) => error.to_string(),
            Ok(raw) => raw.into_facts().unwrap_err().to_string(),
        }
    }

    #[test]
    fn a_refused_field_is_named_and_its_value_is_not_echoed() {
        let cases = [
            (
                r#"{"ip":"canary","method":"GET","path":"/"}"#,
                "`ip` is not an IP address",
            ),
            (r#"{"method":"GET","path":"/"}"#, "`ip` is required"),
            (r#"{"ip":"::1","path":"/"}"#, "`method` is required"),
            (
                r#"{"ip":"::1","method":"GET","path":"canary"}"#,
                "`path` must start with `/`",
            ),
            (
                r#"{"ip":"::1","method":"GET","path":"/","cost":0}"#,
                "`cost` must be 1 to 140737488355328",
            ),
            (
                r#"{"ip":"::1","method":"GET","path":"/","cost":140737488355329}"#,
                "`cost` must be 1 to 140737488355328",
            ),
            (
                r#"{"ip":"::1","method":"GET","path":"/","cost":-1}"#,
                "`cost` has the wrong type or is out of range",
            ),
            (
                r#"{"ip":"::1","method":"GET","path":"/","cost":"canary"}"#,
                "`cost` has the wrong type or is out of range",
            ),
            (
                r#"{"ip":"::1","method":"GET","path":"/","usr":"canary"}"#,
                "`usr` is not a field of this request",
            ),
            (
                r#"{"ip":"::1","method":"GET","path":"/","client":{"id":"x","type":"canary"}}"#,
                "`client.type` is not one of the allowed values: write `confidential` or `public`",
            ),
            (
                r#"{"ip":"::1","method":"GET","path":"/","user":""}"#,
                "`user` must not be empty",
            ),
            (
                r#"{"op":"canary","ip":"::1"}"#,
                "`op` is not one of the allowed values: write `request` or `job.enqueue`",
            ),
            (
                r#"{"layers":"canary","ip":"::1"}"#,
                "`layers` is not one of the allowed values: write one of `all`, `edge`, `identity`",
            ),
            (
                r#"{"CANARY canary":1}"#,
                "`body` has a field that does not belong to this request",
            ),
            (r#"["canary"]"#, "`body` must be a JSON object"),
            ("{canary", "the body is not valid JSON"),
        ];
        for (json, message) in cases {
            assert_eq!(refused(json), message, "{json}");
            assert!(!refused(json).to_lowercase().contains("canary"));
        }
    }

    #[test]
    fn t_jobs_need_no_address_method_or_path_and_errors_name_the_field() {
        let job = |json: &str| {
            let raw: RawRequest<'_> = parse(json.as_bytes()).unwrap();
            raw.into_facts().map_err(|error| error.to_string())
        };
        let facts = job(r#"{"op":"job.enqueue","org":"acme","cost":5}"#).unwrap();
        assert_eq!(facts.kind, RequestKind::Job);
        assert_eq!((facts.address(), &*facts.path), (None, ""));
        let told = job(r#"{"op":"job.enqueue","token":"t","ip":"::1","path":"/a/../b"}"#).unwrap();
        assert_eq!(&*told.path, "/b");
        assert!(told.address().is_some());
        for (json, message) in [
            (
                r#"{"op":"job.enqueue"}"#,
                "`org` or `token` is required for a job: it counts for no address",
            ),
            (
                r#"{"op":"job.enqueue","org":"acme","ip":"canary"}"#,
                "`ip` is not an IP address",
            ),
            (
                r#"{"op":"job.enqueue","org":"acme","layers":"edge"}"#,
                "`layers` must not be `edge` for a job: it counts for its organisation and token",
            ),
        ] {
            assert_eq!(job(json).unwrap_err(), message);
        }
    }
}
