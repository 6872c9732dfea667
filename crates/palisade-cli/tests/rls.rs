//! The rate-limit service, asked by somebody else's gRPC client, on the embedded store and
//! on a real Redis. Tests are named after the rules of `spec/rls.md`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

#[path = "common/certificates.rs"]
mod certificates;
mod common;
#[path = "../../palisade-store/tests/common/redis_server.rs"]
mod redis_server;

#[path = "rls/bounds.rs"]
mod bounds;
#[path = "rls/connections.rs"]
mod connections;
#[path = "rls/explained.rs"]
mod explained;
#[path = "rls/matching.rs"]
mod matching;
#[path = "rls/page.rs"]
mod page;
#[path = "rls/refunds.rs"]
mod refunds;
#[path = "rls/rules.rs"]
mod rules;
#[path = "rls/service.rs"]
mod service;
#[path = "rls/serving.rs"]
mod serving;
#[path = "rls/socket_file.rs"]
mod socket_file;
#[path = "rls/sparing.rs"]
mod sparing;
