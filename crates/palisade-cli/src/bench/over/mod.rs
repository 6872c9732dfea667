//! `palisade bench --over-admission`: counts the requests that any limiter admits too many.
//!
//! Callers ask without a pause, all of them as the same client. Some hang up in the middle of a
//! request, as clients do that crash; whether those were admitted is not known, so they count for
//! nothing.

mod target;
mod windows;

use std::sync::Arc;
use std::time::Duration;

use palisade::SystemClock;
use palisade::core::time::{Clock, Micros};
use palisade_server::failure::Failure;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::Bench;
use super::http::caller_token;
use target::{Caller, Decision, Target};
use windows::{Admission, Verdict, Windows};

/// One of so many requests is cut off.
const CUT_OFF_EVERY: u64 = 16;
/// Longest time after which a request is cut off, in microseconds.
const CUT_OFF_US_MAX: u64 = 2_000;
/// Pause of a caller whose connection failed.
const PAUSE: Duration = Duration::from_millis(10);

/// The limit that is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    pub(super) count: u32,
    pub(super) window_us: u64,
    pub(super) is_fixed: bool,
}

/// Answers that callers got.
#[derive(Default)]
struct Tally {
    admitted: Vec<Admission>,
    refused: u64,
    cut_off: u64,
    errors: u64,
}

/// Outcome of a measurement.
pub(super) struct Report {
    what: String,
    limit: Limit,
    seen: Tally,
    verdict: Verdict,
}

/// Asks the targets for as long as `bench` says.
pub(super) async fn run(bench: &Bench, limit: Limit) -> Result<Report, Failure> {
    let token = caller_token(bench)?;
    let targets = bench.target.iter();
    let targets: Vec<Target> = targets
        .map(|text| Target::new(text, token.as_deref()))
        .collect::<Result<_, _>>()?;
    for target in &targets {
        if target.connect().await.is_none() {
            return Err(Failure::unavailable(
                "cannot connect to the limiter",
                "start it, and pass its address as `--target`",
            ));
        }
    }
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let until = clock.now().plus(bench.seconds * 1_000_000);
    let tasks: Vec<_> = (0..bench.concurrency)
        .zip(targets.iter().cycle())
        .map(|(number, target)| {
            let (target, clock) = (target.clone(), Arc::clone(&clock));
            tokio::spawn(async move { call(&target, &*clock, u64::from(number), until).await })
        })
        .collect();
    let mut seen = Tally::default();
    for task in tasks {
        let own = task.await.unwrap_or_default();
        seen.admitted.extend(own.admitted);
        seen.refused += own.refused;
        seen.cut_off += own.cut_off;
        seen.errors += own.errors;
    }
    let windows = match limit.is_fixed {
        true => Windows::Fixed(limit.window_us),
        false => Windows::Sliding(limit.window_us),
    };
    let count = usize::try_from(limit.count).unwrap_or(usize::MAX);
    Ok(Report {
        what: bench.target.join(", "),
        limit,
        verdict: windows.judge(&seen.admitted, count),
        seen,
    })
}

/// One caller, which asks until it is time.
async fn call(target: &Target, clock: &dyn Clock, number: u64, until: Micros) -> Tally {
    let (mut seen, mut turn) = (Tally::default(), number);
    while clock.now() < until {
        let Some(mut caller) = target.connect().await else {
            seen.errors += 1;
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        while clock.now() < until {
            turn = turn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if !ask(&mut caller, clock, turn >> 33, &mut seen).await {
                break;
            }
        }
    }
    seen
}

/// Asks once; false if the connection has ended.
async fn ask(caller: &mut Caller<'_>, clock: &dyn Clock, chance: u64, seen: &mut Tally) -> bool {
    let from = clock.now();
    if chance.is_multiple_of(CUT_OFF_EVERY) {
        let patience = Duration::from_micros(chance / CUT_OFF_EVERY % CUT_OFF_US_MAX);
        let _ = timeout(patience, caller.ask()).await;
        seen.cut_off += 1;
        return false;
    }
    match caller.ask().await {
        Some(Decision::Admitted) => seen.admitted.push(Admission {
            from,
            to: clock.now(),
        }),
        Some(Decision::Refused) => seen.refused += 1,
        None => {
            seen.errors += 1;
            return false;
        }
    }
    true
}

impl Report {
    /// Whether the limit was reached and none was admitted beyond it.
    pub(super) const fn is_sound(&self) -> bool {
        self.verdict.over == 0 && self.seen.errors == 0 && self.seen.refused > 0
    }

    pub(super) fn as_json(&self) -> Value {
        json!({"what": self.what, "limit": self.limit.count, "window_us": self.limit.window_us,
            "admitted": self.seen.admitted.len(), "refused": self.seen.refused,
            "cut_off": self.seen.cut_off, "errors": self.seen.errors,
            "most_in_a_window": self.verdict.most, "over_admitted": self.verdict.over})
    }

    pub(super) fn as_text(&self) -> String {
        let note = match self.seen.refused {
            0 => " (the limit was never reached: nothing is known)",
            _ => "",
        };
        format!(
            "{}\nadmitted        {}\nrefused         {}\ncut off         {}\nerrors          {}\n\
             fullest window  {} of {}\nover-admitted   {}{note}\n",
            self.what,
            self.seen.admitted.len(),
            self.seen.refused,
            self.seen.cut_off,
            self.seen.errors,
            self.verdict.most,
            self.limit.count,
            self.verdict.over,
        )
    }
}
