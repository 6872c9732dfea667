//! What a login request and the application's answer to it say: who tries, and how it
//! ended.

mod graphql;
mod members;
mod multipart;
mod outcome;
mod proof;
mod username;

pub use outcome::{Asked, Ended, ended};
pub(crate) use username::counted;
pub use username::{Unreadable, is_in_query, username};
pub(super) use username::{is_harmless, plain};
