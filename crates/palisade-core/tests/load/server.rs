//! A server with a number of workers and one queue, under a load that changes in steps, on a
//! virtual clock.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use palisade_core::time::{Micros, SECOND};

use super::limiters::Limiter;

/// Workers of the server: it works on so many requests at once.
pub const WORKERS: usize = 16;
/// Mean service time: 800 requests a second are all that the server can do.
pub const SERVICE_US: f64 = 20_000.0;
/// Time for which a client waits for its answer.
pub const PATIENCE_US: u64 = 10 * SECOND;

/// A time with a constant load.
#[derive(Clone, Copy)]
pub struct Phase {
    pub seconds: u64,
    /// Requests per second.
    pub rate: f64,
    /// Factor of the service time.
    pub slowness: f64,
}

pub const fn phase(seconds: u64, rate: f64) -> Phase {
    Phase {
        seconds,
        rate,
        slowness: 1.0,
    }
}

/// A tenth of a second of a run.
#[derive(Clone, Copy, Default)]
pub struct Tick {
    pub at: f64,
    pub limit: f64,
    pub arrived: u32,
    pub shed: u32,
    pub answered: u32,
    /// Sum of the latencies of what was answered, in microseconds.
    pub latency_sum: u64,
}

pub struct Run {
    pub ticks: Vec<Tick>,
    /// Instant of the answer and latency of every answered request.
    pub latencies: Vec<(u64, u64)>,
    pub shed: Vec<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrival,
    /// The end of a request that arrived then.
    End(u64),
}

struct Draws(u64);

impl Draws {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn exponential(&mut self, mean: f64) -> u64 {
        (-mean * (1.0 - self.uniform()).ln()).max(1.0) as u64
    }
}

/// Runs the load through `limiter`. The times between arrivals and the service times are
/// exponential.
pub fn run(limiter: &mut dyn Limiter, phases: &[Phase], seed: u64) -> Run {
    let mut draws = Draws(seed);
    let end: u64 = phases.iter().map(|phase| phase.seconds * SECOND).sum();
    let mut events = BinaryHeap::from([Reverse((1, Event::Arrival))]);
    let mut queue = VecDeque::new();
    let mut busy = 0;
    let mut run = Run {
        ticks: vec![Tick::default(); (end / 100_000) as usize],
        latencies: Vec::new(),
        shed: Vec::new(),
    };
    while let Some(Reverse((now, event))) = events.pop() {
        if now >= end {
            break;
        }
        let phase = phase_at(phases, now);
        let tick = &mut run.ticks[(now / 100_000) as usize];
        match event {
            Event::Arrival => {
                let next = now + draws.exponential(1e6 / phase.rate);
                events.push(Reverse((next, Event::Arrival)));
                tick.arrived += 1;
                match limiter.admit(Micros(now)) {
                    true => queue.push_back(now),
                    false => {
                        tick.shed += 1;
                        run.shed.push(now);
                    }
                }
            }
            Event::End(arrived) => {
                busy -= 1;
                let latency = now - arrived;
                limiter.release(Micros(arrived), Micros(now), latency < PATIENCE_US);
                if latency < PATIENCE_US {
                    tick.answered += 1;
                    tick.latency_sum += latency;
                    run.latencies.push((now, latency));
                }
            }
        }
        while busy < WORKERS
            && let Some(arrived) = queue.pop_front()
        {
            busy += 1;
            let service = draws.exponential(SERVICE_US * phase.slowness);
            events.push(Reverse((now + service, Event::End(arrived))));
        }
        tick.at = now as f64 / 1e6;
        tick.limit = limiter.limit();
    }
    run
}

fn phase_at(phases: &[Phase], now: u64) -> Phase {
    let mut end = 0;
    let found = phases.iter().find(|phase| {
        end += phase.seconds * SECOND;
        now < end
    });
    *found.expect("within the run")
}

impl Run {
    /// Latency below which a share of the answers between two seconds lies, in milliseconds.
    pub fn quantile(&self, from: u64, to: u64, share: f64) -> f64 {
        let within = |(at, _): &&(u64, u64)| (from * SECOND..to * SECOND).contains(at);
        let mut latencies: Vec<u64> = self.latencies.iter().filter(within).map(|l| l.1).collect();
        latencies.sort_unstable();
        let last = latencies.len().saturating_sub(1);
        let index = (last as f64 * share) as usize;
        latencies.get(index).map_or(f64::NAN, |us| *us as f64 / 1e3)
    }

    fn ticks_of(&self, from: u64, to: u64) -> &[Tick] {
        &self.ticks[(from * 10) as usize..(to * 10) as usize]
    }

    /// Answers per second.
    pub fn answered(&self, from: u64, to: u64) -> f64 {
        let sum: u32 = self.ticks_of(from, to).iter().map(|t| t.answered).sum();
        f64::from(sum) / (to - from) as f64
    }

    /// Share of the arrivals that was shed.
    pub fn shed_share(&self, from: u64, to: u64) -> f64 {
        let ticks = self.ticks_of(from, to);
        let shed: u32 = ticks.iter().map(|t| t.shed).sum();
        let arrived: u32 = ticks.iter().map(|t| t.arrived).sum();
        f64::from(shed) / f64::from(arrived.max(1))
    }

    /// Largest distance of the limit from its mean, as a share of the mean.
    pub fn swing(&self, from: u64, to: u64) -> f64 {
        let limits = self.ticks_of(from, to).iter().map(|t| t.limit);
        let mean = limits.clone().sum::<f64>() / ((to - from) * 10) as f64;
        limits
            .map(|limit| (limit - mean).abs() / mean)
            .fold(0.0, f64::max)
    }

    pub fn mean_limit(&self, from: u64, to: u64) -> f64 {
        let limits = self.ticks_of(from, to).iter().map(|t| t.limit);
        limits.sum::<f64>() / ((to - from) * 10) as f64
    }
}
