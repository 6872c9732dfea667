//! The keys that tokens are verified with: a static one, or a JWKS file's.
//!
//! Every key is checked when it is loaded, so that a key that could never verify
//! anything is an error at start and not a flood of refused tokens later.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{AlgorithmFamily, DecodingKey};
use serde_json::{Map, Value};
use spki::der::asn1::UintRef;
use spki::der::{Decode, Reader, SliceReader};
use spki::{ObjectIdentifier, SubjectPublicKeyInfoRef};

pub use jsonwebtoken::Algorithm;

/// Largest JWKS or PEM file, in bytes.
pub const KEY_FILE_BYTES_MAX: usize = 256 * 1024;
/// Most keys in a JWKS file.
pub const KEYS_MAX: usize = 64;
/// Shortest HMAC secret, in bytes.
pub const HMAC_BYTES_MIN: usize = 32;

/// Smallest RSA modulus, in bytes: 2048 bits.
const RSA_BYTES_MIN: usize = 256;

const UNFIT: KeyError = KeyError::Pem("does not fit the configured algorithm");

/// Object identifiers by which a PEM file names the kind of its key: RFC 3279 (RSA, elliptic
/// curves) and RFC 8410 (Ed25519).
const RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");
const EC: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");
const ED25519: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.101.112");

/// A key that cannot be used. Names what is wrong, never key material.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The configured algorithm is not a signature algorithm that is supported.
    #[error(
        "`algorithm` is not supported: use one of HS256, HS384, HS512, RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, EdDSA (`none` is always refused)"
    )]
    Algorithm,
    /// The file is larger than [`KEY_FILE_BYTES_MAX`].
    #[error("the key file is larger than {KEY_FILE_BYTES_MAX} bytes")]
    FileTooLarge,
    /// The JWKS file is not JSON.
    #[error("the JWKS is not valid JSON (line {line}, column {column})")]
    Json {
        /// Line of the fault.
        line: usize,
        /// Column of the fault.
        column: usize,
    },
    /// The JWKS file does not have the shape of a key set.
    #[error("the JWKS needs a member `keys` that is a list of objects")]
    Shape,
    /// More keys than [`KEYS_MAX`].
    #[error("the JWKS has more than {KEYS_MAX} keys")]
    TooManyKeys,
    /// One key of the set is unusable.
    #[error("`keys[{index}].{member}` {problem}")]
    Key {
        /// Position in `keys`.
        index: usize,
        /// The member at fault.
        member: &'static str,
        /// The problem with the member.
        problem: &'static str,
    },
    /// No key of the set fits the configured algorithm.
    #[error("the JWKS has no signature key for the configured algorithm {0:?}")]
    NoKey(Algorithm),
    /// The PEM file is unusable.
    #[error("the PEM key {0}")]
    Pem(&'static str),
    /// The HMAC secret is unusable.
    #[error("the HMAC secret {0}")]
    Secret(&'static str),
}

/// Reads the configured algorithm's name.
///
/// # Errors
/// The name is not that of a supported signature algorithm; `none` is not supported.
pub fn parse_algorithm(name: &str) -> Result<Algorithm, KeyError> {
    name.parse().map_err(|_| KeyError::Algorithm)
}

/// Verification keys for exactly one algorithm.
pub struct JwtKeys {
    algorithm: Algorithm,
    keys: Keys,
}

enum Keys {
    /// One key, whatever the token's `kid`.
    Static(DecodingKey),
    /// A key set, in which the token's `kid` chooses.
    Set(Vec<SetKey>),
}

struct SetKey {
    id: Option<Box<str>>,
    key: DecodingKey,
}

impl fmt::Debug for JwtKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JwtKeys")
            .field("algorithm", &self.algorithm)
            .finish_non_exhaustive()
    }
}

impl JwtKeys {
    /// A single key of the kind that the algorithm needs: the shared secret for
    /// HMAC, else a public key in PEM.
    ///
    /// # Errors
    /// As [`JwtKeys::from_secret`] and [`JwtKeys::from_pem`].
    pub fn from_key(key: &[u8], algorithm: Algorithm) -> Result<Self, KeyError> {
        match algorithm.family() {
            AlgorithmFamily::Hmac => Self::from_secret(key, algorithm),
            AlgorithmFamily::Rsa | AlgorithmFamily::Ec | AlgorithmFamily::Ed => {
                Self::from_pem(key, algorithm)
            }
        }
    }

    /// A shared secret for an HMAC algorithm.
    ///
    /// # Errors
    /// Another family of algorithms, a short secret, or a PEM file given as one.
    pub fn from_secret(secret: &[u8], algorithm: Algorithm) -> Result<Self, KeyError> {
        if algorithm.family() != AlgorithmFamily::Hmac {
            return Err(KeyError::Secret("needs one of HS256, HS384, HS512"));
        }
        if secret.trim_ascii_start().starts_with(b"-----BEGIN") {
            return Err(KeyError::Secret(
                "is a PEM file: configure a public-key algorithm for it",
            ));
        }
        if secret.len() < HMAC_BYTES_MIN {
            return Err(KeyError::Secret("is shorter than 32 bytes"));
        }
        let key = DecodingKey::from_secret(secret);
        Ok(Self::fixed(algorithm, key))
    }

    /// A public key in PEM.
    ///
    /// # Errors
    /// A private key or certificate, another kind of key than the algorithm
    /// needs, or an RSA key under 2048 bits.
    pub fn from_pem(pem: &[u8], algorithm: Algorithm) -> Result<Self, KeyError> {
        if pem.len() > KEY_FILE_BYTES_MAX {
            return Err(KeyError::FileTooLarge);
        }
        let has = |label: &[u8]| pem.windows(label.len()).any(|part| part == label);
        if has(b"PRIVATE KEY") {
            return Err(KeyError::Pem("is private: give the public key only"));
        }
        if has(b"CERTIFICATE") {
            return Err(KeyError::Pem(
                "is a certificate: extract its public key first",
            ));
        }
        if algorithm.family() == AlgorithmFamily::Hmac {
            return Err(KeyError::Pem("needs a public-key algorithm, not HMAC"));
        }
        let key = pem_key(pem, algorithm.family()).ok_or(UNFIT)?;
        pem_strength(&key, algorithm)?;
        Ok(Self::fixed(algorithm, key))
    }

    /// The keys of a JWKS file that fit the algorithm. Other keys are ignored.
    ///
    /// # Errors
    /// Not a key set, no fitting key, a repeated `kid`, or a fitting key that is
    /// malformed, weak or private.
    pub fn from_jwks(json: &[u8], algorithm: Algorithm) -> Result<Self, KeyError> {
        let mut set: Vec<SetKey> = Vec::new();
        for (index, members) in jwks_entries(json)?.iter().enumerate() {
            let entry = Entry { index, members };
            if !entry.fits(algorithm) {
                continue;
            }
            let key = entry.load(algorithm)?;
            if set.iter().any(|known| known.id == key.id) {
                return Err(entry.error("kid", "is missing or the same as another key's"));
            }
            set.push(key);
        }
        if set.is_empty() {
            return Err(KeyError::NoKey(algorithm));
        }
        Ok(Self {
            algorithm,
            keys: Keys::Set(set),
        })
    }

    fn fixed(algorithm: Algorithm, key: DecodingKey) -> Self {
        Self {
            algorithm,
            keys: Keys::Static(key),
        }
    }

    /// The only algorithm that these keys verify.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The key for a token with this `kid`.
    pub(super) fn find(&self, kid: Option<&str>) -> Option<&DecodingKey> {
        match (&self.keys, kid) {
            (Keys::Static(key), _) => Some(key),
            (Keys::Set(set), Some(kid)) => set
                .iter()
                .find(|known| known.id.as_deref() == Some(kid))
                .or_else(|| only(set).filter(|known| known.id.is_none()))
                .map(|known| &known.key),
            (Keys::Set(set), None) => only(set).map(|known| &known.key),
        }
    }
}

/// Returns the key of a set of one: a token needs no `kid` there.
fn only(set: &[SetKey]) -> Option<&SetKey> {
    match set {
        [only] => Some(only),
        _ => None,
    }
}

fn pem_strength(key: &DecodingKey, algorithm: Algorithm) -> Result<(), KeyError> {
    let bytes = key
        .try_get_as_bytes()
        .map_err(|_| KeyError::Pem("cannot be read"))?;
    match algorithm {
        // An uncompressed point is one byte and two coordinates.
        Algorithm::ES256 if bytes.len() != 65 => Err(KeyError::Pem("is not on curve P-256")),
        Algorithm::ES384 if bytes.len() != 97 => Err(KeyError::Pem("is not on curve P-384")),
        _ if algorithm.family() == AlgorithmFamily::Rsa => rsa_strength(bytes),
        _ => Ok(()),
    }
}

/// Checks the bits of an RSA modulus. The file's encoding is `RSAPublicKey` of RFC 8017.
fn rsa_strength(der: &[u8]) -> Result<(), KeyError> {
    match modulus_bytes(der) {
        Ok(bytes) if bytes < RSA_BYTES_MIN => Err(KeyError::Pem("is shorter than 2048 bits")),
        Ok(_) => Ok(()),
        Err(_) => Err(UNFIT),
    }
}

fn modulus_bytes(der: &[u8]) -> spki::der::Result<usize> {
    let mut reader = SliceReader::new(der)?;
    let bytes = reader.sequence(|members| {
        // The modulus, then the exponent.
        let modulus = UintRef::decode(members)?;
        UintRef::decode(members)?;
        Ok(modulus.as_bytes().len())
    })?;
    reader.finish(bytes)
}

/// Returns the key in a PEM file, if it is of this family. An RSA key is in an encoding of its own
/// or, like a key on a curve, inside the encoding that names the kind of key.
fn pem_key(pem: &[u8], family: AlgorithmFamily) -> Option<DecodingKey> {
    let block = pem::parse(pem).ok()?;
    if (block.tag(), family) == ("RSA PUBLIC KEY", AlgorithmFamily::Rsa) {
        return Some(DecodingKey::from_rsa_der(block.contents()));
    }
    let info = SubjectPublicKeyInfoRef::try_from(block.contents()).ok()?;
    let key = info.subject_public_key.as_bytes()?;
    match (family, info.algorithm.oid) {
        (AlgorithmFamily::Rsa, RSA) => Some(DecodingKey::from_rsa_der(key)),
        (AlgorithmFamily::Ec, EC) => Some(DecodingKey::from_ec_der(key)),
        (AlgorithmFamily::Ed, ED25519) => Some(DecodingKey::from_ed_der(key)),
        _ => None,
    }
}

fn jwks_entries(json: &[u8]) -> Result<Vec<Map<String, Value>>, KeyError> {
    if json.len() > KEY_FILE_BYTES_MAX {
        return Err(KeyError::FileTooLarge);
    }
    let value: Value = serde_json::from_slice(json).map_err(|error| KeyError::Json {
        line: error.line(),
        column: error.column(),
    })?;
    let Value::Object(mut set) = value else {
        return Err(KeyError::Shape);
    };
    let Some(Value::Array(keys)) = set.remove("keys") else {
        return Err(KeyError::Shape);
    };
    if keys.len() > KEYS_MAX {
        return Err(KeyError::TooManyKeys);
    }
    let object = |key| match key {
        Value::Object(members) => Ok(members),
        _ => Err(KeyError::Shape),
    };
    keys.into_iter().map(object).collect()
}

/// One member of `keys`.
struct Entry<'a> {
    index: usize,
    members: &'a Map<String, Value>,
}

impl Entry<'_> {
    fn text(&self, member: &str) -> Option<&str> {
        self.members.get(member).and_then(Value::as_str)
    }

    const fn error(&self, member: &'static str, problem: &'static str) -> KeyError {
        KeyError::Key {
            index: self.index,
            member,
            problem,
        }
    }

    /// True for a signature key of the algorithm's kind.
    fn fits(&self, algorithm: Algorithm) -> bool {
        let kind = match algorithm.family() {
            AlgorithmFamily::Hmac => "oct",
            AlgorithmFamily::Rsa => "RSA",
            AlgorithmFamily::Ec => "EC",
            AlgorithmFamily::Ed => "OKP",
        };
        let curve = match algorithm {
            Algorithm::ES256 => Some("P-256"),
            Algorithm::ES384 => Some("P-384"),
            Algorithm::EdDSA => Some("Ed25519"),
            _ => None,
        };
        let named = |name: &str| {
            name.parse::<Algorithm>()
                .is_ok_and(|named| named == algorithm)
        };
        // `use` and `alg` are optional members: a key without them fits.
        self.text("kty") == Some(kind)
            && curve.is_none_or(|curve| self.text("crv") == Some(curve))
            && self.text("use").is_none_or(|usage| usage == "sig")
            && self.text("alg").is_none_or(named)
    }

    fn load(&self, algorithm: Algorithm) -> Result<SetKey, KeyError> {
        let public = algorithm.family() != AlgorithmFamily::Hmac;
        if public && self.members.contains_key("d") {
            return Err(self.error("d", "is private: give public keys only"));
        }
        let key = match algorithm.family() {
            AlgorithmFamily::Hmac => self.hmac()?,
            AlgorithmFamily::Rsa => self.rsa()?,
            AlgorithmFamily::Ec => self.ec(if algorithm == Algorithm::ES384 {
                48
            } else {
                32
            })?,
            AlgorithmFamily::Ed => DecodingKey::from_ed_der(&self.sized("x", 32)?),
        };
        Ok(SetKey {
            id: self.text("kid").map(Into::into),
            key,
        })
    }

    fn hmac(&self) -> Result<DecodingKey, KeyError> {
        let secret = self.bytes("k")?;
        if secret.len() < HMAC_BYTES_MIN {
            return Err(self.error("k", "is shorter than 32 bytes"));
        }
        Ok(DecodingKey::from_secret(&secret))
    }

    fn rsa(&self) -> Result<DecodingKey, KeyError> {
        let (modulus, exponent) = (self.bytes("n")?, self.bytes("e")?);
        let (modulus, exponent) = (significant(&modulus), significant(&exponent));
        if modulus.len() < RSA_BYTES_MIN {
            return Err(self.error("n", "is shorter than 2048 bits"));
        }
        if exponent.is_empty() {
            return Err(self.error("e", "must not be zero"));
        }
        Ok(DecodingKey::from_rsa_raw_components(modulus, exponent))
    }

    fn ec(&self, coordinate_bytes: usize) -> Result<DecodingKey, KeyError> {
        let point = [
            // An uncompressed point begins with this byte (SEC 1).
            vec![4],
            self.sized("x", coordinate_bytes)?,
            self.sized("y", coordinate_bytes)?,
        ];
        Ok(DecodingKey::from_ec_der(&point.concat()))
    }

    fn sized(&self, member: &'static str, bytes: usize) -> Result<Vec<u8>, KeyError> {
        let value = self.bytes(member)?;
        if value.len() != bytes {
            return Err(self.error(member, "has the wrong length for its curve"));
        }
        Ok(value)
    }

    fn bytes(&self, member: &'static str) -> Result<Vec<u8>, KeyError> {
        let text = self
            .text(member)
            .ok_or_else(|| self.error(member, "is missing or no string"))?;
        URL_SAFE_NO_PAD
            .decode(text)
            .map_err(|_| self.error(member, "is not unpadded base64url"))
    }
}

/// A number without its leading zeros: some issuers write a sign byte, and the
/// verifier takes only the shortest form.
fn significant(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    number.get(zeros..).unwrap_or_default()
}
