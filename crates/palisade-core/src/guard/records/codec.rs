//! The byte form of the records: compact, versioned, bounded.
//!
//! A record is one version byte, the instant of its last change, and its fields.
//! Other instants are kept to the microsecond, as signed distances from that
//! instant: six bytes reach 25 days, which is longer than any rule looks back or
//! ahead; sessions and known devices use seven bytes, which reach eight years.

use crate::decision::{Challenge, KeyKind, Level, Outcome};
use crate::key::Digest;
use crate::rule::Rule;
use crate::time::Micros;

use super::sets::{Member, Short, SlidingSet, Watch};
use crate::guard::aggregate::{Answer, Candidate, REASONS_MAX};
use crate::guard::ladder::{Block, Class, Issuer, KeyState, RememberedBlock};
use crate::guard::policy::SET_MAX;

/// A record that cannot be used as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes make no sense (F-CORRUPT).
    #[error("the record is corrupt")]
    Corrupt,
    /// A newer version wrote the record (F-VERSION).
    #[error("the record was written by a newer version; upgrade this node")]
    NewerVersion,
}

type Read<T> = Result<T, DecodeError>;

/// Largest distance of most instants from the record's own: with a sign, six groups of seven bits.
const NEAR: u64 = (1 << 41) - 1;
/// Largest distance for sessions and known devices: with a sign, seven groups of seven bits.
const FAR: u64 = (1 << 48) - 1;

/// Rules that records name, by code. A code is never reused.
const RULES: [(u8, Rule); 18] = [
    (1, Rule::G_THRESHOLD),
    (2, Rule::G_BUDGET),
    (3, Rule::G_RECOVERY),
    (4, Rule::G_EQUILIBRIUM),
    (5, Rule::G_SPRAY),
    (6, Rule::G_ROTATION),
    (7, Rule::G_ROTATION_REPEAT),
    (8, Rule::G_CHURN),
    (9, Rule::G_DILUTION),
    (10, Rule::G_FLOOD),
    (11, Rule::G_WATCH),
    (12, Rule::G_API),
    (13, Rule::A_WINDOW),
    (14, Rule::A_HARD),
    (15, Rule::G_PENDING),
    (16, Rule::G_SPRAY_WIDE),
    (17, Rule::A_CAPTCHA),
    (18, Rule::P_GUARD),
];

/// Records name a key by its position here: append only.
const KEYS: [KeyKind; 7] = [
    KeyKind::Prefix,
    KeyKind::PrefixAgent,
    KeyKind::PrefixDevice,
    KeyKind::Account,
    KeyKind::AccountDevice,
    KeyKind::Device,
    KeyKind::Lockout,
];

/// Records name an outcome by its position here.
const OUTCOMES: [Outcome; 4] = [
    Outcome::Allow,
    Outcome::SoftBlock,
    Outcome::Deny,
    Outcome::HardBlock,
];

fn code_of(rule: Rule) -> u8 {
    RULES
        .iter()
        .find(|(_, known)| *known == rule)
        .map_or(0, |(code, _)| *code)
}

fn index_of<T: PartialEq>(all: &[T], one: &T) -> u8 {
    let index = all.iter().position(|each| each == one).unwrap_or(0);
    u8::try_from(index).unwrap_or(0)
}

fn level_code(level: Option<Level>) -> u8 {
    level.map_or(0, Level::number)
}

/// Writes a record.
pub(crate) struct Writer {
    bytes: Vec<u8>,
    base: Micros,
}

impl Writer {
    pub(crate) fn new(version: u8, base: Micros) -> Self {
        let mut bytes = Vec::with_capacity(256);
        bytes.push(version);
        bytes.extend_from_slice(&base.0.to_le_bytes());
        Self { bytes, base }
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.bytes
    }

    pub(crate) fn byte(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    pub(crate) fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            let [low, ..] = value.to_le_bytes();
            self.bytes.push(low | 0x80);
            value >>= 7;
        }
        let [low, ..] = value.to_le_bytes();
        self.bytes.push(low);
    }

    pub(crate) fn near(&mut self, at: Micros) {
        self.instant(at, NEAR);
    }

    pub(crate) fn far(&mut self, at: Micros) {
        self.instant(at, FAR);
    }

    fn instant(&mut self, at: Micros, reach: u64) {
        let past = self.base.since(at).min(reach);
        let ahead = at.since(self.base).min(reach);
        // The sign is the lowest bit, so that small distances take few bytes.
        self.number(if past > 0 { past << 1 | 1 } else { ahead << 1 });
    }

    pub(crate) fn near_option(&mut self, at: Option<Micros>) {
        self.byte(u8::from(at.is_some()));
        if let Some(at) = at {
            self.near(at);
        }
    }

    pub(crate) fn digest(&mut self, digest: Digest) {
        self.bytes.extend_from_slice(&digest.to_bytes());
    }

    pub(crate) fn short(&mut self, short: Short) {
        self.bytes.extend_from_slice(&short.0.to_be_bytes());
    }

    pub(crate) fn list<T>(&mut self, items: &[T], mut each: impl FnMut(&mut Self, &T)) {
        self.number(items.len() as u64);
        for item in items {
            each(self, item);
        }
    }

    pub(crate) fn times(&mut self, times: &[Micros]) {
        self.list(times, |w, at| w.near(*at));
    }

    pub(crate) fn watch(&mut self, watch: Watch) {
        self.near_option(watch.0);
    }

    pub(crate) fn set(&mut self, set: &SlidingSet) {
        self.list(&set.0, |w, member| {
            w.short(member.who);
            w.near(member.first);
            w.near(member.last);
        });
    }

    pub(crate) fn block(&mut self, block: &Block) {
        let class = match block.class {
            Class::Soft => 0,
            Class::Hard => 1,
        };
        let issuer = match block.issuer {
            Issuer::Familiar => 0,
            Issuer::Stranger => 1,
        };
        self.byte(block.level.number() << 2 | class << 1 | issuer);
        self.byte(code_of(block.rule));
        self.near(block.until);
    }

    pub(crate) fn key_state(&mut self, key: &KeyState) {
        let flags = [
            key.score > 0,
            key.slow,
            key.paused_until > Micros(0),
            key.remembered.is_some(),
            key.block.is_some(),
            key.last_hard.is_some(),
        ];
        self.byte(pack(&flags));
        if key.score > 0 {
            self.byte(key.score);
            self.near(key.anchor);
        }
        if key.paused_until > Micros(0) {
            self.near(key.paused_until);
        }
        if let Some(kept) = key.remembered {
            self.byte(kept.level.number());
            self.near(kept.since);
        }
        if let Some(block) = &key.block {
            self.block(block);
        }
        if let Some(at) = key.last_hard {
            self.near(at);
        }
    }

    pub(crate) fn answer(&mut self, answer: &Answer) {
        let challenge = match answer.challenge {
            None => 0,
            Some(Challenge::Captcha) => 1,
            Some(Challenge::OutOfBand) => 2,
        };
        self.byte(challenge << 2 | index_of(&OUTCOMES, &answer.outcome));
        // 0 stands for no delay, so delays are one more.
        self.number(answer.delay_ms.map_or(0, |ms| u64::from(ms) + 1));
        self.byte(level_code(answer.level));
        if answer.outcome != Outcome::Allow {
            self.byte(answer.rule.map_or(0, code_of));
            self.number(answer.retry_after.unwrap_or(0));
        }
        self.list(&answer.reasons, Self::candidate);
    }

    fn candidate(&mut self, candidate: &Candidate) {
        self.byte(code_of(candidate.rule));
        let outcome = index_of(&OUTCOMES, &candidate.outcome);
        let key = index_of(&KEYS, &candidate.key);
        self.byte(level_code(candidate.level) << 5 | outcome << 3 | key);
        self.number(candidate.retry_after);
    }
}

/// Packs up to eight flags into a byte, the first one lowest.
pub(crate) fn pack(flags: &[bool]) -> u8 {
    flags
        .iter()
        .rev()
        .fold(0, |bits, flag| bits << 1 | u8::from(*flag))
}

/// Reads a record.
pub(crate) struct Reader<'a> {
    version: u8,
    bytes: &'a [u8],
    base: Micros,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8], version: u8) -> Read<Self> {
        let (&found, rest) = bytes.split_first().ok_or(DecodeError::Corrupt)?;
        if found > version {
            return Err(DecodeError::NewerVersion);
        }
        if found == 0 {
            return Err(DecodeError::Corrupt);
        }
        let (base, rest) = rest.split_first_chunk().ok_or(DecodeError::Corrupt)?;
        Ok(Self {
            version: found,
            bytes: rest,
            base: Micros(u64::from_le_bytes(*base)),
        })
    }

    /// The version that wrote the record.
    pub(crate) const fn version(&self) -> u8 {
        self.version
    }

    pub(crate) const fn base(&self) -> Micros {
        self.base
    }

    pub(crate) const fn finish(self) -> Read<()> {
        if self.bytes.is_empty() {
            Ok(())
        } else {
            Err(DecodeError::Corrupt)
        }
    }

    fn take<const N: usize>(&mut self) -> Read<[u8; N]> {
        let (head, rest) = self.bytes.split_first_chunk().ok_or(DecodeError::Corrupt)?;
        self.bytes = rest;
        Ok(*head)
    }

    pub(crate) fn byte(&mut self) -> Read<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    pub(crate) fn number(&mut self) -> Read<u64> {
        let mut value = 0_u64;
        // Nine groups of seven bits: a longer number was not written by us.
        for shift in (0..63).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(DecodeError::Corrupt)
    }

    pub(crate) fn instant(&mut self) -> Read<Micros> {
        let distance = self.number()?;
        let us = distance >> 1;
        Ok(if distance & 1 == 1 {
            self.base.minus(us)
        } else {
            self.base.plus(us)
        })
    }

    pub(crate) fn instant_option(&mut self) -> Read<Option<Micros>> {
        Ok(match self.byte()? {
            0 => None,
            1 => Some(self.instant()?),
            _ => return Err(DecodeError::Corrupt),
        })
    }

    pub(crate) fn digest(&mut self) -> Read<Digest> {
        self.take().map(Digest::from_bytes)
    }

    pub(crate) fn short(&mut self) -> Read<Short> {
        self.take().map(|bytes| Short(u64::from_be_bytes(bytes)))
    }

    pub(crate) fn list<T>(
        &mut self,
        max: usize,
        mut each: impl FnMut(&mut Self) -> Read<T>,
    ) -> Read<Vec<T>> {
        let count = usize::try_from(self.number()?).map_err(|_| DecodeError::Corrupt)?;
        if count > max {
            return Err(DecodeError::Corrupt);
        }
        (0..count).map(|_| each(self)).collect()
    }

    pub(crate) fn times(&mut self, max: usize) -> Read<Vec<Micros>> {
        self.list(max, Self::instant)
    }

    pub(crate) fn watch(&mut self) -> Read<Watch> {
        self.instant_option().map(Watch)
    }

    pub(crate) fn set(&mut self) -> Read<SlidingSet> {
        let members = self.list(SET_MAX, |r| {
            Ok(Member {
                who: r.short()?,
                first: r.instant()?,
                last: r.instant()?,
            })
        })?;
        Ok(SlidingSet(members))
    }

    fn level(&mut self) -> Read<Level> {
        Level::from_number(self.byte()?).ok_or(DecodeError::Corrupt)
    }

    fn rule(&mut self) -> Read<Rule> {
        let code = self.byte()?;
        RULES
            .iter()
            .find(|(known, _)| *known == code)
            .map(|(_, rule)| *rule)
            .ok_or(DecodeError::Corrupt)
    }

    pub(crate) fn block(&mut self) -> Read<Block> {
        let packed = self.byte()?;
        Ok(Block {
            class: if packed & 2 == 0 {
                Class::Soft
            } else {
                Class::Hard
            },
            issuer: if packed & 1 == 0 {
                Issuer::Familiar
            } else {
                Issuer::Stranger
            },
            level: Level::from_number(packed >> 2).ok_or(DecodeError::Corrupt)?,
            rule: self.rule()?,
            until: self.instant()?,
        })
    }

    pub(crate) fn key_state(&mut self) -> Read<KeyState> {
        let flags = self.byte()?;
        let has = |bit: u8| flags & (1 << bit) != 0;
        // No version that is read here sets the other two bits.
        if flags >= 1 << 6 {
            return Err(DecodeError::Corrupt);
        }
        let mut key = KeyState {
            slow: has(1),
            ..KeyState::default()
        };
        if has(0) {
            key.score = self.byte()?;
            key.anchor = self.instant()?;
        }
        if has(2) {
            key.paused_until = self.instant()?;
        }
        if has(3) {
            key.remembered = Some(RememberedBlock {
                level: self.level()?,
                since: self.instant()?,
            });
        }
        if has(4) {
            key.block = Some(self.block()?);
        }
        if has(5) {
            key.last_hard = Some(self.instant()?);
        }
        Ok(key)
    }

    pub(crate) fn answer(&mut self) -> Read<Answer> {
        let packed = self.byte()?;
        let outcome = OUTCOMES[usize::from(packed & 3)];
        let challenge = match packed >> 2 {
            0 => None,
            1 => Some(Challenge::Captcha),
            2 => Some(Challenge::OutOfBand),
            _ => return Err(DecodeError::Corrupt),
        };
        let delay = self.number()?.checked_sub(1).map(u32::try_from).transpose();
        let delay_ms = delay.map_err(|_| DecodeError::Corrupt)?;
        let level = Level::from_number(self.byte()?);
        let (rule, retry_after) = match outcome {
            Outcome::Allow => (None, None),
            _ => (Some(self.rule()?), Some(self.number()?)),
        };
        Ok(Answer {
            outcome,
            level,
            retry_after,
            rule,
            reasons: self.list(REASONS_MAX, Self::candidate)?,
            delay_ms,
            challenge,
        })
    }

    fn candidate(&mut self) -> Read<Candidate> {
        let rule = self.rule()?;
        let packed = self.byte()?;
        Ok(Candidate {
            rule,
            outcome: OUTCOMES[usize::from(packed >> 3 & 3)],
            key: *KEYS
                .get(usize::from(packed & 7))
                .ok_or(DecodeError::Corrupt)?,
            level: Level::from_number(packed >> 5),
            retry_after: self.number()?,
        })
    }
}
