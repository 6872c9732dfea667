//! The five numbers of `CL.THROTTLE`, compared with the formula that redis-cell publishes.

use palisade_core::limit::State;
use palisade_core::time::HOUR;

use super::*;

/// The formula, in nanoseconds: a key has an arrival time, and each call brings its own rate.
#[derive(Default)]
struct Cell {
    tat: Option<i128>,
}

#[derive(Clone, Copy, Debug)]
struct ThrottleArgs {
    max_burst: u32,
    count: u32,
    period: u32,
    quantity: u32,
    takes: bool,
}

const NANOS: i128 = 1_000_000_000;

impl Cell {
    fn ask(&mut self, asked: ThrottleArgs, now_us: u64) -> [i64; 5] {
        let now = i128::from(now_us) * 1_000;
        let emission = i128::from(asked.period) * NANOS / i128::from(asked.count);
        let limit = i128::from(asked.max_burst) + 1;
        let tolerance = emission * limit;
        let increment = emission * i128::from(asked.quantity);
        let tat = self.tat.unwrap_or(now);
        let new_tat = tat.max(now) + increment;
        let early = new_tat - tolerance - now;
        let limited = early > 0;
        let is_taken = asked.takes && !limited;
        if is_taken {
            self.tat = Some(new_tat);
        }
        let ahead = (if is_taken { new_tat } else { tat } - now).max(0);
        let retry = match limited && increment <= tolerance {
            true => ceil(early),
            false => -1,
        };
        let remaining = ((tolerance - ahead).max(0)) / emission;
        [
            i64::from(limited),
            narrow(limit),
            narrow(remaining),
            retry,
            ceil(ahead),
        ]
    }
}

fn narrow(number: i128) -> i64 {
    i64::try_from(number).unwrap()
}

fn ceil(nanos: i128) -> i64 {
    narrow((nanos + NANOS - 1) / NANOS)
}

/// One key as the engine counts it, by the pure functions that every store follows.
#[derive(Default)]
struct Bucket {
    state: State,
}

impl Bucket {
    fn ask(&mut self, asked: ThrottleArgs, now: Micros) -> [i64; 5] {
        let text = [asked.max_burst, asked.count, asked.period, asked.quantity];
        let text = text.map(|number| number.to_string());
        let [burst, count, period, quantity] = text.each_ref().map(String::as_bytes);
        let args = [b"k".as_slice(), burst, count, period, quantity];
        let take = if asked.takes {
            Take::Consume
        } else {
            Take::Peek
        };
        let throttle = Throttle::read("throttle", &args, take).unwrap();
        let Keyed {
            spec, cost, take, ..
        } = throttle.asked();
        let wait = spec.fits(&self.state, now, cost);
        if wait.is_none() && take == Take::Consume {
            spec.take(&mut self.state, now, cost);
        }
        let reading = spec.read(&self.state, now, cost);
        throttle.answer(&KeyedAnswer {
            admitted: wait.is_none(),
            reading: palisade_core::limit::Reading {
                retry_at: wait,
                ..reading
            },
            now,
            mode: Mode::Normal,
        })
    }
}

/// Rates whose interval is a whole number of both nanoseconds and our ticks, so that neither side
/// rounds.
const COUNTS: [u32; 24] = [
    1, 2, 4, 5, 8, 10, 16, 20, 25, 32, 40, 50, 64, 80, 100, 125, 128, 200, 250, 500, 625, 1_000,
    1_250, 2_000,
];

/// A generator with a seed, so that a failure can be reproduced from its number.
struct Rng(u64);

impl Rng {
    const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

fn below(rng: &mut Rng, bound: u32) -> u32 {
    u32::try_from(rng.below(u64::from(bound))).unwrap()
}

fn figures(rng: &mut Rng) -> ThrottleArgs {
    let burst = [3, 20, 1_000][below(rng, 3) as usize];
    let period = [2, 60, 3_600][below(rng, 3) as usize];
    ThrottleArgs {
        max_burst: below(rng, burst),
        count: COUNTS[below(rng, 24) as usize],
        period: 1 + below(rng, period),
        quantity: 1,
        takes: true,
    }
}

/// Returns a pause that is shorter than the interval, about as long, or much longer.
fn pause(rng: &mut Rng, asked: ThrottleArgs) -> u64 {
    let interval = u64::from(asked.period) * 1_000_000 / u64::from(asked.count);
    match below(rng, 8) {
        0 => 0,
        1..=3 => rng.below(interval.max(1)),
        4 | 5 => interval * u64::from(below(rng, 4)),
        6 => rng.below(interval.max(1) * 8),
        _ => rng.below(HOUR),
    }
}

/// Compares both over one key and some calls, during which the rate changes now and then.
fn sequence(seed: u64) {
    let mut rng = Rng::new(seed);
    let (mut cell, mut bucket) = (Cell::default(), Bucket::default());
    let mut now = 1_700_000_000_000_000 + rng.below(1_000_000);
    let mut asked = figures(&mut rng);
    for step in 0..10 {
        if below(&mut rng, 12) == 0 {
            asked = figures(&mut rng);
        }
        let many = 1 + below(&mut rng, 30);
        asked.quantity = [1, 1, 1, 0, 2, many][below(&mut rng, 6) as usize];
        asked.takes = below(&mut rng, 8) != 0;
        let ours = bucket.ask(asked, Micros(now));
        let theirs = cell.ask(asked, now);
        assert_eq!(ours, theirs, "seed {seed}, step {step}: {asked:?}");
        now += pause(&mut rng, asked);
    }
}

#[test]
fn a_hundred_thousand_sequences_get_the_numbers_of_the_formula() {
    for seed in 0..100_000 {
        sequence(seed);
    }
}

/// If a rate cannot be divided evenly, our interval is longer by less than a quarter of a
/// nanosecond: no more is admitted, and nothing is admitted more than a microsecond late.
#[test]
fn a_rate_that_cannot_be_divided_admits_no_more_and_a_microsecond_later() {
    for seed in 0..5_000 {
        let mut rng = Rng::new(seed);
        let mut asked = figures(&mut rng);
        asked.count = 1 + below(&mut rng, 100_000);
        asked.max_burst = below(&mut rng, 50);
        let (mut cell, mut bucket) = (Cell::default(), Bucket::default());
        let mut now = 1_700_000_000_000_000;
        for _ in 0..100 {
            let ours = bucket.ask(asked, Micros(now));
            let theirs = cell.ask(asked, now);
            assert!(ours[0] >= theirs[0], "{seed}: {asked:?}");
            if ours[0] != theirs[0] {
                let next = bucket.ask(asked, Micros(now + 1));
                assert_eq!(next[0], 0, "{seed}: {asked:?}");
                break;
            }
            assert!(
                (ours[2] - theirs[2]).abs() <= 1,
                "{seed}: {ours:?} {theirs:?}"
            );
            now += pause(&mut rng, asked).min(3_600_000_000);
        }
    }
}

#[test]
fn a_key_keeps_what_it_used_when_its_figures_change() {
    let mut bucket = Bucket::default();
    let now = Micros(1_700_000_000_000_000);
    let large = ThrottleArgs {
        max_burst: 9,
        count: 10,
        period: 10,
        quantity: 10,
        takes: true,
    };
    assert_eq!(bucket.ask(large, now), [0, 10, 0, -1, 10]);
    let small = ThrottleArgs {
        max_burst: 1,
        quantity: 0,
        ..large
    };
    assert_eq!(bucket.ask(small, now), [1, 2, 0, 8, 10]);
    let one = ThrottleArgs {
        quantity: 1,
        ..small
    };
    assert_eq!(bucket.ask(one, now), [1, 2, 0, 9, 10]);
}
