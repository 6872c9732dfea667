//! What the service answers on: one folder for each surface, and what they share.

pub(crate) mod admin;
pub(crate) mod decide;
mod enforcer;
mod exchange;
mod forward_auth;
pub(crate) mod proxy;

pub(crate) use enforcer::Enforcer;
pub(crate) use exchange::CallerToken;
