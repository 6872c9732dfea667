//! Listening addresses: an IP address and a port, or a socket file.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use palisade_policy::document::decode::{Decode, Problem, Problems, text_of};
use palisade_policy::document::tree::Node;

/// Prefix of the path of a socket file.
const UNIX: &str = "unix:";
/// Longest path of a socket file, in bytes: the operating system's own bound.
const PATH_BYTES_MAX: usize = 107;

/// A listening address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// An IP address and a port.
    Network(SocketAddr),
    /// A socket file, for clients on this machine that have permission to open it.
    File(PathBuf),
}

impl Address {
    /// True if only this machine can reach the address.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Network(address) => address.ip().to_canonical().is_loopback(),
            Self::File(_) => true,
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self::Network(address)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(address) => address.fmt(f),
            Self::File(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

impl Decode for Address {
    fn kind() -> String {
        "address and port, or `unix:PATH`".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        let text = text_of(node)?;
        let refuse = |message: String| {
            let hint = "for example \"127.0.0.1:8081\" or \"unix:/run/palisade/rls.sock\"";
            Err(vec![Problem::new(message).hint(hint)])
        };
        match text.strip_prefix(UNIX) {
            Some("") => refuse("must name a file behind `unix:`".to_owned()),
            Some(path) if path.contains('\0') => refuse("must be a path".to_owned()),
            Some(path) if path.len() > PATH_BYTES_MAX => refuse(format!(
                "must be a path of at most {PATH_BYTES_MAX} bytes: sockets have no longer ones"
            )),
            Some(path) => Ok(Self::File(path.into())),
            None => match text.parse() {
                Ok(address) => Ok(Self::Network(address)),
                Err(_) => refuse("must be an IP address and a port, or `unix:PATH`".to_owned()),
            },
        }
    }
}
