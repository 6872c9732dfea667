//! Timelines as data: a script of timed steps, each with what it must answer.
//!
//! `"0s down; 1s login.check A 1 -> hard_block fail_closed"`: the store fails
//! from 0 s on; at 1 s a check for account A from prefix 1 must be answered so.
//! Probes and other due work run by themselves, in time order, before each step.

mod blocks;
mod breakers;
mod limits;
mod properties;
mod requests;
mod stalls;

use std::collections::BTreeMap;

use super::*;
use crate::decision::{Decision, KeyKind, Level, Outcome, Reason};
use crate::facts::Attempt;
use crate::key::Digest;
use crate::rule::Rule;
use crate::time::{MINUTE, Micros, SECOND};

/// An epoch late enough that no window reaches below zero.
const START: Micros = Micros(1_000_000 * SECOND);

struct World {
    node: NodeModes,
    store: Result<u64, FailureKind>,
    /// Calls of the store: when, by which policy, and with which result.
    calls: Vec<(Micros, Policy, Result<u64, FailureKind>)>,
    /// Calls and probes that failed while the circuit was closed.
    failures: Vec<(Micros, Policy)>,
    events: Vec<(Micros, Policy, Event)>,
    /// The events in words: `"2s login opened"`.
    log: Vec<String>,
    held: BTreeMap<String, Permit>,
    now: Micros,
}

impl World {
    fn new() -> Self {
        Self {
            node: NodeModes::default(),
            store: Ok(500),
            calls: Vec::new(),
            failures: Vec::new(),
            events: Vec::new(),
            log: Vec::new(),
            held: BTreeMap::new(),
            now: START,
        }
    }

    /// Plays a script and returns the world after it.
    fn play(script: &str) -> Self {
        let mut world = Self::new();
        world.more(script);
        world
    }

    fn more(&mut self, script: &str) {
        for step in script.split(';').map(str::trim).filter(|s| !s.is_empty()) {
            let (what, expect) = step.split_once("->").unwrap_or((step, ""));
            let answer = self.step(what);
            for word in expect.split_whitespace() {
                assert!(
                    answer.split(' ').any(|got| got == word),
                    "`{step}` was answered `{answer}`"
                );
            }
        }
    }

    fn step(&mut self, what: &str) -> String {
        let words: Vec<&str> = what.split_whitespace().collect();
        let now = START.plus(span(words[0]));
        assert!(now >= self.now, "`{what}` goes back in time");
        self.run_until(now);
        match words[1] {
            "up" => self.store = Ok(500),
            "down" => self.store = Err(FailureKind::Unreachable),
            "timeout" => self.store = Err(FailureKind::TimedOut),
            "look" => return self.look(policy(words[2]), now),
            "call" => return self.call(policy(words[2]), now),
            "hold" => return self.hold(policy(words[2]), words[3], now),
            "return" => return self.late(policy(words[2]), words[3], now),
            op => return self.guard_op(op, &words[2..], now),
        }
        String::new()
    }

    /// Runs everything that falls due until `end`, as a background task would.
    fn run_until(&mut self, end: Micros) {
        self.now = end;
        while let Some((at, due)) = self.node.next_due()
            && at <= end
        {
            let (policy, events) = match due {
                Due::Probe(policy) => {
                    if self.store.is_err() && self.node.circuit(policy) == Circuit::Closed {
                        self.failures.push((at, policy));
                    }
                    (policy, self.node.on_probe(policy, self.store, at, at))
                }
                Due::Advance(policy) => (policy, self.node.advance(policy, at)),
            };
            self.note(policy, &events, at);
        }
    }

    fn note(&mut self, policy: Policy, events: &Events, now: Micros) {
        for event in events {
            let at = now.since(START) / SECOND;
            self.events.push((now, policy, *event));
            self.log
                .push(format!("{at}s {} {}", policy.name(), event_name(*event)));
        }
    }

    fn look(&self, policy: Policy, now: Micros) -> String {
        let circuit = self.node.circuit(policy).name();
        let mode = match self.node.mode(policy, now) {
            PolicyMode::Normal => "normal".to_owned(),
            PolicyMode::Degraded => "degraded".to_owned(),
            PolicyMode::FailClosed { until } => {
                format!("fail_closed {}s", until.since(now) / SECOND)
            }
        };
        format!("{circuit} {mode}")
    }

    fn call(&mut self, policy: Policy, now: Micros) -> String {
        if let CallDecision::Call(permit) = self.node.admit(policy, now) {
            self.calls.push((now, policy, self.store));
            self.report(policy, permit, now);
        }
        self.look(policy, now)
    }

    /// Starts a call whose result comes later.
    fn hold(&mut self, policy: Policy, name: &str, now: Micros) -> String {
        let permit = self.node.admit(policy, now).permit().unwrap();
        self.held.insert(name.to_owned(), permit);
        String::new()
    }

    fn late(&mut self, policy: Policy, name: &str, now: Micros) -> String {
        self.report(policy, self.held[name], now);
        self.look(policy, now)
    }

    fn report(&mut self, policy: Policy, permit: Permit, now: Micros) {
        let events = match self.store {
            Ok(latency) => self.node.on_success(policy, permit, latency, now),
            Err(kind) => {
                self.failures.push((now, policy));
                self.node.on_failure(policy, permit, kind, now)
            }
        };
        self.note(policy, &events, now);
    }

    fn guard_op(&mut self, op: &str, subject: &[&str], now: Micros) -> String {
        let (flow, op) = flow_and_op(op);
        let keys = keys(subject);
        let stored = subject.iter().find_map(|word| stored_block(word));
        words_of(&self.ask(flow, op, &keys, stored, now))
    }

    /// One guard operation from end to end; the store itself knows only `stored`.
    fn ask(
        &mut self,
        flow: Flow,
        attempt: Attempt,
        keys: &DegradedKeys,
        stored: Option<(KeyKind, Level)>,
        now: Micros,
    ) -> Decision {
        let policy = Policy::from(flow);
        let CallDecision::Call(permit) = self.node.admit(policy, now) else {
            return self.node.answer(flow, attempt, keys, now);
        };
        self.calls.push((now, policy, self.store));
        self.report(policy, permit, now);
        if self.store.is_err() {
            return self.node.answer(flow, attempt, keys, now);
        }
        let decision = decided(stored, now);
        self.node.saw_decision(flow, keys, &decision, now);
        decision
    }

    fn log_of(&self, policy: Policy) -> Vec<&str> {
        let tag = format!(" {} ", policy.name());
        self.log
            .iter()
            .filter(|line| line.contains(&tag))
            .map(String::as_str)
            .collect()
    }
}

fn span(text: &str) -> u64 {
    let mut total = 0;
    let mut digits = String::new();
    for c in text.chars() {
        let unit = match c {
            'h' => 60 * MINUTE,
            'm' => MINUTE,
            's' => SECOND,
            'u' => 1,
            digit => {
                digits.push(digit);
                continue;
            }
        };
        total += digits.parse::<u64>().unwrap() * unit;
        digits.clear();
    }
    assert!(digits.is_empty(), "`{text}` lacks a unit");
    total
}

fn policy(name: &str) -> Policy {
    Policy::ALL.into_iter().find(|p| p.name() == name).unwrap()
}

fn flow_and_op(text: &str) -> (Flow, Attempt) {
    match text {
        "login.check" => (Flow::Login, Attempt::Check),
        "login.failure" => (Flow::Login, Attempt::Failure),
        "login.success" => (Flow::Login, Attempt::Success),
        "otp.check" => (Flow::Otp, Attempt::Check),
        "otp.failure" => (Flow::Otp, Attempt::Failure),
        "otp.success" => (Flow::Otp, Attempt::Success),
        "api.hit" => (Flow::Api, Attempt::Check),
        other => panic!("no such op `{other}`"),
    }
}

/// Letters name an account, digits an address prefix, `ua2` a user agent, `fp3` a fingerprint;
/// `trusted` is a trusted session.
fn keys(words: &[&str]) -> DegradedKeys {
    let digest = |word: &str| {
        let bytes = word
            .bytes()
            .fold(7_u128, |sum, b| sum * 257 + u128::from(b));
        Digest(bytes)
    };
    let mut keys = DegradedKeys {
        prefix: digest("prefix"),
        user_agent: digest("ua"),
        account: None,
        fingerprint: None,
        lockout: None,
        challenge_passed: false,
        trust: Trust::Untrusted,
    };
    for word in words {
        match word {
            &"trusted" => keys.trust = Trust::Trusted,
            w if w.starts_with("ua") => keys.user_agent = digest(w),
            w if w.starts_with("fp") => keys.fingerprint = Some(digest(w)),
            w if w.starts_with("stored=") => {}
            w if w.bytes().all(|b| b.is_ascii_digit()) => keys.prefix = digest(w),
            w => keys.account = Some(digest(w)),
        }
    }
    keys
}

/// `stored=K4/L3`: the store answers with a HARD block of that key and level.
fn stored_block(word: &str) -> Option<(KeyKind, Level)> {
    let (key, level) = word.strip_prefix("stored=")?.split_once("/L")?;
    let kind = match key {
        "K1" => KeyKind::Prefix,
        "K2" => KeyKind::PrefixAgent,
        "K3" => KeyKind::PrefixDevice,
        "K4" => KeyKind::Account,
        "K5" => KeyKind::AccountDevice,
        "device" => KeyKind::Device,
        other => panic!("no such key `{other}`"),
    };
    Some((kind, Level::from_number(level.parse().unwrap()).unwrap()))
}

fn decided(stored: Option<(KeyKind, Level)>, now: Micros) -> Decision {
    let Some((kind, level)) = stored else {
        return Decision::allow(now);
    };
    let seconds = Some(level.duration() / SECOND);
    Decision {
        outcome: Outcome::HardBlock,
        level: Some(level),
        retry_after: seconds,
        rule: Some(Rule::G_THRESHOLD),
        reasons: vec![Reason {
            rule: Rule::G_THRESHOLD,
            key: Some(kind),
            limit: None,
            decision: Outcome::HardBlock,
            level: Some(level),
            retry_after: seconds,
        }],
        ..Decision::allow(now)
    }
}

fn words_of(decision: &Decision) -> String {
    let mut words = vec![
        decision.outcome.name().to_owned(),
        decision.mode.name().to_owned(),
        format!("http{}", decision.status),
    ];
    words.extend(decision.rule.map(|rule| rule.id().to_owned()));
    words.extend(decision.level.map(|level| format!("L{}", level.number())));
    words.extend(decision.retry_after.map(|s| format!("{s}s")));
    words.extend(
        decision
            .reasons
            .iter()
            .filter_map(|reason| reason.key.map(|key| format!("by={}", key.code()))),
    );
    words.join(" ")
}

const fn event_name(event: Event) -> &'static str {
    match event {
        Event::Suspected => "suspected",
        Event::SuspicionEnded => "suspicion_ended",
        Event::Opened => "opened",
        Event::HalfOpened => "half_opened",
        Event::Reopened => "reopened",
        Event::Closed => "closed",
        Event::DegradedEntered => "degraded_entered",
        Event::DegradedExited => "degraded_exited",
        Event::ReentryGuard { .. } => "reentry_guard",
        Event::ReentryEnded => "reentry_ended",
        Event::Prolonged => "prolonged",
        Event::ProlongedEnded => "prolonged_ended",
        Event::DropCounters => "drop_counters",
    }
}
