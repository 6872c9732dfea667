//! Secrets, by reference: a policy never contains one.

use std::io::Read;
use std::path::{Path, PathBuf};

use crate::document::Input;
use crate::document::decode::{Decode, Problem, Problems, text_of};
use crate::document::tree::Node;

/// Largest secret that is read from a file.
const SECRET_BYTES_MAX: u64 = 64 * 1024;

/// Where a secret is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    /// In this environment variable.
    Env(String),
    /// In this file; a final line break is not part of it.
    File(PathBuf),
}

impl SecretSource {
    /// Reads the secret as text; the error is the end of a sentence and shows nothing of it.
    pub(crate) fn read(&self, input: &Input<'_>) -> Result<String, &'static str> {
        let text = match self {
            Self::Env(name) => {
                let value = input.env.get(name);
                value
                    .ok_or("refers to a variable that is not set")?
                    .to_owned()
            }
            Self::File(path) => {
                let folder = input.path.and_then(Path::parent).unwrap_or(Path::new(""));
                read_file(&folder.join(path)).ok_or("refers to a file that cannot be read")?
            }
        };
        let secret = text.trim_end_matches(['\r', '\n']);
        match secret.is_empty() {
            true => Err("refers to an empty secret"),
            false => Ok(secret.to_owned()),
        }
    }
}

fn read_file(path: &Path) -> Option<String> {
    let file = std::fs::File::open(path).ok()?;
    let mut text = String::new();
    let read = file.take(SECRET_BYTES_MAX + 1).read_to_string(&mut text);
    read.ok()
        .filter(|read| *read as u64 <= SECRET_BYTES_MAX)
        .map(|_| text)
}

impl Decode for SecretSource {
    const PRIVATE: bool = true;

    fn kind() -> String {
        "`env:NAME` or `file:PATH`".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        let text = text_of(node)?;
        match text.split_once(':') {
            Some(("env", name)) if !name.is_empty() => Ok(Self::Env(name.to_owned())),
            Some(("file", path)) if !path.is_empty() => Ok(Self::File(path.into())),
            _ => Err(vec![
                Problem::new("must refer to a secret, not contain it")
                    .hint("write \"env:NAME\" or \"file:PATH\""),
            ]),
        }
    }
}
