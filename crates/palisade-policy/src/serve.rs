//! What a configuration must have before a service may start with it. `check` does
//! not ask for it: a file may be written on one machine and served on another.

use std::net::SocketAddr;

use crate::error::{ConfigError, ConfigErrors};
use crate::load::Config;

impl Config {
    /// Refuses to serve what would be open to strangers or could not be shared.
    ///
    /// # Errors
    /// An address beyond loopback without a caller token, or a shared store without
    /// a shared secret.
    pub fn check_serve(&self) -> Result<(), ConfigErrors> {
        let mut errors = Vec::new();
        let addresses = [
            ("listen", self.server.listen),
            ("grpc", self.server.grpc),
            ("admin", self.server.admin),
        ];
        if self.server.caller_token.is_none() {
            errors.extend(addresses.iter().filter_map(open_to_strangers));
        }
        if self.store.url.is_shared() && self.secrets.key.is_none() {
            errors.push(ConfigError::nowhere(
                "a shared store needs `secrets.key`",
                "set it to \"env:NAME\" or \"file:PATH\", the same on every node",
            ));
        }
        ConfigErrors::from_list(errors).map_or(Ok(()), Err)
    }
}

fn open_to_strangers((key, address): &(&str, SocketAddr)) -> Option<ConfigError> {
    (!address.ip().to_canonical().is_loopback()).then(|| {
        ConfigError::nowhere(
            format!("`server.{key}` is not loopback and there is no `server.caller_token`"),
            "set `caller_token = \"env:NAME\"`, or listen on 127.0.0.1",
        )
    })
}
