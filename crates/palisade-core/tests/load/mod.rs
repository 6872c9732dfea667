//! A queueing model of an overloaded server, and the limiters in front of it.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "shared by the simulation and the example that draws it; its numbers are small"
)]

pub mod limiters;
pub mod server;

use limiters::{Fixed, Gradient2, Limiter, Ours};
use server::{Phase, Run, phase, run};

/// Least and most requests in progress.
pub const BOUNDS: (u32, u32) = (8, 400);

/// A calm minute, a surge of three times what the server can do, and calm again.
pub const SURGE: [Phase; 3] = [phase(60, 400.0), phase(60, 2_400.0), phase(30, 400.0)];

/// The server needs four times as long for half a minute, at a load that it can do otherwise.
pub const SLOW: [Phase; 3] = [
    phase(60, 600.0),
    Phase {
        seconds: 30,
        rate: 600.0,
        slowness: 4.0,
    },
    phase(60, 600.0),
];

/// Twice the server's capacity for half an hour.
pub const LONG: [Phase; 3] = [phase(60, 400.0), phase(1_800, 1_600.0), phase(30, 400.0)];

/// The limiters by name.
pub fn limiters() -> [(&'static str, Box<dyn Limiter>); 4] {
    let (min, max) = BOUNDS;
    [
        ("fixed, 32", Box::new(Fixed::new(32))),
        ("fixed, 400", Box::new(Fixed::new(max))),
        ("gradient2", Box::new(Gradient2::new(min, max))),
        ("Palisade", Box::new(Ours::new(min, max))),
    ]
}

pub fn ours(phases: &[Phase], seed: u64) -> Run {
    run(&mut Ours::new(BOUNDS.0, BOUNDS.1), phases, seed)
}
