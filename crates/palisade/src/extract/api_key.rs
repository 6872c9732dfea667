//! API keys (I-APIKEY). Only this file reads the key itself; all other code knows its hash.

use std::fmt::Write;

use http::{HeaderMap, HeaderName};
pub use palisade_core::policy::hash_api_key;
use palisade_core::{FieldError, Id};

use super::header;

pub(super) const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

pub(super) fn lower_hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// The key that the request presents.
pub(super) fn api_key(headers: &HeaderMap, name: &HeaderName) -> Result<Option<Id>, FieldError> {
    header::single(headers, name, "X-API-Key")?
        .map(|text| Id::new("X-API-Key", text))
        .transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i_apikey_the_hash_is_lower_case_sha256() {
        assert_eq!(
            hash_api_key("abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
