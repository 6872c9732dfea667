//! The service that `palisade serve` starts, as a library: the configuration, the sockets and
//! workers, and the surfaces that answer on them. The program and its other commands are
//! `palisade-cli`.

pub mod config;
pub mod connect;
pub mod failure;
pub mod load;
mod outbound;
pub mod output;
mod providers;
pub mod serve;
pub mod store;
mod surfaces;
mod webhook;
