//! The dashboard's numbers about a running engine.

use palisade_core::Clock;
use palisade_core::facts::{GuardFacts, GuardOp, RequestFacts, Surface};
use palisade_core::guard::policy::GuardMode;
use palisade_core::policy::PolicySet;
use palisade_core::time::{MINUTE, SECOND};

use super::*;
use crate::observe::tests::{WatchedEngine, id, parts};

const CANARIES: [&str; 4] = ["canary", "203.0.113.77", "ann@", "device-"];

fn request() -> RequestFacts {
    let mut facts = RequestFacts::new("203.0.113.77".parse().unwrap(), "GET", "/auth");
    facts.surface = Surface::Api;
    facts
}

fn login() -> GuardFacts {
    let mut facts = GuardFacts::new("203.0.113.77".parse().unwrap());
    facts.account = id("canary-account");
    facts
}

impl WatchedEngine {
    fn second(&self) -> bool {
        self.clock.advance(SECOND);
        self.lookout.tick(&self.engine.health(), self.clock.now())
    }

    fn outlook(&self) -> Outlook {
        let outlook = self.lookout.outlook(self.clock.now());
        let text = serde_json::to_string(&outlook).unwrap();
        for canary in CANARIES {
            assert!(!text.contains(canary), "{canary} in {text}");
        }
        outlook
    }
}

fn column<'c>(columns: &'c [(&'static str, Vec<u32>)], name: &str) -> &'c [u32] {
    let found = columns.iter().find(|(known, _)| *known == name);
    found.map_or(&[], |(_, values)| values)
}

#[tokio::test]
async fn what_was_decided_before_the_first_look_is_in_the_first_second() {
    let watched = WatchedEngine::new(parts());
    watched.check_n(&request(), 3).await;
    assert!(!watched.second());
    watched.check_n(&request(), 2).await;
    assert!(watched.second());
    let surfaces = watched.lookout.seconds().surfaces;
    let counted: u32 = surfaces.iter().flat_map(|(_, counts)| counts).sum();
    assert_eq!(counted, 5);
}

#[tokio::test]
async fn decisions_are_kept_by_the_second_outcome_and_surface() {
    let watched = WatchedEngine::new(parts());
    assert!(
        !watched.second(),
        "the first look has nothing to compare with"
    );
    watched.check_n(&request(), 5).await;
    for _ in 0..6 {
        let answer = watched.engine.guard(GuardOp::LoginFailure, &login()).await;
        answer.unwrap();
    }
    assert!(watched.second());
    assert!(
        !watched
            .lookout
            .tick(&watched.engine.health(), watched.clock.now())
    );
    assert!(watched.second());
    let seconds = watched.lookout.seconds();
    assert_eq!(seconds.at.len(), 2);
    assert_eq!(seconds.at[1], seconds.at[0] + 1);
    assert_eq!(column(&seconds.surfaces, "api"), [5, 0]);
    assert_eq!(column(&seconds.surfaces, "guard"), [6, 0]);
    assert_eq!(column(&seconds.surfaces, "proxy"), [0; 0], "it had none");
    let all: u32 = seconds.outcomes.iter().map(|(_, counts)| counts[0]).sum();
    assert_eq!(all, 11);
    assert!(column(&seconds.outcomes, "hard_block")[0] > 0);
    assert!(
        seconds.p99_us[0].is_some(),
        "the first of a thread is measured"
    );
    assert_eq!(seconds.p99_us[1], None);
}

#[tokio::test]
async fn the_rings_keep_an_hour_of_seconds_and_a_day_of_minutes() {
    let watched = WatchedEngine::new(parts());
    let health = watched.engine.health();
    for second in 0..2 * 86_400 {
        watched.clock.advance(SECOND);
        watched.lookout.counts.shadowed();
        watched.lookout.tick(&health, watched.clock.now());
        if second == 200 {
            assert_eq!(watched.lookout.minutes().shadow[1..], [60, 60]);
        }
    }
    let (seconds, minutes) = (watched.lookout.seconds(), watched.lookout.minutes());
    assert_eq!(
        (seconds.at.len(), minutes.at.len()),
        (SECONDS_KEPT, MINUTES_KEPT)
    );
    assert!(seconds.shadow.iter().all(|count| *count == 1));
    assert!(minutes.shadow.iter().all(|count| *count == 60));
    assert!(minutes.at.windows(2).all(|pair| pair[1] == pair[0] + 60));
}

#[tokio::test]
async fn who_and_what_is_refused_most_is_named_by_digests_that_stay_the_same() {
    let watched = WatchedEngine::new(parts());
    watched.check_n(&request(), 20).await;
    for _ in 0..6 {
        let answer = watched.engine.guard(GuardOp::LoginFailure, &login()).await;
        answer.unwrap();
    }
    let outlook = watched.outlook();
    assert!(!outlook.limits.is_empty() && !outlook.classes.is_empty());
    assert!(
        outlook
            .limits
            .iter()
            .any(|line| line.name.starts_with("G-"))
    );
    let kinds: Vec<&str> = outlook.subjects.iter().map(|one| one.kind).collect();
    assert!(
        kinds.contains(&"ip") && kinds.contains(&"account"),
        "{kinds:?}"
    );
    let account = outlook.subjects.iter().find(|one| one.kind == "account");
    let events = watched.events();
    let blocked = events.iter().find(|event| event["event"] == "guard.block");
    let actor = blocked.unwrap()["actor"].as_str().unwrap();
    assert!(
        actor.starts_with(&account.unwrap().pseudonym),
        "as in the audit"
    );
    watched.clock.advance(10 * MINUTE);
    assert!(watched.outlook().subjects.is_empty(), "ten minutes");
}

#[tokio::test]
async fn shadow_verdicts_are_shown_and_not_as_refusals() {
    let mut parts = parts();
    parts.settings.guard.login.mode = GuardMode::Shadow;
    let watched = WatchedEngine::new(parts);
    watched.second();
    for _ in 0..4 {
        let answer = watched.engine.guard(GuardOp::LoginFailure, &login()).await;
        assert!(answer.unwrap().decision.is_allowed());
    }
    watched.second();
    let outlook = watched.outlook();
    assert!(outlook.limits.is_empty());
    assert!(!outlook.shadow.is_empty());
    assert!(outlook.newest.shadow[0] > 0);
}

#[tokio::test]
async fn a_reload_says_what_it_changed() {
    let watched = WatchedEngine::new(parts());
    let mut next = parts();
    let gone = next.limits.remove(0).name;
    let changed = next.limits.first_mut().unwrap();
    changed.spec = crate::observe::tests::per_minute(77);
    let changed = changed.name.clone();
    let mut added = next.limits[0].clone();
    added.name = "brand-new".to_owned();
    next.limits.push(added);
    watched.clock.advance(SECOND);
    let policy = PolicySet::new(2, next).unwrap();
    watched.engine.set_policy(Arc::new(policy));
    let policies = watched.outlook().policies;
    assert_eq!(policies.len(), 2);
    assert_eq!((policies[0].revision, policies[1].revision), (2, 1));
    assert_eq!(policies[1].changed, None, "the first");
    let changes = policies[0].changed.as_ref().unwrap();
    assert_eq!(changes.added, ["brand-new"]);
    assert_eq!(changes.removed, [gone]);
    assert_eq!(changes.changed[0].0, changed);
    assert!(changes.changed[0].2.starts_with("77 in 60s"), "{changes:?}");
    assert!(!changes.settings && !changes.enforcement);
    for revision in 3..30 {
        let policy = PolicySet::new(revision, parts()).unwrap();
        watched.engine.set_policy(Arc::new(policy));
    }
    assert_eq!(watched.outlook().policies.len(), 10, "bounded");
}

#[test]
fn changes_of_the_level_are_noted_and_bounded() {
    let mut journal = Journal::default();
    for n in 0_u8..=255 {
        journal.level(n % 2 * 2, Micros(u64::from(n) * SECOND));
    }
    let notes = journal.notes(1_000);
    assert_eq!(notes.len(), 200);
    assert_eq!(
        notes[0].words,
        "degradation level 0 → 2: local counters decide"
    );
}
