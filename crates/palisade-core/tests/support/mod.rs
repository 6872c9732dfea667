//! A guard in memory: records as bytes, one clock, one keyring.

#![allow(dead_code, reason = "each test binary uses its own part of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of a test")]

pub(crate) mod page;
pub(crate) mod script;
pub(crate) mod without;

use std::collections::HashMap;

use palisade_core::facts::{Confidence, DeviceFacts, GuardFacts, GuardOp, Id};
use palisade_core::guard::policy::NewCountry;
use palisade_core::guard::records::account::DeviceEntry;
use palisade_core::guard::{
    self, Account, AddedPoints, Answer, ApiReadings, Attempt, ChangedRecords, Device, GuardPolicy,
    KeyPair, Network, Policies, RULES, Records, Rules, Signals,
};
use palisade_core::key::{Digest, Keyring};
use palisade_core::lockout::{Lockout, LockoutPolicy};
use palisade_core::record::{Flow, RecordKey};
use palisade_core::time::Micros;

pub(crate) const CHROME: &str = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/123.0.0.0 Safari/537.36";
pub(crate) const START: Micros = Micros(1_772_409_600_000_000);

/// Everything that one command produced.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) answer: Answer,
    pub(crate) changed: ChangedRecords,
    pub(crate) scored: Vec<AddedPoints>,
    pub(crate) locked: bool,
    pub(crate) replayed: bool,
}

pub(crate) struct World {
    pub(crate) rules: Rules,
    pub(crate) policy: GuardPolicy,
    pub(crate) lockout: LockoutPolicy,
    pub(crate) keyring: Keyring,
    pub(crate) records: HashMap<RecordKey, Vec<u8>>,
    /// Whether the previous secret stays readable after a rotation (G-ROT).
    pub(crate) rotates: bool,
    /// Whether every endpoint counts for the lockout (A-SHARED).
    pub(crate) shared: bool,
    /// Whether accounts are delayed alike, known devices or not (A-UNIFORM).
    pub(crate) uniform: bool,
    /// Share of the accounts for which a country is new, of 2³² (P-GUARD).
    pub(crate) new_share: u64,
    hits: HashMap<Digest, Vec<Micros>>,
}

impl Default for World {
    fn default() -> Self {
        Self::new(GuardPolicy::default())
    }
}

impl World {
    pub(crate) fn new(policy: GuardPolicy) -> Self {
        Self {
            rules: RULES.clone(),
            policy,
            lockout: LockoutPolicy::default(),
            keyring: Keyring::new(&[7; 32], None).unwrap(),
            records: HashMap::new(),
            rotates: true,
            shared: true,
            uniform: true,
            new_share: 0,
            hits: HashMap::new(),
        }
    }

    /// A world in which `rule` is on, also if it is off by default.
    pub(crate) fn proving(rule: &str) -> Self {
        let mut world = Self::default();
        if rule == "P-GUARD" {
            world.policy.login.new_country = NewCountry::Challenge;
        }
        world
    }

    pub(crate) fn apply(&mut self, op: GuardOp, facts: &GuardFacts, now: Micros) -> Outcome {
        let mut signals = Signals::resolve(&self.keyring, op, facts);
        if op.flow() == Flow::Login && self.policy.login.new_country == NewCountry::Challenge {
            let country = facts.geo.stated.country;
            signals.locate(&self.keyring, facts, country, self.new_share);
        }
        self.run(op, &signals, now)
    }

    pub(crate) fn run(&mut self, op: GuardOp, signals: &Signals, now: Micros) -> Outcome {
        match op.attempt() {
            Some(attempt) => self.attempt(op, attempt, signals, now),
            None => self.hit(op, signals, now),
        }
    }

    pub(crate) fn bytes(&self, keys: Option<KeyPair>) -> Option<&Vec<u8>> {
        let keys = keys?;
        let previous = || keys.previous.and_then(|key| self.records.get(&key));
        self.records.get(&keys.current).or_else(previous)
    }

    fn put(&mut self, changed: bool, keys: Option<KeyPair>, bytes: Vec<u8>) {
        if let Some(keys) = keys.filter(|_| changed) {
            self.records.insert(keys.current, bytes);
            if let Some(previous) = keys.previous {
                self.records.remove(&previous);
            }
        }
    }

    fn attempt(
        &mut self,
        op: GuardOp,
        attempt: Attempt,
        signals: &Signals,
        now: Micros,
    ) -> Outcome {
        let keys = signals.keys(op.flow());
        let records = Records {
            account: read(self.bytes(keys.account), Account::decode),
            network: read(self.bytes(Some(keys.network)), Network::decode),
            device: read(self.bytes(keys.device), Device::decode),
            lockout: read(self.bytes(keys.lockout), Lockout::decode),
        };
        let off = LockoutPolicy {
            enabled: false,
            ..self.lockout.clone()
        };
        let counts = self.shared || op.flow() == Flow::Login;
        let policies = Policies {
            guard: &self.policy,
            lockout: if counts { &self.lockout } else { &off },
        };
        let rules = &self.rules;
        let mut done = rules.evaluate(policies, op.flow(), attempt, signals, records, now);
        let account = &done.records.account;
        if !self.uniform && !account.devices().iter().any(DeviceEntry::is_known) {
            done.answer.delay_ms = None;
        }
        self.put(
            done.changed.account,
            keys.account,
            done.records.account.encode(),
        );
        self.put(
            done.changed.network,
            Some(keys.network),
            done.records.network.encode(),
        );
        self.put(
            done.changed.device,
            keys.device,
            done.records.device.encode(),
        );
        self.put(
            done.changed.lockout,
            keys.lockout,
            done.records.lockout.encode(),
        );
        Outcome {
            answer: done.answer,
            changed: done.changed,
            scored: done.scored,
            locked: done.locked,
            replayed: done.replayed,
        }
    }

    fn hit(&mut self, op: GuardOp, signals: &Signals, now: Micros) -> Outcome {
        let keys = signals.keys(op.flow());
        let network = read(self.bytes(Some(keys.network)), Network::decode);
        if let Some(answer) = guard::replayed_hit(&self.policy, signals, &network, now) {
            return Outcome {
                answer,
                changed: ChangedRecords::default(),
                scored: Vec::new(),
                locked: false,
                replayed: true,
            };
        }
        let counters = signals.counters(&self.keyring);
        let api = self.policy.api.clone();
        let readings = ApiReadings {
            minor_exceeded: self.count(counters.minor, api.window, now) > api.minor.limit as usize,
            moderate_exceeded: counters.moderate.is_some_and(|counter| {
                self.count(counter, api.window, now) > api.moderate.limit as usize
            }),
            severe_exceeded: self.count(counters.severe, api.window, now)
                > api.severe.limit as usize,
        };
        let done = guard::evaluate_hit(&self.policy, signals, network, readings, now);
        self.put(done.changed, Some(keys.network), done.network.encode());
        Outcome {
            answer: done.answer,
            changed: ChangedRecords {
                network: done.changed,
                ..ChangedRecords::default()
            },
            scored: Vec::new(),
            locked: false,
            replayed: false,
        }
    }

    /// A naive sliding counter in place of a limit bucket.
    fn count(&mut self, counter: Digest, window: u64, now: Micros) -> usize {
        let hits = self.hits.entry(counter).or_default();
        hits.push(now);
        hits.retain(|at| now.since(*at) < window);
        hits.len()
    }
}

fn read<T: Default, E: std::fmt::Debug>(
    bytes: Option<&Vec<u8>>,
    decode: impl Fn(&[u8]) -> Result<T, E>,
) -> T {
    bytes.map_or_else(T::default, |bytes| decode(bytes).expect("own bytes"))
}

/// Facts from one line of a policy case.
pub(crate) fn facts_of(line: &serde_json::Value) -> GuardFacts {
    let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
    let id = |value: &serde_json::Value| text(value).map(|text| Id::new("id", &text).unwrap());
    let device = &line["device"];
    let mut facts = GuardFacts::new(line["ip"].as_str().unwrap().parse().unwrap());
    facts.user_agent = text(&line["user_agent"]).map(Into::into);
    facts.accept_language = text(&line["accept_language"]).map(Into::into);
    facts.account = id(&line["account"]);
    facts.username = id(&line["username"]);
    facts.request_id = id(&line["request_id"]);
    facts.challenge_passed = line["challenge_passed"].as_bool().unwrap_or(false);
    facts.device = DeviceFacts {
        session_id: id(&device["session_id"]),
        client_id: id(&device["client_id"]),
        fingerprint: id(&device["fingerprint"]),
        confidence: match device["confidence"].as_str() {
            Some("low") => Some(Confidence::Low),
            Some("medium") => Some(Confidence::Medium),
            Some("high") => Some(Confidence::High),
            _ => None,
        },
        known: device["known"].as_bool().unwrap_or(false),
        trusted: device["trusted"].as_bool().unwrap_or(false),
    };
    facts
}
