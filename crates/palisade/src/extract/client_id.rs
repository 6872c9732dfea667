//! The OAuth client that a request names (I-CLIENT).

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use palisade_core::{FieldError, Id};

use super::authorization::Authorization;
use super::error::ExtractError;
use super::form;
use super::json;
use super::login::{is_harmless, plain};
use super::path::{EncodedSlash, normalise};

/// Longest body that is read, in bytes.
pub const FORM_BYTES_MAX: usize = 64 * 1024;

const FIELD: &str = "client_id";

/// The routes on which a client names itself, as normalised paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OAuthRoutes {
    /// Paths on which the id is in the query or, in a POST, in the body.
    pub authorize: Vec<Box<str>>,
    /// Paths on which the id is in Basic credentials or in the body: token, revoke, introspect.
    pub credentials: Vec<Box<str>>,
}

impl Default for OAuthRoutes {
    fn default() -> Self {
        Self {
            authorize: vec!["/auth/authorize".into()],
            credentials: vec![
                "/auth/token".into(),
                "/auth/revoke".into(),
                "/auth/introspect".into(),
            ],
        }
    }
}

impl OAuthRoutes {
    /// Normalises the paths from the configuration in the same way as the paths of requests.
    ///
    /// # Errors
    /// A path that is refused in requests, too, so that the route could never match.
    pub fn new<S: AsRef<str>>(
        authorize: &[S],
        credentials: &[S],
        slash: EncodedSlash,
    ) -> Result<Self, FieldError> {
        let normal = |path: &S| {
            let path = normalise(path.as_ref().as_bytes(), slash)?;
            Ok(path.into_judged())
        };
        Ok(Self {
            authorize: authorize.iter().map(normal).collect::<Result<_, _>>()?,
            credentials: credentials.iter().map(normal).collect::<Result<_, _>>()?,
        })
    }

    fn kind(&self, path: &str) -> Option<Kind> {
        let holds = |paths: &[Box<str>]| paths.iter().any(|known| **known == *path);
        if holds(&self.credentials) {
            return Some(Kind::Credentials);
        }
        holds(&self.authorize).then_some(Kind::Authorize)
    }

    /// True if this path is one of these routes for an application that ignores the case of
    /// letters, and none for one that does not.
    pub(super) fn differ_by_case(&self, path: &str) -> bool {
        let mut all = self.authorize.iter().chain(&self.credentials);
        self.kind(path).is_none() && all.any(|known| known.eq_ignore_ascii_case(path))
    }

    /// True if the client id may be in the body of this request: a surface that
    /// streams bodies buffers this one, up to [`FORM_BYTES_MAX`].
    #[must_use]
    pub fn reads_body(&self, method: &str, path: &str) -> bool {
        method.eq_ignore_ascii_case("POST") && self.kind(path).is_some()
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Authorize,
    Credentials,
}

/// The parts of a request in which it may name a client.
#[derive(Clone, Copy)]
pub(super) struct ClientSources<'a> {
    pub(super) path: &'a str,
    pub(super) query: Option<&'a [u8]>,
    pub(super) headers: &'a HeaderMap,
    pub(super) authorization: Authorization<'a>,
    pub(super) body: Option<&'a [u8]>,
}

/// The client's id on a route where clients name themselves.
///
/// RFC 6749 §2.3 allows one way of authenticating per request, so a client named
/// in two places must be the same one: if it were not, the server could judge one
/// name and the limit count another.
pub(super) fn client_id(
    routes: &OAuthRoutes,
    request: ClientSources<'_>,
) -> Result<Option<Id>, ExtractError> {
    let Some(kind) = routes.kind(request.path) else {
        return Ok(None);
    };
    let outer = match kind {
        Kind::Authorize => form_value(request.query.unwrap_or_default())?,
        Kind::Credentials => basic(request.authorization)?,
    };
    let agreed = agree(outer, in_body(request)?)?;
    let id = agreed.map(|text| Id::new(FIELD, &text)).transpose()?;
    Ok(id)
}

fn agree(first: Option<String>, second: Option<String>) -> Result<Option<String>, FieldError> {
    match (first, second) {
        (Some(first), Some(second)) if first != second => {
            Err(FieldError::new(FIELD, "is given twice and differs"))
        }
        (first, second) => Ok(first.or(second)),
    }
}

/// Returns the client in the body. A body of another type than form or JSON, or without a type, is
/// read as JSON if it looks like it and otherwise as a form, because some servers do so.
fn in_body(request: ClientSources<'_>) -> Result<Option<String>, ExtractError> {
    let Some(body) = request.body.filter(|body| !body.is_empty()) else {
        return Ok(None);
    };
    if body.len() > FORM_BYTES_MAX {
        return Err(ExtractError::BodyTooLong);
    }
    let media = media_type(request.headers)?;
    if body.starts_with(BYTE_ORDER_MARK) {
        return Err(FieldError::new(FIELD, "cannot be read behind a byte order mark").into());
    }
    let found = match media {
        Media::Form => form_value(body)?,
        Media::Json => json::value(body, FIELD)?,
        Media::Other if json::looks_like(body) => json::value(body, FIELD)?,
        Media::Other => form_value(body)?,
    };
    Ok(found)
}

/// The UTF-8 byte order mark. Some readers skip it before a text, and some take it for a part of
/// the text.
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// Returns the client of a form: `None` if no reader finds one there, and an error if readers find
/// different ones.
fn form_value(form: &[u8]) -> Result<Option<String>, FieldError> {
    if form::has_unclear_name(form) {
        let problem = "is beside a field that not every reader reads alike";
        return Err(FieldError::new(FIELD, problem));
    }
    match (
        form::count_alike(form, FIELD, b"&;"),
        form::exact(form, FIELD),
    ) {
        (0, _) => Ok(None),
        (1, Some(value)) if value.contains(&b';') => {
            Err(FieldError::new(FIELD, "must not hold a bare `;`"))
        }
        (1, Some(_)) => form::value(form, FIELD),
        (1, None) => Err(FieldError::new(FIELD, "must be spelt plainly")),
        _ => Err(FieldError::new(FIELD, "must be sent only once")),
    }
}

enum Media {
    Form,
    Json,
    Other,
}

/// Returns how the body is to be read. A type that only some servers read is refused, as on logins:
/// those servers would find a client that was not counted.
fn media_type(headers: &HeaderMap) -> Result<Media, ExtractError> {
    if headers.get_all(CONTENT_TYPE).iter().nth(1).is_some() {
        return Err(ExtractError::Media("must have one content type"));
    }
    let coded = |_| ExtractError::Media("must not have a content coding on OAuth routes");
    let (media, mut parameters) = plain(headers).map_err(coded)?;
    if !parameters.all(|parameter| is_harmless(parameter.trim_ascii())) {
        return Err(ExtractError::Media("must be in UTF-8 on OAuth routes"));
    }
    let media = media.to_ascii_lowercase();
    if media.starts_with(b"multipart/") {
        return Err(ExtractError::Media(
            "must be a URL-encoded form or JSON on OAuth routes",
        ));
    }
    Ok(if media == b"application/x-www-form-urlencoded" {
        Media::Form
    } else if media == b"application/json" || media.ends_with(b"+json") {
        Media::Json
    } else {
        Media::Other
    })
}

/// RFC 6749 §2.3.1: id and secret are form-encoded, then joined by a colon.
fn basic(authorization: Authorization<'_>) -> Result<Option<String>, FieldError> {
    let Some(id) = basic_bytes(authorization)? else {
        return Ok(None);
    };
    let id = form::text(&id, FIELD)?;
    Ok(Some(id).filter(|id| !id.is_empty()))
}

/// Returns the user of Basic credentials (RFC 7617); it may be empty.
pub(super) fn basic_user(authorization: Authorization<'_>) -> Result<Option<String>, FieldError> {
    let user = basic_bytes(authorization)?.map(String::from_utf8);
    let user = user.transpose();
    user.map_err(|_| FieldError::new("username", "must be UTF-8"))
}

fn basic_bytes(authorization: Authorization<'_>) -> Result<Option<Vec<u8>>, FieldError> {
    const LENIENT: GeneralPurpose = GeneralPurpose::new(
        &STANDARD,
        GeneralPurposeConfig::new()
            .with_decode_padding_mode(DecodePaddingMode::Indifferent)
            .with_decode_allow_trailing_bits(true),
    );
    let Authorization::Basic(text) = authorization else {
        return Ok(None);
    };
    let invalid = || FieldError::new("Authorization", "holds malformed Basic credentials");
    let pair = LENIENT.decode(text).map_err(|_| invalid())?;
    let colon = pair.iter().position(|byte| *byte == b':');
    Ok(Some(pair[..colon.ok_or_else(invalid)?].to_vec()))
}
