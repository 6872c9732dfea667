//! Commands that ask the admin API of a running server.

mod allowlist;
mod blocks;
mod client;
mod explain;
mod quota;
mod reset;
mod status;

pub(super) use allowlist::Allowlist;
pub(super) use blocks::Blocks;
pub(super) use client::Server;
pub(super) use explain::Explain;
pub(super) use quota::{QuotaGet, QuotaList, QuotaReset, QuotaTier};
pub(super) use reset::Reset;
pub(super) use status::Status;
