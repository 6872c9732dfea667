//! A stored record of any kind, with the operations that operators need.

use palisade_core::decision::{KeyKind, Outcome};
use palisade_core::guard::{Account, ActiveBlock, Device, Lift, Network, StandingScore};
use palisade_core::lockout::Lockout;
use palisade_core::policy::Settings;
use palisade_core::record::{Flow, RecordKey, RecordKind};
use palisade_core::time::{Micros, retry_after_seconds};

use super::blocks::{BlockView, ScoreView};
use super::meaning;

pub(super) enum Aggregate {
    Account(Flow, Box<Account>),
    Network(Flow, Box<Network>),
    Device(Flow, Box<Device>),
    Lockout(Box<Lockout>),
}

impl Aggregate {
    pub(super) fn decode(kind: RecordKind, bytes: &[u8]) -> Option<Self> {
        match kind {
            RecordKind::Account(flow) => {
                Some(Self::Account(flow, Box::new(Account::decode(bytes).ok()?)))
            }
            RecordKind::Network(flow) => {
                Some(Self::Network(flow, Box::new(Network::decode(bytes).ok()?)))
            }
            RecordKind::Device(flow) => {
                Some(Self::Device(flow, Box::new(Device::decode(bytes).ok()?)))
            }
            RecordKind::Lockout => Some(Self::Lockout(Box::new(Lockout::decode(bytes).ok()?))),
            RecordKind::Reservation
            | RecordKind::SendAccount
            | RecordKind::SendNetwork
            | RecordKind::SendDestination
            | RecordKind::SendRange => None,
        }
    }

    pub(super) fn blocks(
        &self,
        settings: &Settings,
        key: RecordKey,
        now: Micros,
    ) -> Vec<BlockView> {
        let blocks = match self {
            Self::Account(_, record) => record.active_blocks(now),
            Self::Network(_, record) => record.active_blocks(now),
            Self::Device(_, record) => record.active_blocks(now),
            Self::Lockout(record) => return lockout_blocks(record, settings, key, now),
        };
        blocks
            .into_iter()
            .map(|block| view(key, block, now))
            .collect()
    }

    pub(super) fn scores(&self, settings: &Settings, now: Micros) -> Vec<StandingScore> {
        match self {
            Self::Account(_, record) => record.standing_scores(&settings.guard, now),
            Self::Network(_, record) => record.standing_scores(&settings.guard, now),
            Self::Device(_, record) => record.standing_scores(&settings.guard, now),
            Self::Lockout(_) => Vec::new(),
        }
    }

    pub(super) fn lift(&mut self, settings: &Settings, which: Lift<'_>, now: Micros) -> usize {
        match self {
            Self::Account(_, record) => record.lift(which, now),
            Self::Network(_, record) => record.lift(which, now),
            Self::Device(_, record) => record.lift(which, now),
            Self::Lockout(record) => usize::from(record.lift(&settings.lockout, now)),
        }
    }

    pub(super) fn forgive(&mut self) {
        match self {
            Self::Account(_, record) => record.forgive(),
            Self::Lockout(record) => record.forgive(),
            Self::Network(..) | Self::Device(..) => {}
        }
    }

    pub(super) fn encode(&self, settings: &Settings) -> Option<(Vec<u8>, Micros)> {
        let guard = &settings.guard;
        // Network records of the heavy API expire by the login flow's correlation settings.
        let of = |flow| guard.flow(flow).or_else(|| guard.flow(Flow::Login));
        Some(match self {
            Self::Account(flow, record) => (record.encode(), record.expires_at(guard, of(*flow)?)),
            Self::Network(flow, record) => {
                let until = record.expires_at(guard, &of(*flow)?.correlation);
                (record.encode(), until)
            }
            Self::Device(flow, record) => {
                let until = record.expires_at(guard, &of(*flow)?.correlation);
                (record.encode(), until)
            }
            Self::Lockout(record) => (record.encode(), record.expires_at(&settings.lockout)),
        })
    }
}

fn view(key: RecordKey, block: ActiveBlock, now: Micros) -> BlockView {
    BlockView {
        record: key.kind.name(),
        id: key.digest.hex(),
        key: block.key,
        member: block.member,
        rule: block.rule,
        words: meaning(block.rule),
        decision: block.outcome,
        level: Some(block.level),
        until: block.until.to_rfc3339(),
        retry_after: retry_after_seconds(block.until.since(now)),
    }
}

fn lockout_blocks(
    record: &Lockout,
    settings: &Settings,
    key: RecordKey,
    now: Micros,
) -> Vec<BlockView> {
    let policy = &settings.lockout;
    let after = |seconds: u64| now.plus(seconds * 1_000_000);
    let denials = record.denials(policy, now).into_iter();
    let denials = denials.map(|denial| (denial.rule, after(denial.retry_after)));
    // A client that passes the challenge need not wait for its end.
    let unpassed = record.unpassed(policy, now).map(|denial| denial.rule);
    let unpassed = unpassed.zip(record.challenged_until(policy));
    denials
        .chain(unpassed)
        .map(|(rule, until)| BlockView {
            record: key.kind.name(),
            id: key.digest.hex(),
            key: KeyKind::Lockout,
            member: None,
            rule,
            words: meaning(rule),
            decision: Outcome::Deny,
            level: None,
            until: until.to_rfc3339(),
            retry_after: retry_after_seconds(until.since(now)),
        })
        .collect()
}

impl ScoreView {
    pub(super) fn of(key: RecordKey, score: &StandingScore) -> Self {
        Self {
            record: key.kind.name(),
            key: score.key,
            score: score.score,
            falls_at: score.falls_at.to_rfc3339(),
            gone_at: score.gone_at.to_rfc3339(),
        }
    }
}
