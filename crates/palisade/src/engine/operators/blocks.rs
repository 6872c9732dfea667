//! What operators see and do: list blocks, lift them, ask why.

use std::net::IpAddr;

use palisade_core::decision::{KeyKind, Level, Outcome};
use palisade_core::facts::{GuardFacts, GuardOp};
use palisade_core::failure::{DegradedKeys, Trust};
use palisade_core::guard::{
    Account, ActiveBlock, Device, Lift, Network, Signals, StandingScore, username_digest,
};
use palisade_core::key::{Domain, Prefix};
use palisade_core::lockout::Lockout;
use palisade_core::policy::Settings;
use palisade_core::record::{Flow, RecordKey, RecordKind, RecordWrite};
use palisade_core::rule::Rule;
use palisade_core::time::{Micros, retry_after_seconds};
use palisade_core::{Digest, Id};
use palisade_store::{Commit, Listed, Record, Store, StoreError, Vitals};
use serde::Serialize;

use super::super::Engine;
use super::super::guard::RETRIES_MAX;
use super::super::link::For;
use super::AdminError;

/// Most blocks that one listing returns.
pub const BLOCKS_LISTED_MAX: usize = 1000;
const PAGE: usize = 500;
/// Pages of the store that one page of blocks looks at.
const PAGES_LOOKED_AT: usize = 20;

/// A block that runs now, as an operator sees it. Everybody is a digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BlockView {
    /// The record it is in, for example `account-login`.
    pub record: &'static str,
    /// The record's digest.
    pub id: String,
    /// The key it is on.
    pub key: KeyKind,
    /// Which device or user agent of the record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub member: Option<String>,
    /// The rule that issued it.
    pub rule: Rule,
    /// SOFT, HARD, or denied by the lockout.
    pub decision: Outcome,
    /// Its level.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<Level>,
    /// When it ends, RFC 3339.
    pub until: String,
    /// Whole seconds until then.
    pub retry_after: u64,
}

/// A score that stands, as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ScoreView {
    /// The record it is in, for example `account-login`.
    pub record: &'static str,
    /// The key it is on.
    pub key: KeyKind,
    /// Which device or user agent of the record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub member: Option<String>,
    /// Points now.
    pub score: u8,
    /// When it falls by a point, RFC 3339.
    pub falls_at: String,
    /// When it is zero, RFC 3339.
    pub gone_at: String,
}

impl ScoreView {
    fn of(key: RecordKey, score: StandingScore) -> Self {
        Self {
            record: key.kind.name(),
            key: score.key,
            member: score.member,
            score: score.score,
            falls_at: score.falls_at.to_rfc3339(),
            gone_at: score.gone_at.to_rfc3339(),
        }
    }
}

/// Where a listing of blocks goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockCursor(RecordKind, Option<String>);

impl std::fmt::Display for BlockCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(kind, cursor) = self;
        write!(
            f,
            "{}.{}",
            kind.name(),
            cursor.as_deref().unwrap_or_default()
        )
    }
}

impl std::str::FromStr for BlockCursor {
    type Err = AdminError;

    fn from_str(text: &str) -> Result<Self, AdminError> {
        let found = text.split_once('.').and_then(|(name, cursor)| {
            let kind = RecordKind::ALL.into_iter().find(|k| k.name() == name)?;
            let cursor = (!cursor.is_empty()).then(|| cursor.to_owned());
            Some(Self(kind, cursor))
        });
        found.ok_or(AdminError::Invalid {
            field: "after",
            problem: "must be what the page before gave as `next`",
        })
    }
}

/// A part of the blocks that run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockPage {
    /// The blocks.
    pub blocks: Vec<BlockView>,
    /// Where to go on; `None` at the end.
    pub next: Option<BlockCursor>,
}

fn kind_after(kind: RecordKind) -> Option<RecordKind> {
    let mut kinds = RecordKind::ALL.into_iter().skip_while(|k| *k != kind);
    kinds.nth(1)
}

/// Which block to lift.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiftTarget {
    /// The record.
    pub record: RecordKey,
    /// Only the block on this key and member; `None` lifts all of the record.
    pub only: Option<(KeyKind, Option<String>)>,
    /// What becomes of the score that led to the block.
    pub score: Score,
}

/// Whether lifting a block also forgives what led to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Score {
    /// The score stays: the next failure meets it.
    #[default]
    Keep,
    /// An account's or a name's score is forgotten: the next failure is a first one.
    Forget,
}

/// Whose blocks to lift, as a person names them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiftSubject {
    /// The account: its records in login and OTP.
    pub account: Option<Id>,
    /// The address: its network records. Beside a username it only says which
    /// lockout is meant.
    pub ip: Option<IpAddr>,
    /// Name or email as typed, with the address it came from: the lockout.
    pub username: Option<Id>,
}

/// What lifting found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lifted {
    /// Records of the subject that exist.
    pub records: usize,
    /// Blocks that were running.
    pub blocks: usize,
}

enum Aggregate {
    Account(Flow, Box<Account>),
    Network(Flow, Box<Network>),
    Device(Flow, Box<Device>),
    Lockout(Box<Lockout>),
}

impl Aggregate {
    fn decode(kind: RecordKind, bytes: &[u8]) -> Option<Self> {
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
            RecordKind::Bucket => None,
        }
    }

    fn blocks(&self, settings: &Settings, key: RecordKey, now: Micros) -> Vec<BlockView> {
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

    fn scores(&self, settings: &Settings, now: Micros) -> Vec<StandingScore> {
        match self {
            Self::Account(_, record) => record.standing_scores(&settings.guard, now),
            Self::Network(_, record) => record.standing_scores(&settings.guard, now),
            Self::Device(_, record) => record.standing_scores(&settings.guard, now),
            Self::Lockout(_) => Vec::new(),
        }
    }

    fn lift(&mut self, settings: &Settings, which: Lift<'_>, now: Micros) -> usize {
        match self {
            Self::Account(_, record) => record.lift(which, now),
            Self::Network(_, record) => record.lift(which, now),
            Self::Device(_, record) => record.lift(which, now),
            Self::Lockout(record) => usize::from(record.lift(&settings.lockout, now)),
        }
    }

    fn forgive(&mut self) {
        match self {
            Self::Account(_, record) => record.forgive(),
            Self::Lockout(record) => record.forgive(),
            Self::Network(..) | Self::Device(..) => {}
        }
    }

    fn encode(&self, settings: &Settings) -> Option<(Vec<u8>, Micros)> {
        let guard = &settings.guard;
        // The heavy API keeps its network record by the login flow's correlation.
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
    // Who passes the challenge need not wait for its end.
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
            decision: Outcome::Deny,
            level: None,
            until: until.to_rfc3339(),
            retry_after: retry_after_seconds(until.since(now)),
        })
        .collect()
}

impl<S: Store> Engine<S> {
    /// Blocks that run now, at most [`BLOCKS_LISTED_MAX`]; true if there are more.
    ///
    /// # Errors
    /// The store's.
    pub async fn blocks(&self) -> Result<(Vec<BlockView>, bool), StoreError> {
        let policy = self.policy.load_full();
        let mut found = Vec::new();
        for kind in RecordKind::ALL {
            let mut cursor: Option<String> = None;
            loop {
                let page = self
                    .link
                    .operate(|store| store.scan(kind, cursor.as_deref(), PAGE))
                    .await?;
                let now = self.link.operate(Vitals::probe).await?;
                for listed in &page.records {
                    if let Some(record) = Aggregate::decode(kind, &listed.record.bytes) {
                        found.extend(record.blocks(&policy.settings, listed.key, now));
                    }
                }
                if found.len() > BLOCKS_LISTED_MAX {
                    found.truncate(BLOCKS_LISTED_MAX);
                    return Ok((found, true));
                }
                cursor = page.next;
                if cursor.is_none() {
                    break;
                }
            }
        }
        Ok((found, false))
    }

    /// A part of the blocks that run now: about `count_max` of them, and where to go on.
    /// However many records there are, a page looks at a bounded number of them, so that
    /// it may have fewer, or none, and still name a next one.
    ///
    /// # Errors
    /// The store's.
    pub async fn blocks_after(
        &self,
        after: Option<&BlockCursor>,
        count_max: usize,
    ) -> Result<BlockPage, StoreError> {
        let settings = &self.policy.load_full().settings;
        let count_max = count_max.clamp(1, BLOCKS_LISTED_MAX);
        let start = BlockCursor(RecordKind::ALL[0], None);
        let mut at = Some(after.cloned().unwrap_or(start));
        let mut page = BlockPage::default();
        for _ in 0..PAGES_LOOKED_AT {
            let Some(BlockCursor(kind, cursor)) = at else {
                break;
            };
            let scanned = self
                .link
                .operate(|store| store.scan(kind, cursor.as_deref(), PAGE.min(count_max)))
                .await?;
            let now = self.link.operate(Vitals::probe).await?;
            for Listed { key, record, .. } in &scanned.records {
                if let Some(record) = Aggregate::decode(kind, &record.bytes) {
                    page.blocks.extend(record.blocks(settings, *key, now));
                }
            }
            at = match scanned.next {
                Some(next) => Some(BlockCursor(kind, Some(next))),
                None => kind_after(kind).map(|kind| BlockCursor(kind, None)),
            };
            if page.blocks.len() >= count_max {
                break;
            }
        }
        page.next = at;
        Ok(page)
    }

    /// Blocks that run on the records that a person's words lead to, and the scores that
    /// stand there.
    pub(super) async fn records_seen(
        &self,
        subject: &LiftSubject,
    ) -> Result<(Vec<BlockView>, Vec<ScoreView>), StoreError> {
        let settings = &self.policy.load_full().settings;
        let keys = self.records_named(subject);
        let (mut blocks, mut scores) = (Vec::new(), Vec::new());
        if keys.is_empty() {
            return Ok((blocks, scores));
        }
        let loaded = self.link.operate(|store| store.load(&keys)).await?;
        for (key, record) in keys.iter().zip(loaded.records) {
            let decoded = record.and_then(|r| Aggregate::decode(key.kind, &r.bytes));
            if let Some(record) = decoded {
                blocks.extend(record.blocks(settings, *key, loaded.now));
                let standing = record.scores(settings, loaded.now);
                scores.extend(standing.into_iter().map(|score| ScoreView::of(*key, score)));
            }
        }
        Ok((blocks, scores))
    }

    /// Blocks that stand against a subject in any flow, without listing the store.
    ///
    /// # Errors
    /// The store's.
    pub async fn blocks_of(&self, facts: &GuardFacts) -> Result<Vec<BlockView>, StoreError> {
        let policy = self.policy.load_full();
        let keys = self.records_of(facts);
        let loaded = self.link.operate(|store| store.load(&keys)).await?;
        let mut found = Vec::new();
        for (key, record) in keys.iter().zip(loaded.records) {
            let decoded = record.and_then(|r| Aggregate::decode(key.kind, &r.bytes));
            if let Some(record) = decoded {
                found.extend(record.blocks(&policy.settings, *key, loaded.now));
            }
        }
        Ok(found)
    }

    /// The records that a subject has, in every flow.
    pub fn records_of(&self, facts: &GuardFacts) -> Vec<RecordKey> {
        let signals = Signals::resolve(&self.keyring, GuardOp::LoginCheck, facts);
        let mut keys = Vec::new();
        for flow in [Flow::Login, Flow::Otp, Flow::Api] {
            let of = signals.keys(flow);
            let lockout = of.lockout.filter(|_| flow == Flow::Login);
            for pair in [of.account, Some(of.network), of.device, lockout]
                .into_iter()
                .flatten()
            {
                keys.push(pair.current);
                keys.extend(pair.previous);
            }
        }
        keys
    }

    /// Ends the blocks of everything that a subject names.
    ///
    /// # Errors
    /// The store's.
    pub async fn lift_of(&self, subject: &LiftSubject, score: Score) -> Result<Lifted, StoreError> {
        let mut lifted = Lifted::default();
        for record in self.records_named(subject) {
            let target = LiftTarget {
                record,
                only: None,
                score,
            };
            let of_record = self.lift(&target).await?;
            lifted.records += of_record.records;
            lifted.blocks += of_record.blocks;
        }
        Ok(lifted)
    }

    /// The digest by which the audit names a subject: the first of its records.
    pub(in crate::engine) fn digest_of(&self, subject: &LiftSubject) -> Option<Digest> {
        let records = self.records_named(subject);
        records.first().map(|record| record.digest)
    }

    fn records_named(&self, subject: &LiftSubject) -> Vec<RecordKey> {
        let account = subject.account.as_ref().map(|account| {
            let digest = self.keyring.hmac(Domain::Account, &[account.as_bytes()]);
            let kinds = vec![
                RecordKind::Account(Flow::Login),
                RecordKind::Account(Flow::Otp),
            ];
            (kinds, digest)
        });
        let prefix = subject.ip.map(Prefix::of);
        let lockout = subject.username.as_ref().zip(prefix).map(|(name, prefix)| {
            let digest = username_digest(&self.keyring, name.as_str(), prefix);
            (vec![RecordKind::Lockout], digest)
        });
        let network = prefix.filter(|_| subject.username.is_none()).map(|prefix| {
            let digest = self.keyring.hmac(Domain::Prefix, &[prefix.bytes()]);
            let flows = [Flow::Login, Flow::Otp, Flow::Api];
            (flows.map(RecordKind::Network).to_vec(), digest)
        });
        let mut records = Vec::new();
        for (kinds, digest) in [account, lockout, network].into_iter().flatten() {
            for kind in kinds {
                let digests = std::iter::once(digest.current).chain(digest.previous);
                records.extend(digests.map(|digest| RecordKey { kind, digest }));
            }
        }
        records
    }

    /// Ends blocks of one record; says how many were running. Other nodes see it
    /// with their next command.
    ///
    /// # Errors
    /// The store's.
    pub async fn lift(&self, target: &LiftTarget) -> Result<Lifted, StoreError> {
        let policy = self.policy.load_full();
        let which = match &target.only {
            None => Lift::All,
            Some((key, member)) => Lift::One(*key, member.as_deref()),
        };
        let calls = self.link.calls(For::Operator);
        for _ in 0..=RETRIES_MAX {
            let keys = [target.record];
            let loaded = calls.make(|store| store.load(&keys)).await?;
            let Some(Some(record)) = loaded.records.into_iter().next() else {
                return Ok(Lifted::default());
            };
            let Some((blocks, write)) =
                lifted(&policy.settings, target, &record, which, loaded.now)
            else {
                return Ok(Lifted::default());
            };
            let writes = [write];
            let nothing_to_write = blocks == 0 && target.score == Score::Keep;
            let commit = calls.make(|store| store.commit(&writes));
            if nothing_to_write || commit.await? == Commit::Done {
                self.forget_block(target);
                return Ok(Lifted { records: 1, blocks });
            }
        }
        Err(StoreError::Exhausted("the record is too busy".to_owned()))
    }

    /// A lifted block must not come back from the cache in an outage.
    fn forget_block(&self, target: &LiftTarget) {
        let id = target.record.digest;
        let member = target
            .only
            .as_ref()
            .and_then(|(_, member)| Digest::from_hex(member.as_deref()?));
        let (flow, kinds): (Flow, &[KeyKind]) = match target.record.kind {
            RecordKind::Account(flow) => (flow, &[KeyKind::Account, KeyKind::AccountDevice]),
            RecordKind::Network(flow) => (
                flow,
                &[KeyKind::Prefix, KeyKind::PrefixAgent, KeyKind::PrefixDevice],
            ),
            RecordKind::Device(flow) => (flow, &[KeyKind::Device]),
            RecordKind::Lockout | RecordKind::Bucket => return,
        };
        let keys = DegradedKeys {
            prefix: id,
            user_agent: member.unwrap_or_default(),
            account: Some(id),
            fingerprint: member.or(Some(id)),
            trust: Trust::Untrusted,
        };
        let mut modes = self.link.modes();
        for kind in kinds {
            modes.guard(flow).blocks().lift(*kind, &keys);
        }
    }
}

fn lifted(
    settings: &Settings,
    target: &LiftTarget,
    record: &Record,
    which: Lift<'_>,
    now: Micros,
) -> Option<(usize, RecordWrite)> {
    let key = target.record;
    let mut aggregate = Aggregate::decode(key.kind, &record.bytes)?;
    let lifted = aggregate.lift(settings, which, now);
    if target.score == Score::Forget {
        aggregate.forgive();
    }
    let (bytes, expires_at) = aggregate.encode(settings)?;
    let write = RecordWrite {
        key,
        expect: record.revision,
        bytes: Some(bytes),
        expires_at,
    };
    Some((lifted, write))
}
