//! The `Authorization` header.

use http::HeaderMap;
use http::header::AUTHORIZATION;
use palisade_core::FieldError;

use super::header;

/// Credentials by scheme.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Authorization<'a> {
    /// Header absent, or another scheme.
    None,
    /// `Bearer`, with its token.
    Bearer(&'a str),
    /// `Basic`, with its base64 text.
    Basic(&'a str),
}

impl<'a> Authorization<'a> {
    /// Reads the header; its scheme is case-insensitive.
    pub(super) fn read(headers: &'a HeaderMap) -> Result<Self, FieldError> {
        let Some(text) = header::single(headers, &AUTHORIZATION, "Authorization")? else {
            return Ok(Self::None);
        };
        let (scheme, credentials) = text.split_once([' ', '\t']).unwrap_or((text, ""));
        let credentials = credentials.trim_start();
        if scheme.eq_ignore_ascii_case("bearer") {
            return Ok(Self::Bearer(credentials));
        }
        if scheme.eq_ignore_ascii_case("basic") {
            return Ok(Self::Basic(credentials));
        }
        Ok(Self::None)
    }
}
