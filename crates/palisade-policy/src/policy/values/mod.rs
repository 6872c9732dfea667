//! Types that only policies have.

mod names;
mod rate;
mod url;

pub use names::{AgentFragment, OneOrMany};
pub(crate) use rate::MaybeZero;
pub use rate::Rate;
pub use url::{SourceUrl, Url, WebUrl};
