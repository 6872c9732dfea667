//! What a login request and the application's answer to it say: who tries, and how it
//! ended.

mod members;
mod multipart;
mod outcome;
mod username;

pub use outcome::{Ended, ended};
pub use username::{Unreadable, username};
pub(super) use username::{is_harmless, plain};
