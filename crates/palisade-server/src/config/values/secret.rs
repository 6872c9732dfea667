//! References to secrets, and reading them.

use std::fmt;
use std::path::PathBuf;

use palisade::setup::without_line_end;
use palisade_policy::document::decode::{Decode, Problems};
use palisade_policy::document::tree::Node;
use palisade_policy::{Env, SecretSource};
use zeroize::Zeroizing;

use crate::failure::Failure;

/// Largest secret file, in bytes.
const SECRET_BYTES_MAX: u64 = 64 * 1024;

/// Fewest bytes of a token that callers or operators present. A shorter one could be guessed.
pub(crate) const TOKEN_BYTES_MIN: usize = 16;
/// Length from which on a token cannot be guessed, whatever the number of attempts.
pub(crate) const TOKEN_BYTES_STRONG: usize = 32;

/// Where a secret is kept. The configuration never holds the secret itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretRef {
    /// In this environment variable.
    Env(String),
    /// In this file; a final line break is not part of it.
    File(PathBuf),
}

/// A secret, wiped when dropped and never shown.
#[derive(Clone)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// The secret's bytes.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// A copy of the secret's bytes, wiped when dropped.
    pub(crate) fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        self.0.clone()
    }

    /// True if the secret is so long that no number of attempts finds it.
    pub fn is_strong(&self) -> bool {
        self.0.len() >= TOKEN_BYTES_STRONG
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl SecretRef {
    /// Reads the secret.
    ///
    /// # Errors
    /// The variable is not set, or the file cannot be read, or either is empty. `key` is the
    /// configuration key that the message names.
    pub fn read(&self, key: &str, env: &Env) -> Result<Secret, Failure> {
        let bytes = Zeroizing::new(match self {
            Self::Env(name) => match env.get(name) {
                Some(text) => text.as_bytes().to_vec(),
                None => {
                    return Err(Failure::usage(
                        format!("`{key}` refers to the variable `{name}`, which is not set"),
                        "set it, or refer to a file with `file:PATH`",
                    ));
                }
            },
            Self::File(path) => read_secret_file(key, path)?,
        });
        let end = without_line_end(&bytes);
        if end.is_empty() {
            return Err(Failure::usage(
                format!("`{key}` refers to an empty secret"),
                "put the secret where the key refers to",
            ));
        }
        Ok(Secret(Zeroizing::new(end.to_vec())))
    }

    /// Reads a token that callers or operators present.
    ///
    /// # Errors
    /// Those of [`SecretRef::read`], and a token that is short enough to be guessed.
    pub fn read_token(&self, key: &str, env: &Env) -> Result<Secret, Failure> {
        let token = self.read(key, env)?;
        if token.expose().len() < TOKEN_BYTES_MIN {
            return Err(Failure::usage(
                format!("`{key}` refers to a token of fewer than {TOKEN_BYTES_MIN} bytes"),
                "make one that cannot be guessed: `openssl rand -hex 32`",
            ));
        }
        Ok(token)
    }
}

#[cfg(test)]
impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(Zeroizing::new(text.as_bytes().to_vec()))
    }
}

fn read_secret_file(key: &str, path: &std::path::Path) -> Result<Vec<u8>, Failure> {
    use std::io::Read;
    let refused = |what: &str| {
        Failure::usage(
            format!(
                "`{key}` refers to the file `{}`, which {what}",
                path.display()
            ),
            "check the path and its permissions",
        )
    };
    let file = std::fs::File::open(path).map_err(|_| refused("cannot be opened"))?;
    let mut bytes = Vec::new();
    file.take(SECRET_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|_| refused("cannot be read"))?;
    if bytes.len() as u64 > SECRET_BYTES_MAX {
        return Err(refused("is larger than 64 KiB"));
    }
    Ok(bytes)
}

impl Decode for SecretRef {
    const PRIVATE: bool = true;

    fn kind() -> String {
        SecretSource::kind()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        Ok(match SecretSource::decode(node)? {
            SecretSource::Env(name) => Self::Env(name),
            SecretSource::File(path) => Self::File(path),
        })
    }
}
