//! Reading of header lines that may be sent once.

use http::{HeaderMap, HeaderName};
use palisade_core::FieldError;

/// Presence of the headers that are read from every request. One pass over the names that were sent
/// costs less than a search for each, and most requests lack most of them.
#[derive(Clone, Copy, Default)]
pub(super) struct SentHeaders {
    pub(super) authorization: bool,
    pub(super) user_agent: bool,
    pub(super) api_key: bool,
    /// True if one of the headers for request and correlation ids was sent.
    pub(super) ids: bool,
}

impl SentHeaders {
    pub(super) fn of(headers: &HeaderMap, api_key: &HeaderName) -> Self {
        let mut sent = Self::default();
        for name in headers.keys() {
            sent.api_key |= name == api_key;
            match name.as_str() {
                "authorization" => sent.authorization = true,
                "user-agent" => sent.user_agent = true,
                "x-request-id" | "x-correlation-id" | "traceparent" => sent.ids = true,
                _ => {}
            }
        }
        sent
    }
}

/// The value of a header that may be sent once, as text; blank is absent.
///
/// A second line is refused: two parties could read two different values.
pub(super) fn single<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
    field: &'static str,
) -> Result<Option<&'a str>, FieldError> {
    let mut lines = headers.get_all(name).iter();
    let Some(line) = lines.next() else {
        return Ok(None);
    };
    if lines.next().is_some() {
        return Err(FieldError::new(field, "must be sent only once"));
    }
    let text = std::str::from_utf8(line.as_bytes())
        .map_err(|_| FieldError::new(field, "must be UTF-8"))?
        .trim();
    Ok(Some(text).filter(|text| !text.is_empty()))
}

/// Text of at most `bytes_max` bytes, cut at a character's boundary.
pub(crate) fn truncated(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
