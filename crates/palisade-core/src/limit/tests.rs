//! The bound of each algorithm for any sequence, and the exactness of `retry_at`.

use std::num::NonZeroU64;

use proptest::prelude::*;

use super::*;
use crate::time::{DAY, HOUR, MINUTE, SECOND};

fn spec(algorithm: Algorithm, limit: u64, window: Window) -> BucketSpec {
    BucketSpec::new(algorithm, NonZeroU64::new(limit).unwrap(), window, None).unwrap()
}

fn hit(spec: &BucketSpec, state: &mut State, now: Micros, cost: u64) -> Result<(), Micros> {
    match spec.fits(state, now, cost) {
        None => {
            spec.take(state, now, cost);
            Ok(())
        }
        Some(at) => Err(at),
    }
}

/// `"0s A; 59s D1s"`: at 0 s admitted; at 59 s denied with one second to wait.
fn script(spec: &BucketSpec, text: &str) {
    let mut state = State::Empty;
    for step in text.split(';').map(str::trim) {
        let (at, expected) = step.split_once(' ').unwrap();
        let now = Micros(at.strip_suffix("ms").unwrap().parse::<u64>().unwrap() * 1000);
        let got = match hit(spec, &mut state, now, 1) {
            Ok(()) => "A".to_owned(),
            Err(at) => format!("D{}", at.since(now) / 1000),
        };
        assert_eq!(got, expected, "at {at} of {text}");
    }
}

#[test]
fn sliding_log_admits_again_exactly_a_window_after_the_oldest_hit() {
    let two = spec(Algorithm::SlidingLog, 2, Window::Span(MINUTE));
    script(
        &two,
        "0ms A; 1000ms A; 1000ms D59000; 59999ms D1; 60000ms A; 60000ms D1000; 61000ms A",
    );
}

#[test]
fn token_bucket_refills_one_by_one() {
    let bucket = BucketSpec::new(
        Algorithm::TokenBucket,
        NonZeroU64::new(10).unwrap(),
        Window::Span(SECOND),
        NonZeroU64::new(2),
    )
    .unwrap();
    script(
        &bucket,
        "0ms A; 0ms A; 0ms D100; 99ms D1; 100ms A; 100ms D100; 300ms A; 300ms A",
    );
}

#[test]
fn fixed_window_frees_at_its_aligned_end() {
    let two = spec(Algorithm::FixedWindow, 2, Window::Span(MINUTE));
    script(
        &two,
        "59000ms A; 59000ms A; 59000ms D1000; 60000ms A; 61000ms A; 61000ms D59000",
    );
}

#[test]
fn fixed_window_of_a_month_follows_the_calendar() {
    let month = spec(Algorithm::FixedWindow, 1, Window::Month);
    let mut state = State::Empty;
    let at = |text| Micros::parse_rfc3339(text).unwrap();
    assert!(hit(&month, &mut state, at("2028-02-01T00:00:00Z"), 1).is_ok());
    assert_eq!(
        hit(&month, &mut state, at("2028-02-29T23:59:59.999Z"), 1),
        Err(at("2028-03-01T00:00:00Z"))
    );
    assert!(hit(&month, &mut state, at("2028-03-01T00:00:00Z"), 1).is_ok());
}

#[test]
fn fixed_window_of_a_year_follows_the_calendar() {
    let year = spec(Algorithm::FixedWindow, 1, Window::Year);
    let mut state = State::Empty;
    let at = |text| Micros::parse_rfc3339(text).unwrap();
    assert!(hit(&year, &mut state, at("2028-01-01T00:00:00Z"), 1).is_ok());
    assert_eq!(
        hit(&year, &mut state, at("2028-12-31T23:59:59Z"), 1),
        Err(at("2029-01-01T00:00:00Z"))
    );
    assert!(hit(&year, &mut state, at("2029-01-01T00:00:00Z"), 1).is_ok());
}

#[test]
fn two_hits_of_one_instant_are_two_hits() {
    let two = spec(Algorithm::SlidingLog, 2, Window::Span(MINUTE));
    script(&two, "5ms A; 5ms A; 5ms D60000");
}

#[test]
fn a_wheel_holds_a_hit_at_most_one_slot_longer() {
    let wheel = spec(Algorithm::SlidingWheel, 1, Window::Span(64 * SECOND));
    let mut state = State::Empty;
    assert!(hit(&wheel, &mut state, Micros(0), 1).is_ok());
    let free_at = hit(&wheel, &mut state, Micros(64 * SECOND), 1).unwrap_err();
    assert_eq!(free_at, Micros(65 * SECOND - 1));
    assert!(hit(&wheel, &mut state, Micros(free_at.0 - 1), 1).is_err());
    assert!(hit(&wheel, &mut state, free_at, 1).is_ok());
}

#[test]
fn l_cost_above_the_capacity_never_fits() {
    for algorithm in [
        Algorithm::SlidingLog,
        Algorithm::TokenBucket,
        Algorithm::FixedWindow,
    ] {
        let small = spec(algorithm, 3, Window::Span(SECOND));
        assert_eq!(small.fits(&State::Empty, Micros(0), 3), None);
        assert_eq!(
            small.fits(&State::Empty, Micros(0), 4),
            Some(Micros(u64::MAX))
        );
    }
}

#[test]
fn extremes_are_total() {
    let year = Window::Span(365 * DAY);
    for algorithm in [
        Algorithm::SlidingLog,
        Algorithm::SlidingWheel,
        Algorithm::TokenBucket,
        Algorithm::FixedWindow,
    ] {
        for limit in [1, FIGURE_MAX] {
            for window in [Window::Span(1), Window::Span(1000), year] {
                let made =
                    BucketSpec::new(algorithm, NonZeroU64::new(limit).unwrap(), window, None);
                let Ok(spec) = made else { continue };
                for now in [0, 1, 1_900_000_000 * SECOND, u64::MAX / 2, u64::MAX] {
                    let mut state = State::Empty;
                    let _ = hit(&spec, &mut state, Micros(now), 1);
                    let _ = hit(&spec, &mut state, Micros(now), limit);
                    let _ = hit(&spec, &mut state, Micros(0), 1);
                    spec.give_back(&mut state, Micros(now), limit);
                    let _ = spec.read(&state, Micros(now), 1);
                    let _ = spec.expires_at(&state);
                }
            }
        }
    }
}

#[test]
fn a_zero_or_endless_window_cannot_be_built() {
    let one = NonZeroU64::MIN;
    let make = |algorithm, window| BucketSpec::new(algorithm, one, window, None).unwrap_err();
    assert_eq!(
        make(Algorithm::SlidingLog, Window::Span(0)),
        SpecError::ZeroWindow
    );
    assert_eq!(
        make(Algorithm::SlidingLog, Window::Span(u64::MAX)),
        SpecError::WindowTooLong
    );
    assert_eq!(
        make(Algorithm::SlidingLog, Window::Month),
        SpecError::CalendarNeedsFixedWindow
    );
}

#[test]
fn b_unit_a_figure_is_at_most_two_to_the_47() {
    let made = |algorithm, limit: u64, burst: Option<u64>, window| {
        let burst = burst.and_then(NonZeroU64::new);
        BucketSpec::new(algorithm, NonZeroU64::new(limit).unwrap(), window, burst)
    };
    for algorithm in [
        Algorithm::SlidingLog,
        Algorithm::SlidingWheel,
        Algorithm::FixedWindow,
    ] {
        for window in [
            Window::Span(1),
            Window::Span(SECOND),
            Window::Span(3_660 * DAY),
        ] {
            let spec = made(algorithm, FIGURE_MAX, None, window).unwrap();
            assert_eq!((spec.limit(), spec.capacity()), (FIGURE_MAX, FIGURE_MAX));
            let above = made(algorithm, FIGURE_MAX + 1, None, window);
            assert_eq!(above, Err(SpecError::FigureTooLarge));
        }
    }
    let month = Window::Span(31 * DAY);
    let bucket = |limit, burst, window| made(Algorithm::TokenBucket, limit, burst, window);
    assert!(bucket(FIGURE_MAX, Some(FIGURE_MAX), month).is_ok());
    assert_eq!(
        bucket(1, Some(FIGURE_MAX + 1), month),
        Err(SpecError::FigureTooLarge)
    );
    assert_eq!(
        bucket(1, Some(FIGURE_MAX), month),
        Err(SpecError::BurstTooLong)
    );
    // A tick is a 4,096th of a microsecond: faster tokens cannot be told apart.
    let second = Window::Span(SECOND);
    assert_eq!(
        bucket(FIGURE_MAX, None, second),
        Err(SpecError::RateTooHigh)
    );
    assert!(
        bucket(u64::from(u32::MAX), None, second).is_ok(),
        "as it always was"
    );
}

#[test]
fn b_unit_a_bucket_counts_no_more_than_its_largest_debt() {
    for algorithm in [
        Algorithm::SlidingLog,
        Algorithm::SlidingWheel,
        Algorithm::FixedWindow,
    ] {
        let largest = spec(algorithm, FIGURE_MAX, Window::Span(MINUTE));
        let mut state = State::Empty;
        for cost in [FIGURE_MAX, FIGURE_MAX, COUNT_MAX, u64::MAX] {
            largest.take(&mut state, Micros(HOUR), cost);
            largest.take(&mut state, Micros(HOUR + 1), cost);
        }
        assert_eq!(largest.read(&state, Micros(HOUR + 1), 1).used, COUNT_MAX);
        let later = Micros(HOUR + 2 * MINUTE);
        assert_eq!(largest.read(&state, later, FIGURE_MAX).retry_at, None);
    }
}

#[test]
fn a_clock_that_goes_back_frees_nothing() {
    for algorithm in [
        Algorithm::SlidingLog,
        Algorithm::SlidingWheel,
        Algorithm::FixedWindow,
    ] {
        let two = spec(algorithm, 2, Window::Span(MINUTE));
        let mut state = State::Empty;
        assert!(hit(&two, &mut state, Micros(10 * MINUTE), 1).is_ok());
        assert!(hit(&two, &mut state, Micros(5 * MINUTE), 1).is_ok());
        assert!(hit(&two, &mut state, Micros(5 * MINUTE), 1).is_err());
        assert!(
            hit(&two, &mut state, Micros(10 * MINUTE + SECOND), 1).is_err(),
            "{algorithm:?}"
        );
    }
}

#[test]
fn a_changed_limit_keeps_what_was_used() {
    let now = Micros(HOUR);
    let all = [
        Algorithm::SlidingLog,
        Algorithm::SlidingWheel,
        Algorithm::TokenBucket,
        Algorithm::FixedWindow,
    ];
    for from in all {
        for to in all {
            let old = spec(from, 10, Window::Span(MINUTE));
            let new = spec(to, 20, Window::Span(MINUTE));
            let mut state = State::Empty;
            for _ in 0..10 {
                old.take(&mut state, now, 1);
            }
            let mut admitted = 0;
            while hit(&new, &mut state, now, 1).is_ok() {
                admitted += 1;
            }
            if from == Algorithm::TokenBucket {
                assert!(admitted <= 10, "{from:?} to {to:?}: {admitted}");
            } else {
                assert_eq!(admitted, 10, "{from:?} to {to:?}");
            }
        }
    }
}

/// Amount in the window by the naive model, which keeps every admitted hit with its instant.
fn in_window(admitted: &[(u64, u64)], now: u64, window: u64) -> u64 {
    admitted
        .iter()
        .filter(|(at, _)| *at <= now && *at + window > now)
        .map(|(_, cost)| *cost)
        .sum()
}

prop_compose! {
    fn steps()(steps in proptest::collection::vec((0_u64..40, 1_u64..4, any::<bool>()), 1..120))
        -> Vec<(u64, u64, bool)> { steps }
}

/// Steps that cost anything up to `limit`, now and then all of it.
fn steps_up_to(limit: u64) -> impl Strategy<Value = Vec<(u64, u64, bool)>> {
    let cost = prop_oneof![1..=limit, Just(limit), Just(limit.div_ceil(3)), Just(1)];
    proptest::collection::vec((0_u64..40, cost, any::<bool>()), 1..120)
}

/// A limit, small, large or the largest, with steps that suit it (B-UNIT).
fn figures() -> impl Strategy<Value = (u64, Vec<(u64, u64, bool)>)> {
    let limit = prop_oneof![
        1_u64..20,
        u64::from(u32::MAX)..=FIGURE_MAX,
        Just(FIGURE_MAX)
    ];
    limit.prop_flat_map(|limit| (Just(limit), steps_up_to(limit)))
}

#[test]
fn b_overdraft_charges_that_no_limit_bounds_keep_few_hits() {
    let log = spec(Algorithm::SlidingLog, 5, Window::Span(MINUTE));
    let wheel = log.for_unbounded_charges();
    assert!(wheel.can_stand_in_for(&log));
    let mut state = State::Empty;
    for ms in 0..200_000_u64 {
        let now = Micros(MINUTE + ms * 1_000);
        // Requests in between take what the limit allows.
        if ms % 2 == 0 {
            wheel.take(&mut state, now, 3);
        } else if log.fits(&state, now, 3).is_none() {
            log.take(&mut state, now, 3);
        }
        let State::Hits(hits) = &state else {
            unreachable!("a sliding counter")
        };
        assert!(hits.len() <= 66, "{} at {ms} ms", hits.len());
    }
}

proptest! {
    #[test]
    fn b_bound_a_token_bucket_owes_a_window_at_most(
        limit in 1_u64..1_000,
        burst in 1_u64..1_000,
        costs in proptest::collection::vec((0_u64..MINUTE / 4, 0..=COUNT_MAX), 1..20),
    ) {
        let [rate, burst] = [limit, burst].map(|n| NonZeroU64::new(n).unwrap());
        let window = Window::Span(MINUTE);
        let spec = BucketSpec::new(Algorithm::TokenBucket, rate, window, Some(burst)).unwrap();
        let (mut state, mut now) = (State::Empty, Micros(MINUTE));
        for (gap, cost) in costs {
            now = now.plus(gap);
            let found = state.clone();
            let taken = spec.taken_of(&state, now, cost);
            spec.take(&mut state, now, cost);
            let [before, after] = [&found, &state].map(|state| spec.read(state, now, 1));
            prop_assert!(after.used <= burst.get() + limit);
            prop_assert!(after.used - before.used <= taken + 1);
            let wait = after.retry_at.map_or(0, |at| at.since(now));
            prop_assert!(wait <= spec.longest_wait_us(), "waits {wait}");
            // L-GIVE-BACK: what others had taken stays.
            let mut back = state.clone();
            spec.give_back_taken(&mut back, now, now, taken);
            prop_assert!(spec.read(&back, now, 1).used >= before.used);
        }
    }
}

proptest! {
    #[test]
    fn sliding_log_equals_the_naive_model((limit, steps) in figures(), window in 1_u64..200) {
        let log = spec(Algorithm::SlidingLog, limit, Window::Span(window));
        let (mut state, mut admitted, mut now) = (State::Empty, Vec::new(), 1_000);
        for (gap, cost, jump) in steps {
            now += if jump { gap } else { 0 };
            let cost = cost.min(limit);
            let expected = in_window(&admitted, now, window) + cost <= limit;
            let got = hit(&log, &mut state, Micros(now), cost);
            prop_assert_eq!(got.is_ok(), expected);
            if let Err(at) = got {
                prop_assert!(log.fits(&state, Micros(at.0 - 1), cost).is_some(), "one earlier: denied");
                prop_assert!(log.fits(&state, at, cost).is_none(), "at it: admitted");
            } else {
                admitted.push((now, cost));
            }
        }
    }

    #[test]
    fn wheel_never_exceeds_the_limit_and_is_within_one_slot_of_the_log(
        (limit, steps) in figures(), window in 1_u64..2_000,
    ) {
        let wheel = spec(Algorithm::SlidingWheel, limit, Window::Span(window));
        let (mut state, mut admitted, mut now) = (State::Empty, Vec::<(u64, u64)>::new(), 10_000);
        for (gap, cost, jump) in steps {
            now += if jump { gap * 10 } else { 0 };
            let cost = cost.min(limit);
            let fits = |window| in_window(&admitted, now, window) + cost <= limit;
            let got = hit(&wheel, &mut state, Micros(now), cost);
            prop_assert!(got.is_err() || fits(window), "over-admitted");
            prop_assert!(got.is_ok() || !fits(window + wheel.slot_us()), "held longer than a slot");
            if let Err(at) = got {
                prop_assert!(wheel.fits(&state, Micros(at.0 - 1), cost).is_some());
                prop_assert!(wheel.fits(&state, at, cost).is_none());
            } else {
                admitted.push((now, cost));
            }
            if let State::Hits(hits) = &state {
                prop_assert!(hits.len() <= 66, "{} entries", hits.len());
            }
        }
    }

    #[test]
    fn what_the_wheel_admits_the_log_admits_and_at_most_a_slot_earlier(
        (limit, steps) in figures(), window in 1_u64..2_000,
    ) {
        // The longer log holds what the wheel admitted in two windows.
        let limit = limit.min(FIGURE_MAX / 2);
        let wheel = spec(Algorithm::SlidingWheel, limit, Window::Span(window));
        let log = spec(Algorithm::SlidingLog, limit, Window::Span(window));
        let longer = spec(Algorithm::SlidingLog, limit, Window::Span(window + wheel.slot_us()));
        let [mut turning, mut exact, mut held] = [(); 3].map(|()| State::Empty);
        let mut now = 10_000;
        for (gap, cost, jump) in steps {
            now += if jump { gap * 10 } else { 0 };
            let (at, cost) = (Micros(now), cost.min(limit));
            let by_log = log.fits(&exact, at, cost).is_none();
            let by_longer = longer.fits(&held, at, cost).is_none();
            let by_wheel = hit(&wheel, &mut turning, at, cost).is_ok();
            prop_assert!(by_log || !by_wheel, "the wheel admits what the log does not");
            prop_assert!(by_wheel || !by_longer, "the wheel holds longer than a slot");
            if by_wheel {
                log.take(&mut exact, at, cost);
                longer.take(&mut held, at, cost);
            }
        }
    }

    #[test]
    fn token_bucket_admits_at_most_burst_plus_rate_times_time(
        steps in steps(), limit in 1_u64..50, window in 1_u64..500, burst in 1_u64..30,
    ) {
        let bucket = BucketSpec::new(
            Algorithm::TokenBucket, NonZeroU64::new(limit).unwrap(), Window::Span(window), NonZeroU64::new(burst),
        ).unwrap();
        let (mut state, mut admitted, mut now) = (State::Empty, Vec::<(u64, u64)>::new(), 1_000);
        for (gap, cost, jump) in steps {
            now += if jump { gap } else { 0 };
            let cost = cost.min(burst);
            match hit(&bucket, &mut state, Micros(now), cost) {
                Ok(()) => admitted.push((now, cost)),
                Err(at) => {
                    prop_assert!(bucket.fits(&state, Micros(at.0 - 1), cost).is_some());
                    prop_assert!(bucket.fits(&state, at, cost).is_none());
                }
            }
        }
        for (index, (from, _)) in admitted.iter().enumerate() {
            let mut sum = 0_u128;
            for (at, cost) in &admitted[index..] {
                sum += u128::from(*cost);
                let allowed = u128::from(burst) * u128::from(window) + u128::from(limit) * u128::from(at - from);
                prop_assert!(sum * u128::from(window) <= allowed);
            }
        }
    }

    #[test]
    fn b_unit_a_fixed_window_equals_the_naive_model((limit, steps) in figures(), window in 1_u64..200) {
        let fixed = spec(Algorithm::FixedWindow, limit, Window::Span(window));
        let (mut state, mut admitted, mut now) = (State::Empty, Vec::<(u64, u64)>::new(), 1_000);
        for (gap, cost, jump) in steps {
            now += if jump { gap } else { 0 };
            let current = admitted.iter().filter(|(at, _)| at / window == now / window);
            let used: u64 = current.map(|(_, cost)| cost).sum();
            let got = hit(&fixed, &mut state, Micros(now), cost);
            prop_assert_eq!(got.is_ok(), used + cost <= limit);
            match got {
                Ok(()) => admitted.push((now, cost)),
                Err(at) => prop_assert_eq!(at, Micros((now / window + 1) * window)),
            }
        }
    }

    /// The bound of the token bucket at the largest figures, counted in parts of a window.
    #[test]
    fn b_unit_a_token_bucket_of_large_figures_keeps_its_bound(
        limit in prop_oneof![u64::from(u32::MAX)..=FIGURE_MAX, Just(FIGURE_MAX)],
        burst in prop_oneof![1..=FIGURE_MAX, Just(FIGURE_MAX)],
        window in prop_oneof![Just(HOUR), Just(DAY), Just(31 * DAY), Just(3_650 * DAY)],
        steps in proptest::collection::vec((0_u64..=1_000, 1_u64..=1_000), 1..60),
    ) {
        let [rate, most] = [limit, burst].map(|n| NonZeroU64::new(n).unwrap());
        let made = BucketSpec::new(Algorithm::TokenBucket, rate, Window::Span(window), Some(most));
        let Ok(bucket) = made else { return Ok(()) };
        let (mut state, mut admitted, mut now) = (State::Empty, Vec::<(u64, u64)>::new(), DAY);
        for (gap, part) in steps {
            now += window / 4_000 * gap;
            let cost = (burst / 1_000 * part).max(1);
            match hit(&bucket, &mut state, Micros(now), cost) {
                Ok(()) => admitted.push((now, cost)),
                Err(at) => {
                    prop_assert!(bucket.fits(&state, Micros(at.0 - 1), cost).is_some());
                    prop_assert!(bucket.fits(&state, at, cost).is_none());
                }
            }
        }
        for (index, (from, _)) in admitted.iter().enumerate() {
            let mut sum = 0_u128;
            for (at, cost) in &admitted[index..] {
                sum += u128::from(*cost);
                let allowed = u128::from(burst) * u128::from(window) + u128::from(limit) * u128::from(at - from);
                prop_assert!(sum * u128::from(window) <= allowed);
            }
        }
    }

    #[test]
    fn a_refund_never_lets_more_through_than_the_true_remainder(
        steps in proptest::collection::vec((0_u64..40, 0_usize..4), 1..120), limit in 1_u64..10, window in 1_u64..200,
    ) {
        let log = spec(Algorithm::SlidingLog, limit, Window::Span(window));
        let (mut state, mut admitted, mut now) = (State::Empty, Vec::<(u64, u64)>::new(), 1_000);
        for (gap, action) in steps {
            now += gap;
            if action == 3 && !admitted.is_empty() {
                // Give back a hit that is still in the window: any of them may be the caller's.
                if let Some(index) = admitted.iter().rposition(|(at, _)| *at + window > now) {
                    admitted.remove(index);
                    log.give_back(&mut state, Micros(now), 1);
                }
            } else if hit(&log, &mut state, Micros(now), 1).is_ok() {
                admitted.push((now, 1));
            }
            prop_assert!(in_window(&admitted, now, window) <= limit);
        }
    }

    /// Log and wheel with the same hits: the wheel holds each as long as the log, and at most one
    /// slot longer.
    #[test]
    fn log_and_wheel_are_within_one_slot_of_each_other(
        steps in steps(), limit in 3_u64..20, window in 1_u64..2_000,
    ) {
        let log = spec(Algorithm::SlidingLog, limit, Window::Span(window));
        let wheel = spec(Algorithm::SlidingWheel, limit, Window::Span(window));
        let (mut on_log, mut on_wheel, mut now) = (State::Empty, State::Empty, 10_000);
        for (gap, cost, jump) in steps {
            now += if jump { gap * 10 } else { 0 };
            let at = Micros(now);
            let (exact, held) = (log.read(&on_log, at, cost), wheel.read(&on_wheel, at, cost));
            prop_assert!(held.used >= exact.used, "the wheel forgets nothing earlier");
            let slot = wheel.slot_us();
            if let Some(free) = held.retry_at {
                let exactly = exact.retry_at.unwrap_or(at);
                prop_assert!(exactly <= free && free < exactly.plus(slot + 1));
            } else {
                prop_assert!(exact.retry_at.is_none(), "what the wheel admits the log admits");
                log.take(&mut on_log, at, cost);
                wheel.take(&mut on_wheel, at, cost);
            }
        }
    }

    /// L-GIVE-BACK, for every algorithm: charges are taken and given back in any order, and those
    /// that stay keep the bound.
    #[test]
    fn l_give_back_never_admits_one_too_many(
        steps in proptest::collection::vec((0_u64..60, 1_u64..6, 0_usize..12), 1..150),
        limit in 1_u64..12, window in 1_u64..400,
    ) {
        for algorithm in [
            Algorithm::SlidingLog, Algorithm::SlidingWheel, Algorithm::TokenBucket, Algorithm::FixedWindow,
        ] {
            let spec = spec(algorithm, limit, Window::Span(window));
            let (mut state, mut used, mut now) = (State::Empty, Vec::<(u64, u64)>::new(), 1_000);
            for (gap, cost, returned) in &steps {
                now += gap;
                let cost = (*cost).min(limit);
                if *returned < 5 && *returned < used.len() {
                    let index = used.len() - 1 - returned;
                    let (at, left) = &mut used[index];
                    let part = cost.min(*left);
                    *left -= part;
                    spec.give_back_taken(&mut state, Micros(*at), Micros(now), part);
                } else if hit(&spec, &mut state, Micros(now), cost).is_ok() {
                    used.push((now, cost));
                }
            }
            for (index, (from, _)) in used.iter().enumerate() {
                let mut sum = 0;
                for (at, cost) in &used[index..] {
                    let counts = match algorithm {
                        Algorithm::FixedWindow => at / window == from / window,
                        Algorithm::TokenBucket => true,
                        _ => at - from < window,
                    };
                    sum += if counts { *cost } else { 0 };
                    let refilled = match algorithm {
                        Algorithm::TokenBucket => limit * (at - from) / window,
                        _ => 0,
                    };
                    prop_assert!(sum <= limit + refilled, "{:?}: {} used", algorithm, sum);
                }
            }
        }
    }
}
