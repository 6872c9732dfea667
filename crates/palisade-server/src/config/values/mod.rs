//! Types that only this configuration has.

mod address;
mod names;
mod secret;
mod upstream;
mod url;

pub(crate) use address::Address;
pub(crate) use names::{HeaderName, JwtAlgorithm, LogFormat, LogLevel};
pub(crate) use secret::{Secret, SecretRef};
pub(crate) use upstream::{HealthPath, Upstreams};
pub(crate) use url::{PostgresUrl, StoreUrl};
