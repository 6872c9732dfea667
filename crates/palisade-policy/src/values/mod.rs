//! Types that only configurations have.

mod names;
mod rate;
mod secret;
mod url;

pub use names::{
    AgentFragment, ForwardedHeader, HeaderFamily, HeaderName, JwtAlgorithm, LogFormat, LogLevel,
    OneOrMany, OriginalRequest, SlashMeaning, TokenExpiry,
};
pub use rate::Rate;
pub use secret::{Secret, SecretRef};
pub use url::{PostgresUrl, SourceUrl, StoreUrl, Url, WebUrl};
