//! API keys (I-APIKEY): read here, and known elsewhere only by their hash.

use std::fmt::Write;

use http::{HeaderMap, HeaderName};
use palisade_core::{FieldError, Id};
use sha2::{Digest, Sha256};

use super::header;

pub(super) const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// What a configuration or a store keeps instead of the key: the lower-case
/// hexadecimal SHA-256 of its bytes.
///
/// Plain SHA-256 is enough because keys are random and long; it is no way to
/// keep a password.
#[must_use]
pub fn hash_api_key(key: &str) -> String {
    lower_hex(&Sha256::digest(key.as_bytes()))
}

pub(super) fn lower_hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// The key that the request presents.
pub(super) fn api_key(headers: &HeaderMap) -> Result<Option<Id>, FieldError> {
    header::single(headers, &X_API_KEY, "X-API-Key")?
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
