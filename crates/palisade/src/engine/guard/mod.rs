//! Guard commands over the store: load the records, apply the rules, commit by
//! compare-and-swap. Read [`command`] first.

mod api;
mod areas;
mod command;
mod commit;
mod countries;
mod login;
mod records;
mod send;
mod sessions;
mod turns;

pub use command::GuardNotes;
pub(super) use command::RETRIES_MAX;

/// State of the guard in this process.
#[derive(Default)]
pub(super) struct Guard {
    turns: turns::Turns,
    areas: areas::Areas,
    countries: countries::Countries,
    ranges: send::Ranges,
}
