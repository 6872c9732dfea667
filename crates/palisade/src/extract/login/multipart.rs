//! Finds a field of a `multipart/form-data` body (RFC 7578) whose value is the same to every
//! reader.
//!
//! Readers differ widely: in what ends a line, in the headers that they heed, in how they unquote.
//! Bodies as browsers and HTTP libraries send them are read. A body that some reader could read
//! otherwise is refused.

use palisade_core::FieldError;

use super::username::is_harmless;
use crate::extract::{field_name, form};

const FIELD: &str = "username";
/// Longest boundary (RFC 2046 §5.1.1), in bytes.
const BOUNDARY_BYTES_MAX: usize = 70;
/// Most fields of a form.
const PARTS_MAX: usize = 128;

/// Returns the boundary that the parameters of a media type name: exactly one, of characters that
/// no reader quotes or cuts differently.
pub(super) fn boundary<'a>(parameters: impl Iterator<Item = &'a [u8]>) -> Option<&'a [u8]> {
    let mut found = None;
    for parameter in parameters.map(<[u8]>::trim_ascii) {
        match split_at(parameter, b"=") {
            Some((name, value)) if name.eq_ignore_ascii_case(b"boundary") => {
                if found.replace(unquoted(value)).is_some() {
                    return None;
                }
            }
            Some((name, _)) if name.eq_ignore_ascii_case(b"charset") => {
                is_harmless(parameter).then_some(())?;
            }
            _ => return None,
        }
    }
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"'+_.-".contains(byte);
    found.filter(|boundary| {
        (1..=BOUNDARY_BYTES_MAX).contains(&boundary.len()) && boundary.iter().all(plain)
    })
}

fn unquoted(value: &[u8]) -> &[u8] {
    let inner = value.strip_prefix(b"\"");
    inner
        .and_then(|inner| inner.strip_suffix(b"\""))
        .unwrap_or(value)
}

/// Returns the only value of field `name`. A missing field is an error.
pub(super) fn only(body: &[u8], boundary: &[u8], name: &str) -> Result<String, FieldError> {
    let wrong = |problem| Err(FieldError::new(FIELD, problem));
    let Some(parts) = parts(body, boundary) else {
        return wrong("is in a form that not every reader reads alike");
    };
    // Some applications read any body as a URL-encoded one.
    let mut alike = form::count_alike(body, name, b"&");
    let mut found = None;
    for part in &parts {
        if field_name::is_alike(&part.name, name) {
            alike += 1;
            found = (part.name == name && part.is_text).then_some(part.value);
        }
    }
    match found {
        _ if alike > 1 => wrong("must be sent only once"),
        Some([_, ..]) => match found.map(<[u8]>::to_vec).map(String::from_utf8) {
            Some(Ok(text)) => Ok(text),
            _ => wrong("must be UTF-8"),
        },
        _ => wrong("is missing: a login must say who tries"),
    }
}

/// One field.
struct Part<'a> {
    name: String,
    value: &'a [u8],
    /// True if the field is not a file and is in UTF-8.
    is_text: bool,
}

/// Returns every field, if all of the body can be read. The boundary must not occur within a field,
/// because a less strict reader would cut there, too.
fn parts<'a>(body: &'a [u8], boundary: &[u8]) -> Option<Vec<Part<'a>>> {
    let delimiter = [b"--", boundary].concat();
    let mut rest = body.strip_prefix(&*delimiter)?;
    let mut parts = Vec::new();
    while let Some((piece, after)) = split_at(rest, &delimiter) {
        if parts.len() == PARTS_MAX {
            return None;
        }
        let piece = piece.strip_prefix(b"\r\n")?.strip_suffix(b"\r\n")?;
        parts.push(part(piece)?);
        rest = after;
    }
    matches!(rest, b"--" | b"--\r\n").then_some(parts)
}

fn part(piece: &[u8]) -> Option<Part<'_>> {
    let (head, value) = split_at(piece, b"\r\n\r\n")?;
    let head = std::str::from_utf8(head).ok()?;
    let (mut disposition, mut media) = (None, None);
    for line in head.split("\r\n") {
        let (name, said) = line.split_once(':')?;
        let said = said.trim_matches([' ', '\t']);
        if said.contains(char::is_control) {
            return None;
        }
        let is_new = match name.to_ascii_lowercase().as_str() {
            "content-disposition" => disposition.replace(said).is_none(),
            "content-type" => media.replace(said).is_none(),
            // Some clients send these, and some readers heed them: they must change nothing.
            "content-length" => said == value.len().to_string(),
            "content-transfer-encoding" => {
                ["binary", "8bit", "7bit"].contains(&said.to_ascii_lowercase().as_str())
            }
            _ => false,
        };
        is_new.then_some(())?;
    }
    let (name, is_file) = disposed(disposition?)?;
    let media = media.unwrap_or("text/plain").to_ascii_lowercase();
    // Some readers take parts within parts for fields.
    if media.starts_with("multipart/") || media.starts_with("message/") {
        return None;
    }
    if is_unclear(&name) || form::is_other_charset(&name, value) {
        return None;
    }
    let mut parameters = media
        .split(';')
        .map(|parameter| parameter.trim().as_bytes());
    let is_plain = parameters.next() == Some(&b"text/plain"[..]) && parameters.all(is_harmless);
    Some(Part {
        name,
        value,
        is_text: is_plain && !is_file,
    })
}

/// True for the name of a part that not every reader keeps whole: some decode it once more, and
/// libraries for Java take `=?utf-8?Q?=65mail?=` for `email` (RFC 2047).
fn is_unclear(name: &str) -> bool {
    let decoded = field_name::decoded(name.as_bytes());
    name.contains("=?") || decoded.iter().any(u8::is_ascii_control)
}

/// Returns the name that a `Content-Disposition` gives, and whether it is the name of a file's
/// field.
fn disposed(said: &str) -> Option<(String, bool)> {
    let mut rest = said.strip_prefix("form-data")?;
    let (mut name, mut file) = (None, None);
    while !rest.is_empty() {
        let parameter = rest.strip_prefix(';')?.trim_start_matches(' ');
        let (key, value) = parameter.split_once('=')?;
        let (value, after) = match value.strip_prefix('"') {
            Some(quoted) => quoted
                .split_once('"')
                // Readers disagree about escapes in quoted names.
                .filter(|(inner, _)| !inner.contains('\\')),
            None => bare(value),
        }?;
        let is_new = match key.to_ascii_lowercase().as_str() {
            "name" => name.replace(value.to_owned()).is_none(),
            "filename" => file.replace(()).is_none(),
            _ => false,
        };
        is_new.then_some(())?;
        rest = after;
    }
    Some((name?, file.is_some()))
}

/// Returns a value without quotes, and the text after it.
fn bare(value: &str) -> Option<(&str, &str)> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    let (value, after) = value.split_at(value.find(';').unwrap_or(value.len()));
    (!value.is_empty() && value.chars().all(plain)).then_some((value, after))
}

/// Splits `bytes` at the first `mark`, which belongs to neither part.
fn split_at<'a>(bytes: &'a [u8], mark: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let at = bytes.windows(mark.len()).position(|found| found == mark)?;
    Some((&bytes[..at], &bytes[at + mark.len()..]))
}

#[cfg(test)]
mod tests;
