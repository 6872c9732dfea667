use std::num::NonZeroU32;

use arrayvec::ArrayVec;
use proptest::prelude::*;

use super::*;
use crate::key::{Digest, Keyring, Segment, SegmentKind};
use crate::limit::{Algorithm, BucketSpec, COUNT_MAX, Window};
use crate::receipt::{Line, Place, Receipt};
use crate::time::{MINUTE, Micros, SECOND};

fn ring(secret: u8) -> Keyring {
    Keyring::new(&[secret; 32], None).unwrap()
}

fn line(limit: u128, cost: u64, at: u64) -> Line {
    let amount = NonZeroU32::new(1_000).unwrap();
    let window = Window::Span(MINUTE);
    Line {
        limit: Digest(limit),
        id: Digest(limit + 7),
        segments: ArrayVec::from_iter([Segment {
            kind: SegmentKind::Org,
            digest: Digest(3),
        }]),
        spec: BucketSpec::new(Algorithm::SlidingWheel, amount, window, None).unwrap(),
        cost,
        at: Micros(at),
        place: Place::Store,
    }
}

fn of_unit(unit: usize, weight: u32, line: Line) -> Part {
    Part {
        counts: Counts::Unit(unit, NonZeroU32::new(weight).unwrap()),
        line,
    }
}

/// One request (which weighs three in one of its buckets) and 400 tokens, 100 of them
/// from an extension, and a slot.
fn reservation() -> Reservation {
    let amount = |unit: &str, reserved| Amount {
        unit: unit.into(),
        reserved,
    };
    Reservation {
        id: Digest(99),
        process: 5,
        class: "llm".into(),
        at: Micros(SECOND),
        ends: Micros(MINUTE),
        hold_us: 59 * SECOND,
        life_us: 10 * MINUTE,
        amounts: vec![amount("requests", 1), amount("tokens", 400)],
        parts: vec![
            of_unit(0, 1, line(1, 1, SECOND)),
            of_unit(0, 3, line(2, 3, SECOND)),
            of_unit(1, 1, line(3, 300, SECOND)),
            Part {
                counts: Counts::Slot,
                line: line(4, 1, SECOND),
            },
            of_unit(1, 1, line(3, 100, 2 * SECOND)),
        ],
    }
}

fn costs(lines: &[Line]) -> Vec<(u128, u64, u64)> {
    lines
        .iter()
        .map(|line| (line.limit.0, line.cost, line.at.0))
        .collect()
}

#[test]
fn b_sealed_a_reservation_says_what_was_sealed_and_nobody_else_can_say_it() {
    let reservation = reservation();
    let sealed = reservation.seal(&ring(1)).unwrap();
    assert_eq!(Reservation::open(&ring(1), &sealed), Ok(reservation));
    assert!(Reservation::open(&ring(2), &sealed).is_err(), "foreign");
    assert!(Receipt::open(&ring(1), &sealed).is_err(), "no receipt");
    for cut in 0..sealed.len() {
        assert!(Reservation::open(&ring(1), &sealed[..cut]).is_err());
    }
    for at in 0..sealed.len() {
        let mut changed = sealed.clone();
        changed[at] ^= 1;
        assert!(Reservation::open(&ring(1), &changed).is_err(), "{at}");
    }
    let rotated = Keyring::new(&[2; 32], Some(&[1; 32])).unwrap();
    assert!(Reservation::open(&rotated, &sealed).is_ok(), "L-ROTATE");
}

#[test]
fn b_sealed_a_receipt_is_no_reservation() {
    let receipt = Receipt {
        process: 1,
        number: 2,
        class: String::new(),
        lines: vec![line(1, 1, 1)],
    };
    let sealed = receipt.seal(&ring(1)).unwrap();
    assert!(Reservation::open(&ring(1), &sealed).is_err());
}

#[test]
fn b_once_the_fate_reads_back() {
    let settled = SettledUnit {
        unit: "tokens".into(),
        reserved: 400,
        used: 1 << 46,
    };
    for fate in [
        Fate::Held(Box::new(reservation())),
        Fate::Settled(SettlementRecord {
            units: vec![settled.clone()],
            extended: None,
        }),
        Fate::Settled(SettlementRecord {
            units: vec![settled],
            extended: Some(Box::new(reservation())),
        }),
        Fate::Settled(SettlementRecord::default()),
    ] {
        let bytes = fate.encode().unwrap();
        assert_eq!(Fate::decode(&bytes), Some(fate));
    }
    assert_eq!(Fate::decode(&[3, 1]), None, "of a newer version");
}

#[test]
fn b_bound_less_than_reserved_goes_back_the_latest_first() {
    let corrections = reservation().corrections(&[1, 250]);
    let mut back = costs(&corrections.back);
    back.sort_unstable();
    assert_eq!(
        back,
        [(3, 50, SECOND), (3, 100, 2 * SECOND), (4, 1, SECOND)]
    );
    assert!(corrections.more.is_empty());
}

#[test]
fn b_bound_more_than_reserved_is_charged_by_its_weight() {
    let corrections = reservation().corrections(&[2, 1_000]);
    assert_eq!(costs(&corrections.back), [(4, 1, SECOND)], "the slot alone");
    let more: Vec<_> = corrections
        .more
        .iter()
        .map(|line| (line.limit.0, line.cost))
        .collect();
    assert_eq!(more, [(1, 1), (2, 3), (3, 600)]);
    let surplus = |used| {
        let more = reservation().corrections(&[1, used]).more;
        more.iter().map(|line| line.cost).max()
    };
    assert_eq!(surplus(AMOUNT_MAX), Some(AMOUNT_MAX - 400));
    assert_eq!(
        surplus(u64::MAX),
        Some(COUNT_MAX),
        "as much as a bucket can owe"
    );
}

/// 400 tokens that go back at the end, 100 of them from an extension, of which the caller holds all.
fn released() -> Reservation {
    let held = |line: Line, taken: u64| Part {
        counts: Counts::Held {
            unit: 1,
            weight: NonZeroU32::MIN,
            taken: Micros(taken),
        },
        line,
    };
    let share = |line| Part {
        counts: Counts::Share(1, NonZeroU32::MIN),
        line,
    };
    let unsettled = Part {
        counts: Counts::Unsettled,
        line: line(5, 1, 9),
    };
    Reservation {
        parts: vec![
            held(line(3, 300, 7), SECOND),
            share(line(4, 300, 8)),
            unsettled,
            held(line(3, 100, 9), 2 * SECOND),
            share(line(4, 100, 10)),
        ],
        ..reservation()
    }
}

#[test]
fn b_expire_what_is_held_goes_back_whole_and_what_was_used_counts_from_when_it_was_reserved() {
    let sealed = released().seal(&ring(1)).unwrap();
    assert_eq!(Reservation::open(&ring(1), &sealed), Ok(released()));
    for (used, expected) in [
        (0, vec![]),
        (250, vec![(3, 250, SECOND)]),
        (360, vec![(3, 360, 2 * SECOND)]),
        (500, vec![]),
    ] {
        let corrections = released().corrections(&[1, used]);
        let mut back = costs(&corrections.back);
        back.sort_unstable();
        let whole = [
            (3, 100, 9),
            (3, 300, 7),
            (4, 100, 10),
            (4, 300, 8),
            (5, 1, 9),
        ];
        assert_eq!(back, whole, "{used}");
        assert_eq!(costs(&corrections.used), expected, "{used}");
        let more: Vec<u64> = corrections.more.iter().map(|line| line.cost).collect();
        let beyond = if used > 400 { vec![500] } else { vec![] };
        assert_eq!(more, beyond, "{used}");
    }
}

#[test]
fn b_once_a_unit_that_is_not_named_was_used_as_reserved() {
    let reservation = reservation();
    let said = Costs::new([("tokens", 7)]).unwrap();
    assert_eq!(reservation.used(&said), Some(vec![1, 7]));
    let other = Costs::new([("bytes", 7)]).unwrap();
    assert_eq!(reservation.used(&other), None);
}

proptest! {
    #[test]
    fn b_bound_what_is_corrected_is_what_was_used(requests in 0_u64..9, tokens in 0_u64..2_000) {
        let reservation = reservation();
        let corrections = reservation.corrections(&[requests, tokens]);
        let sum = |lines: &[Line], limit| -> u64 {
            lines.iter().filter(|line| line.limit == Digest(limit)).map(|line| line.cost).sum()
        };
        let parts: Vec<Line> = reservation.parts.iter().map(|part| part.line.clone()).collect();
        for (limit, expected) in [(1, requests), (2, 3 * requests), (3, tokens), (4, 0)] {
            let left = sum(&parts, limit) - sum(&corrections.back, limit) + sum(&corrections.more, limit);
            prop_assert_eq!(left, expected);
        }
    }

    #[test]
    fn b_sealed_no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Fate::decode(&bytes);
        let _ = Reservation::open(&ring(1), &bytes);
    }
}
