//! Active blocks and current scores for operators.

use palisade_core::decision::{KeyKind, Level, Outcome};
use palisade_core::facts::{GuardFacts, GuardOp, NO_ADDRESS};
use palisade_core::guard::Signals;
use palisade_core::record::{Flow, RecordKey, RecordKind};
use palisade_core::rule::Rule;
use palisade_store::{ListedRecord, StoreError, Vitals};
use serde::Serialize;

use super::super::Engine;
use super::aggregate::Aggregate;
use super::{AdminError, LiftSubject, spellings};

/// Most blocks that one listing returns.
pub const BLOCKS_LISTED_MAX: usize = 1000;
const PAGE: usize = 500;
/// Most pages of the store that are scanned for one page of blocks.
const PAGES_LOOKED_AT: usize = 20;

/// One active block. The blocked subject is shown as a digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Block))]
pub struct BlockView {
    /// Kind of the record that holds the block, for example `account-login`.
    pub record: &'static str,
    /// Digest of the record.
    pub id: String,
    /// Blocked guard key, for example `K4`.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub key: KeyKind,
    /// The device or user agent within the record, if only that one is blocked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub member: Option<String>,
    /// Id of the rule that issued the block.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub rule: Rule,
    /// Meaning of the rule, in words.
    pub words: &'static str,
    /// `soft_block`, `hard_block` or `deny`.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub decision: Outcome,
    /// Ladder level, `L1` to `L6`; null if the block has none.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub level: Option<Level>,
    /// End of the block, RFC 3339.
    pub until: String,
    /// Whole seconds until the block ends.
    pub retry_after: u64,
}

/// Current score of one guard key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Points))]
pub struct ScoreView {
    /// Kind of the record that holds the score, for example `account-login`.
    pub record: &'static str,
    /// Scored guard key, for example `K4`.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub key: KeyKind,
    /// Current number of points.
    pub score: u8,
    /// Time at which the score falls by one point, RFC 3339.
    pub falls_at: String,
    /// Time at which the score reaches zero, RFC 3339.
    pub gone_at: String,
}

/// Position at which a listing of blocks continues.
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

/// One page of active blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockPage {
    /// The blocks.
    pub blocks: Vec<BlockView>,
    /// Position of the next page; `None` at the end.
    pub next: Option<BlockCursor>,
}

fn kind_after(kind: RecordKind) -> Option<RecordKind> {
    let mut kinds = RecordKind::ALL.into_iter().skip_while(|k| *k != kind);
    kinds.nth(1)
}

impl Engine {
    /// Lists active blocks, at most [`BLOCKS_LISTED_MAX`]; true if there are more.
    ///
    /// # Errors
    /// An error of the store.
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
                // Blocks end by the store's clock.
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

    /// Lists about `count_max` active blocks, and the position of the next page. The number of
    /// records that one page scans is bounded, so a page may have fewer blocks, or none, and still
    /// name a next one.
    ///
    /// # Errors
    /// An error of the store.
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
            for ListedRecord { key, record, .. } in &scanned.records {
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

    /// Active blocks and current scores of the records that a subject leads to.
    pub(super) async fn records_seen(
        &self,
        subject: &LiftSubject,
    ) -> Result<(Vec<BlockView>, Vec<ScoreView>), StoreError> {
        self.seen_in(&self.records_named(subject)).await
    }

    /// Active blocks of a subject in any flow, found without a scan of the store.
    ///
    /// # Errors
    /// An error of the store.
    pub async fn blocks_of(&self, facts: &GuardFacts) -> Result<Vec<BlockView>, StoreError> {
        let (blocks, _) = self.seen_in(&self.records_of(facts)).await?;
        Ok(blocks)
    }

    async fn seen_in(
        &self,
        keys: &[RecordKey],
    ) -> Result<(Vec<BlockView>, Vec<ScoreView>), StoreError> {
        let settings = &self.policy.load_full().settings;
        let (mut blocks, mut scores) = (Vec::new(), Vec::new());
        if keys.is_empty() {
            return Ok((blocks, scores));
        }
        let loaded = self.link.operate(|store| store.load(keys)).await?;
        for (key, record) in keys.iter().zip(loaded.records) {
            let decoded = record.and_then(|r| Aggregate::decode(key.kind, &r.bytes));
            if let Some(record) = decoded {
                blocks.extend(record.blocks(settings, *key, loaded.now));
                let standing = record.scores(settings, loaded.now);
                scores.extend(standing.iter().map(|score| ScoreView::of(*key, score)));
            }
        }
        Ok((blocks, scores))
    }

    /// The keys of a subject's records, in every flow and under every spelling of its account.
    /// Without an address ([`NO_ADDRESS`]) they include no network record and no lockout.
    pub fn records_of(&self, facts: &GuardFacts) -> Vec<RecordKey> {
        let mut signals = Signals::resolve(&self.keyring, GuardOp::LoginCheck, facts);
        if signals.username.is_none() {
            // Behind the proxy the account is the name that was typed.
            signals.count_by_account(&self.keyring, facts);
        }
        let has_address = facts.ip != NO_ADDRESS;
        let mut keys = facts.account.as_ref().map_or_else(Vec::new, |account| {
            spellings::account_records(&self.keyring, account)
        });
        for flow in [Flow::Login, Flow::Otp, Flow::Api] {
            let of = signals.keys(flow);
            let network = Some(of.network).filter(|_| has_address);
            let lockout = of.lockout.filter(|_| has_address && flow == Flow::Login);
            for pair in [network, of.device, lockout].into_iter().flatten() {
                keys.push(pair.current);
                keys.extend(pair.previous);
            }
        }
        keys
    }
}
