//! Computes the table of docs/guard.md: how long strangers keep the owner out, under each setting
//! of the owner's lane.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod support;

use palisade_core::decision::Outcome;
use palisade_core::facts::{Confidence, DeviceFacts, GuardFacts, GuardOp, Id};
use palisade_core::guard::policy::OwnerLane;
use palisade_core::time::{DAY, HOUR, MINUTE, Micros, SECOND};
use support::page::section_is;
use support::{CHROME, START, World};

const WEEK: u64 = 7 * DAY;

fn facts(ip: &str, device: DeviceFacts) -> GuardFacts {
    let mut facts = GuardFacts::new(ip.parse().unwrap());
    facts.user_agent = Some(CHROME.into());
    facts.account = Some(Id::new("account", "owner").unwrap());
    facts.device = device;
    facts
}

fn cookie(name: &str) -> DeviceFacts {
    DeviceFacts {
        client_id: Some(Id::new("client_id", name).unwrap()),
        ..DeviceFacts::default()
    }
}

fn session() -> DeviceFacts {
    DeviceFacts {
        session_id: Some(Id::new("session_id", "s1").unwrap()),
        confidence: Some(Confidence::High),
        trusted: true,
        ..DeviceFacts::default()
    }
}

/// The owner's devices, each of which is tried every five minutes.
fn owners() -> [(&'static str, GuardFacts); 3] {
    [
        ("known device", facts("198.51.100.1", cookie("home"))),
        ("trusted session", facts("198.51.100.2", session())),
        ("new device", facts("198.51.100.3", cookie("just bought"))),
    ]
}

#[derive(Clone, Copy, Default)]
struct Out {
    total: u64,
    longest: u64,
    stretch: u64,
}

impl Out {
    fn see(&mut self, refused: bool, step: u64) {
        self.stretch = if refused { self.stretch + step } else { 0 };
        self.total += if refused { step } else { 0 };
        self.longest = self.longest.max(self.stretch);
    }
}

/// Runs a week in which a stranger guesses as soon as a check allows it.
fn siege(lane: OwnerLane) -> ([Out; 3], usize) {
    const STEP: u64 = 5 * MINUTE;
    let mut world = World::default();
    world.policy.login.owner_lane = lane;
    let home = facts("198.51.100.1", cookie("home"));
    world.apply(GuardOp::LoginSuccess, &home, START);
    let attacker = facts("203.0.113.9", cookie("attacker"));
    let (mut next, mut looks, mut guesses) = (START.plus(HOUR), START.plus(HOUR), 0);
    let mut out = [Out::default(); 3];
    let end = START.plus(HOUR + WEEK);
    while looks < end {
        while next <= looks {
            let check = world.apply(GuardOp::LoginCheck, &attacker, next).answer;
            next = if check.outcome == Outcome::Allow {
                guesses += 1;
                world.apply(GuardOp::LoginFailure, &attacker, next);
                next.plus(SECOND)
            } else {
                next.plus(check.retry_after.unwrap_or(1) * SECOND)
            };
        }
        for (out, (_, facts)) in out.iter_mut().zip(owners()) {
            out.see(is_refused(&world, &facts, looks), STEP);
        }
        looks = looks.plus(STEP);
    }
    (out, guesses)
}

/// Whether the owner would be refused now; the question leaves no trace in the world.
fn is_refused(world: &World, facts: &GuardFacts, at: Micros) -> bool {
    let mut copy = World::new(world.policy.clone());
    copy.records = world.records.clone();
    copy.apply(GuardOp::LoginCheck, facts, at).answer.outcome != Outcome::Allow
}

fn shown(out: Out) -> String {
    let percent = out.total * 100 / WEEK;
    let hours = |us: u64| us.div_ceil(HOUR);
    match out.total {
        0 => "never".to_owned(),
        _ => format!("{percent} %, up to {} h at a time", hours(out.longest)),
    }
}

#[test]
fn g_owner_lane_how_long_a_week_of_guessing_keeps_the_owner_out() {
    let settings = [
        ("off", OwnerLane::Off),
        ("trusted", OwnerLane::Trusted),
        ("known", OwnerLane::Known),
    ];
    let mut table = String::from(
        "| `owner_lane` | known device | trusted session | new device | guesses in the week |\n\
         | --- | --- | --- | --- | --- |\n",
    );
    for (name, lane) in settings {
        let (out, guesses) = siege(lane);
        let [known, trusted, new] = out.map(shown);
        table += &format!("| `{name}` | {known} | {trusted} | {new} | {guesses} |\n");
        let kept_out = out.map(|out| out.total > 0);
        let wanted = match lane {
            OwnerLane::Off => [true, true, true],
            OwnerLane::Trusted => [true, false, true],
            OwnerLane::Known => [false, false, true],
        };
        assert_eq!(kept_out, wanted, "{name}");
    }
    section_is("owner-lane", &table);
}
