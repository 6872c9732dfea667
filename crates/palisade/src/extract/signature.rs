//! Verification of a token's signature with `ring`, the library that TLS uses, too.
//!
//! It uses no process-wide provider, so `main` need not install one, and another crate's choice of
//! provider cannot make this one panic.

use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind};
use ring::error::Unspecified;
use ring::hmac;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256,
    RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, RsaParameters, RsaPublicKeyComponents,
    UnparsedPublicKey, VerificationAlgorithm,
};

/// The parameters of one algorithm.
enum Scheme {
    Hmac(hmac::Algorithm),
    Rsa(&'static RsaParameters),
    Curve(&'static dyn VerificationAlgorithm),
}

impl Scheme {
    fn of(algorithm: Algorithm) -> Option<Self> {
        Some(match algorithm {
            Algorithm::HS256 => Self::Hmac(hmac::HMAC_SHA256),
            Algorithm::HS384 => Self::Hmac(hmac::HMAC_SHA384),
            Algorithm::HS512 => Self::Hmac(hmac::HMAC_SHA512),
            Algorithm::RS256 => Self::Rsa(&RSA_PKCS1_2048_8192_SHA256),
            Algorithm::RS384 => Self::Rsa(&RSA_PKCS1_2048_8192_SHA384),
            Algorithm::RS512 => Self::Rsa(&RSA_PKCS1_2048_8192_SHA512),
            Algorithm::PS256 => Self::Rsa(&RSA_PSS_2048_8192_SHA256),
            Algorithm::PS384 => Self::Rsa(&RSA_PSS_2048_8192_SHA384),
            Algorithm::PS512 => Self::Rsa(&RSA_PSS_2048_8192_SHA512),
            Algorithm::ES256 => Self::Curve(&ECDSA_P256_SHA256_FIXED),
            Algorithm::ES384 => Self::Curve(&ECDSA_P384_SHA384_FIXED),
            Algorithm::EdDSA => Self::Curve(&ED25519),
            _ => return None,
        })
    }
}

/// True if `signature` is a signature of this key over `message`. A key of another family than the
/// algorithm's never fits: a public key is not taken for an HMAC secret.
pub(super) fn verifies(
    algorithm: Algorithm,
    key: &DecodingKey,
    message: &[u8],
    signature: &[u8],
) -> bool {
    key.family() == algorithm.family()
        && Scheme::of(algorithm)
            .is_some_and(|scheme| judged(scheme, key.kind(), message, signature).is_ok())
}

fn judged(
    scheme: Scheme,
    key: &DecodingKeyKind,
    message: &[u8],
    signature: &[u8],
) -> Result<(), Unspecified> {
    use DecodingKeyKind::{RsaModulusExponent, SecretOrDer};
    match (scheme, key) {
        (Scheme::Hmac(hash), SecretOrDer(secret)) => {
            hmac::verify(&hmac::Key::new(hash, secret), message, signature)
        }
        (Scheme::Rsa(parameters), SecretOrDer(der)) => {
            UnparsedPublicKey::new(parameters, der).verify(message, signature)
        }
        (Scheme::Rsa(parameters), RsaModulusExponent { n, e }) => {
            let key = RsaPublicKeyComponents { n, e };
            key.verify(parameters, message, signature)
        }
        (Scheme::Curve(curve), SecretOrDer(point)) => {
            UnparsedPublicKey::new(curve, point).verify(message, signature)
        }
        (Scheme::Hmac(_) | Scheme::Curve(_), RsaModulusExponent { .. }) => Err(Unspecified),
    }
}
