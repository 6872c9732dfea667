//! A world of sends for tests: records in memory, as a store with one node would keep them.

use std::collections::HashMap;
use std::sync::Arc;

use super::*;
use crate::decision::Outcome;
use crate::facts::{GuardFacts, GuardOp, Id};
use crate::guard::{Answer, KeyPair, Signals};
use crate::key::Keyring;
use crate::record::RecordKey;
use crate::time::{MINUTE, Micros, SECOND};

/// Start of every test: not at the start of a minute, an hour or a day.
const START: u64 = 1_000_000 * MINUTE + 17 * SECOND;

pub(super) struct World {
    pub(super) policy: SendPolicy,
    pub(super) rules: Rules,
    pub(super) known: bool,
    pub(super) challenge_passed: bool,
    keyring: Keyring,
    now: Micros,
    accounts: HashMap<RecordKey, Vec<u8>>,
}

/// Outcome, rule and seconds to wait.
pub(super) type SendAnswer = (Outcome, Option<&'static str>, Option<u64>);

pub(super) const ALLOW: SendAnswer = (Outcome::Allow, None, None);

pub(super) const fn soft(rule: &'static str, wait: u64) -> SendAnswer {
    (Outcome::SoftBlock, Some(rule), Some(wait))
}

pub(super) const fn hard(rule: &'static str, wait: u64) -> SendAnswer {
    (Outcome::HardBlock, Some(rule), Some(wait))
}

impl Default for World {
    fn default() -> Self {
        Self {
            policy: SendPolicy::default(),
            rules: RULES.clone(),
            known: false,
            challenge_passed: false,
            keyring: Keyring::new(&[7; 32], None).unwrap(),
            now: Micros(START),
            accounts: HashMap::new(),
        }
    }
}

/// Runs a test with all rules, and without one: then it must fail.
pub(super) fn proves(rule: &str, test: fn(&mut World) -> Result<(), String>) {
    assert_eq!(test(&mut World::default()), Ok(()));
    let mut world = World::default();
    world.rules.0.to_mut().retain(|(id, _)| *id != rule);
    assert!(test(&mut world).is_err(), "holds without {rule}");
}

/// An error if a send was not answered as expected.
pub(super) fn expect(what: &str, given: SendAnswer, wanted: SendAnswer) -> Result<(), String> {
    match given == wanted {
        true => Ok(()),
        false => Err(format!("{what}: {given:?} and not {wanted:?}")),
    }
}

impl World {
    pub(super) fn ranges(names: &[&str]) -> Self {
        let mut world = Self::default();
        world.policy.ranges = RangeTable::new(names.iter().map(|name| Arc::from(*name)));
        world
    }

    pub(super) fn wait(&mut self, us: u64) {
        self.now = self.now.plus(us);
    }

    /// A send of which only the destination matters: its address and account are its own.
    pub(super) fn send(&mut self, destination: &str) -> SendAnswer {
        let n = self.accounts.len();
        let ip = format!("10.{}.{}.{}", n / 65_536 % 256, n / 256 % 256, n % 256);
        self.send_by(&ip, None, destination, None)
    }

    pub(super) fn send_by(
        &mut self,
        ip: &str,
        account: Option<&str>,
        destination: &str,
        request: Option<&str>,
    ) -> SendAnswer {
        let id = |text: &str| Id::new("id", text).unwrap();
        let mut facts = GuardFacts::new(ip.parse().unwrap());
        facts.account = account.map(id);
        facts.request_id = request.map(id);
        facts.challenge_passed = self.challenge_passed;
        facts.device.known = self.known;
        let answer = self.answer(&facts, destination);
        (
            answer.outcome,
            answer.rule.map(crate::Rule::id),
            answer.retry_after,
        )
    }

    fn answer(&mut self, facts: &GuardFacts, destination: &str) -> Answer {
        let destination = Destination::new(destination).unwrap();
        let guard = Signals::resolve(&self.keyring, GuardOp::OtpSend, facts);
        let signals = SendSignals::resolve(&self.keyring, &self.policy, &guard, &destination);
        let keys = signals.keys();
        let records = self.records(&keys);
        let ranges = signals.ranges.iter();
        let counts: Vec<RangeCounts> = ranges.map(|range| self.counts(range)).collect();
        let command = SendCommand {
            policy: &self.policy,
            once_window: 10 * MINUTE,
            signals: &signals,
            records: &records,
            counts: &counts,
            now: self.now,
        };
        let found = self.rules.evaluate(&command, false);
        if let Some(after) = found.records {
            self.keep(&keys, &after);
        }
        found.answer
    }

    /// A success of a destination.
    pub(super) fn verify(&mut self, destination: &str) -> bool {
        let facts = GuardFacts::new([10, 0, 0, 1].into());
        let guard = Signals::resolve(&self.keyring, GuardOp::OtpSuccess, &facts);
        let destination = Destination::new(destination).unwrap();
        let signals = SendSignals::resolve(&self.keyring, &self.policy, &guard, &destination);
        let keys = signals.keys();
        let mut records = self.records(&keys);
        let (one, ranges) = (&mut records.destination, &mut records.ranges);
        let is_sent_to = verify(&self.policy, one, ranges, self.now);
        if is_sent_to {
            self.keep(&keys, &records);
        }
        is_sent_to
    }

    /// Sends to `count` new numbers that start with `prefix`, each from an address of its own;
    /// every `verified`-th is verified. Returns how many were sent.
    pub(super) fn pump(&mut self, prefix: &str, count: usize, verified: usize) -> usize {
        let mut sent = 0;
        for n in 0..count {
            let number = format!("{prefix}{:06}", self.accounts.len() + n);
            if self.send(&number) == ALLOW {
                sent += 1;
                if verified > 0 && n % verified == 0 {
                    assert!(self.verify(&number));
                }
            }
        }
        sent
    }

    fn counts(&self, range: &RangeSignal) -> RangeCounts {
        let mut counts = RangeCounts::default();
        for shard in range_shards(range.digest) {
            counts.add(self.stored(Some(shard), SendRange::decode).counts());
        }
        counts
    }

    fn records(&self, keys: &SendKeys) -> SendRecords {
        let [first, second] = keys.ranges;
        SendRecords {
            account: self.stored(keys.account, SendAccount::decode),
            network: self.stored(Some(keys.network), SendNetwork::decode),
            destination: self.stored(Some(keys.destination), SendDestination::decode),
            ranges: [
                self.stored(first, SendRange::decode),
                self.stored(second, SendRange::decode),
            ],
        }
    }

    fn stored<T: Default>(
        &self,
        key: Option<KeyPair>,
        decode: fn(&[u8]) -> Result<T, crate::guard::DecodeError>,
    ) -> T {
        let bytes = key.and_then(|key| self.accounts.get(&key.current));
        bytes.map_or_else(T::default, |bytes| decode(bytes).unwrap())
    }

    fn keep(&mut self, keys: &SendKeys, records: &SendRecords) {
        let [first, second] = keys.ranges;
        let all = [
            (keys.account, records.account.encode()),
            (Some(keys.network), records.network.encode()),
            (Some(keys.destination), records.destination.encode()),
            (first, records.ranges[0].encode()),
            (second, records.ranges[1].encode()),
        ];
        for (key, bytes) in all {
            if let Some(key) = key {
                self.accounts.insert(key.current, bytes);
            }
        }
    }
}

#[test]
fn a_record_is_bounded_and_reads_back_whatever_was_sent() {
    let mut world = World::default();
    let policy = &mut world.policy;
    (policy.pause, policy.pause_max) = (0, 0);
    (policy.destination_hour, policy.destination_day) = (0, 0);
    (
        policy.account_hour,
        policy.ip_hour,
        policy.ip_destinations_day,
    ) = (0, 0, 0);
    policy.range.soft_sends = 0;
    policy.range.hard_sends = 0;
    for n in 0..2_000 {
        let number = format!("+3460{:07}", n * (n % 2));
        assert_eq!(
            world.send_by("10.0.0.1", Some("a"), &number, Some("r")).0,
            Outcome::Allow
        );
        world.wait(SECOND + n);
    }
    let longest = world.accounts.values().map(Vec::len).max().unwrap();
    assert!((1_000..8_192).contains(&longest), "{longest} bytes");
}

#[test]
fn a_record_of_a_newer_version_is_left_alone() {
    use crate::guard::DecodeError::{Corrupt, NewerVersion};
    let mut bytes = SendDestination::default().encode();
    assert_eq!(SendDestination::decode(&[]).unwrap_err(), Corrupt);
    bytes.push(0);
    assert_eq!(SendDestination::decode(&bytes).unwrap_err(), Corrupt);
    bytes[0] = 9;
    assert_eq!(SendDestination::decode(&bytes).unwrap_err(), NewerVersion);
    assert_eq!(SendNetwork::decode(&bytes).unwrap_err(), NewerVersion);
    assert_eq!(SendAccount::decode(&bytes).unwrap_err(), NewerVersion);
    assert_eq!(SendRange::decode(&bytes).unwrap_err(), NewerVersion);
}
