//! Types that only policies have.

mod names;
mod rate;
mod secret;
mod shares;
mod url;

pub use names::{AgentFragment, OneOrMany};
pub(crate) use rate::MaybeZero;
pub use rate::Rate;
pub use secret::SecretSource;
pub(crate) use shares::Shares;
pub use url::{SourceUrl, Url, WebUrl};
