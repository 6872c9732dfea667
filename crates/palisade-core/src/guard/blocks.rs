//! Blocks as operators see and lift them: active blocks of a record, and their end.

use crate::decision::{KeyKind, Level, Outcome};
use crate::rule::Rule;
use crate::time::Micros;

use super::ladder::{Block, KeyState};
use super::records::{Account, Device, Network};

/// A block that runs now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveBlock {
    /// Kind of the blocked key.
    pub key: KeyKind,
    /// User agent or device within the record, as a digest; `None` for the record itself.
    pub member: Option<String>,
    /// The rule that issued it.
    pub rule: Rule,
    /// SOFT or HARD.
    pub outcome: Outcome,
    /// Level of the block.
    pub level: Level,
    /// When the block ends.
    pub until: Micros,
}

/// Selection of blocks to lift.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lift<'a> {
    /// All blocks of the record.
    All,
    /// The block on this key and member.
    One(KeyKind, Option<&'a str>),
}

impl Lift<'_> {
    fn covers(self, key: KeyKind, member: Option<&str>) -> bool {
        match self {
            Self::All => true,
            Self::One(kind, who) => kind == key && who == member,
        }
    }
}

fn active(key: KeyKind, member: Option<String>, block: &Block) -> ActiveBlock {
    ActiveBlock {
        key,
        member,
        rule: block.rule,
        outcome: block.class.outcome(),
        level: block.level,
        until: block.until,
    }
}

fn of_key(key: KeyKind, state: &KeyState, now: Micros) -> Option<ActiveBlock> {
    state.running(now).map(|block| active(key, None, block))
}

impl Account {
    /// The account's and its devices' running blocks.
    #[must_use]
    pub fn active_blocks(&self, now: Micros) -> Vec<ActiveBlock> {
        let devices = self.devices.iter().filter_map(|device| {
            let block = device.key.running(now)?;
            Some(active(KeyKind::AccountDevice, Some(device.id.hex()), block))
        });
        of_key(KeyKind::Account, &self.key, now)
            .into_iter()
            .chain(devices)
            .collect()
    }

    /// Ends the selected blocks; returns how many of them were running.
    pub fn lift(&mut self, which: Lift<'_>, now: Micros) -> usize {
        let mut lifted = 0;
        if which.covers(KeyKind::Account, None) {
            lifted += usize::from(self.key.lift(now));
        }
        for device in &mut self.devices {
            if which.covers(KeyKind::AccountDevice, Some(&device.id.hex())) {
                lifted += usize::from(device.key.lift(now));
            }
        }
        self.touched = now;
        lifted
    }

    /// Forgets what led to blocks: the scores, the levels reached and the SOFT blocks
    /// issued, so that the next failure is judged as a first one. Known devices,
    /// sessions and the day's budget stay: they are no punishment.
    pub fn forgive(&mut self) {
        self.key = KeyState::BLANK;
        for device in &mut self.devices {
            device.key = KeyState::BLANK;
        }
        self.soft_blocks.clear();
    }
}

impl Network {
    /// The prefix's, its user agents' and its fingerprints' running blocks.
    #[must_use]
    pub fn active_blocks(&self, now: Micros) -> Vec<ActiveBlock> {
        let agents = self.agents.iter().filter_map(|agent| {
            let block = agent.key.running(now)?;
            Some(active(KeyKind::PrefixAgent, Some(agent.id.hex()), block))
        });
        let visitors = self.visitors.iter().filter_map(|visitor| {
            let block = visitor.block.as_ref().filter(|block| block.until > now)?;
            Some(active(KeyKind::PrefixDevice, Some(visitor.id.hex()), block))
        });
        of_key(KeyKind::Prefix, &self.key, now)
            .into_iter()
            .chain(agents)
            .chain(visitors)
            .collect()
    }

    /// Ends the selected blocks; returns how many of them were running.
    pub fn lift(&mut self, which: Lift<'_>, now: Micros) -> usize {
        let mut lifted = 0;
        if which.covers(KeyKind::Prefix, None) {
            lifted += usize::from(self.key.lift(now));
        }
        for agent in &mut self.agents {
            if which.covers(KeyKind::PrefixAgent, Some(&agent.id.hex())) {
                lifted += usize::from(agent.key.lift(now));
            }
        }
        for visitor in &mut self.visitors {
            if which.covers(KeyKind::PrefixDevice, Some(&visitor.id.hex())) {
                let block = visitor.block.take();
                lifted += usize::from(block.is_some_and(|block| block.until > now));
            }
        }
        self.touched = now;
        lifted
    }
}

impl Device {
    /// The fingerprint's running block.
    #[must_use]
    pub fn active_blocks(&self, now: Micros) -> Vec<ActiveBlock> {
        of_key(KeyKind::Device, &self.key, now)
            .into_iter()
            .collect()
    }

    /// Ends the block if it is selected; returns how many were running.
    pub fn lift(&mut self, which: Lift<'_>, now: Micros) -> usize {
        let covered = which.covers(KeyKind::Device, None);
        self.touched = now;
        usize::from(covered && self.key.lift(now))
    }
}
