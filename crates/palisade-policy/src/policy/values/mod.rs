//! Types that only policies have.

mod names;
mod rate;
mod shares;
mod url;

pub use names::{AgentFragment, OneOrMany};
pub use rate::Rate;
pub(crate) use rate::{Figure, MaybeZero};
pub(crate) use shares::Shares;
pub use url::{SourceUrl, Url, WebUrl};
