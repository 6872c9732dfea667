//! Types that only policies have.

mod money;
mod names;
mod percent;
mod rate;
mod secret;
mod shares;
mod url;

pub(crate) use money::{Money, MoneyRate};
pub use names::{AgentFragment, OneOrMany};
pub(crate) use percent::Percent;
pub use rate::Rate;
pub(crate) use rate::{Figure, MaybeZero};
pub use secret::SecretSource;
pub(crate) use shares::{Share, Shares};
pub use url::{SourceUrl, Url, WebUrl};
