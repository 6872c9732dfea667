//! The user name in a login request, and the outcome in the application's answer to it.

mod cookies;
mod graphql;
mod members;
mod multipart;
mod outcome;
mod proof;
mod username;

pub use cookies::drop_other_names;
pub use outcome::{AttemptOutcome, AttemptRequest, ended};
pub(crate) use username::counted;
pub use username::{Unreadable, is_in_query, username};
pub(super) use username::{is_harmless, plain};
