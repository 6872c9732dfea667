//! Value types that only the service's own tables use.

mod address;
mod names;
mod secret;
mod upstream;
mod url;

pub use address::Address;
pub(crate) use names::{HeaderName, JwtAlgorithm};
pub use names::{LogFormat, LogLevel};
pub use palisade::setup::StoreUrl;
pub use secret::Secret;
pub use secret::SecretRef;
pub(crate) use secret::TOKEN_BYTES_STRONG;
pub(crate) use upstream::{HealthPath, Upstreams};
pub use url::PostgresUrl;
