//! Use of API keys beyond their quotas: reported when it begins, and its total is kept for another
//! month (Q-OVERAGE).
//!
//! A quota's bucket starts anew with the month. Every request beyond the quota reads the
//! whole count, so the highest count that any node has seen is the total; nodes write
//! theirs into a registry that they share. A node that is killed loses what it saw in the
//! seconds since it last wrote, unless another request is counted after it.

use std::collections::HashMap;

use palisade_core::decision::Decision;
use palisade_core::facts::RequestFacts;
use palisade_core::policy::{Overage, PolicySet, Tier, hash_api_key};
use palisade_core::time::{MINUTE, Micros, SECOND};
use palisade_store::{Entry, Registry, StoreError};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::super::{Engine, OverageSeen};

/// Wait after the end of a month by which every node has shared its totals.
const SETTLED_AFTER: u64 = 30 * SECOND;
/// Wait after which any node reports a total of a node that is gone.
const ORPHANED_AFTER: u64 = 10 * MINUTE;

/// A past month in which an API key exceeded its quota.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LastMonth {
    /// The month, for example `2026-10`.
    pub month: String,
    /// Requests used in the month, overage included.
    pub quota_used: u64,
    /// Requests beyond the quota.
    pub overage: u64,
    /// Cost of the overage; absent if the tier has no price.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overage_cost: Option<f64>,
}

/// The count of one key in one month, as nodes share it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Total {
    limit: u64,
    used: u64,
    price: Option<f64>,
    tier: String,
    /// Whether the total has been reported.
    settled: bool,
}

impl Total {
    const fn overage(&self) -> u64 {
        self.used.saturating_sub(self.limit)
    }
}

/// Use beyond quotas that this node has seen, by month and key. At most two entries per key of the
/// policy.
#[derive(Default)]
pub(in crate::engine) struct Overages(Mutex<HashMap<String, Total>>);

/// The month of an instant, for example `2026-10`.
fn month_of(at: Micros) -> String {
    let start = at.month_bounds().0.to_rfc3339();
    start.get(..7).unwrap_or_default().to_owned()
}

/// Id of a key's total in a month.
fn id_of(month: &str, hash: &str) -> String {
    format!("{month}:{hash}")
}

impl Engine {
    /// Notes a request that was admitted beyond its key's quota.
    pub(in crate::engine) fn note_overage(
        &self,
        policy: &PolicySet,
        facts: &RequestFacts,
        decision: &Decision,
    ) {
        let Some((quota, limit)) = decision.quota.and_then(|quota| Some((quota, quota.limit?)))
        else {
            return;
        };
        let (Some(key), true) = (&facts.api_key, quota.used > limit) else {
            return;
        };
        if !decision.is_allowed() {
            return;
        }
        let hash = hash_api_key(key.as_str());
        let Ok((tier, hash)) = self.tier_in_force(policy, &hash) else {
            return;
        };
        let cost = facts.cost.map_or(1, std::num::NonZero::get);
        // The count was within the quota before this request: the overage begins here.
        if quota.used.saturating_sub(cost) <= limit {
            self.link.observer().overage(&OverageSeen {
                api_key: hash,
                tier: &tier.name,
                month: None,
                overage: quota.used - limit,
                at: decision.at,
            });
        }
        let total = Total {
            limit,
            used: quota.used,
            price: price_of(tier),
            tier: tier.name.to_string(),
            settled: false,
        };
        self.registries
            .overages
            .raise(id_of(&month_of(decision.at), hash), total);
    }

    /// Shares this node's counts and reports the totals of a month that is over. To be called every
    /// few seconds and before the process ends.
    ///
    /// # Errors
    /// An error of the store; what was not shared is tried again.
    pub async fn settle_overage(&self) -> Result<(), StoreError> {
        let now = self.now();
        let own = self.registries.overages.all();
        // Nearly always there is nothing to share or to settle, and no reason for a store call.
        if own.is_empty() && !is_near_turn(now) {
            return Ok(());
        }
        let mut shared = self.shared_totals().await?;
        for (id, total) in &own {
            let known = shared.get(id);
            if known.is_none_or(|known| known.used < total.used) {
                self.share(id, total).await?;
                shared.insert(id.clone(), total.clone());
            }
        }
        let month = month_of(now);
        let over = shared
            .into_iter()
            .filter(|(id, _)| id.get(..7).is_some_and(|of| of < month.as_str()));
        for (id, total) in over {
            self.settle_key(&id, total, own.contains_key(&id), now)
                .await?;
        }
        Ok(())
    }

    /// Reports a key's total once every node has shared its count.
    async fn settle_key(
        &self,
        id: &str,
        total: Total,
        is_own: bool,
        now: Micros,
    ) -> Result<(), StoreError> {
        let waited = now.0.saturating_sub(now.month_bounds().0.0);
        let due = match is_own {
            true => waited >= SETTLED_AFTER,
            false => waited >= ORPHANED_AFTER,
        };
        if !due {
            return Ok(());
        }
        self.registries.overages.0.lock().remove(id);
        let Some((month, hash)) = id.split_once(':').filter(|_| !total.settled) else {
            return Ok(());
        };
        self.link.observer().overage(&OverageSeen {
            api_key: hash,
            tier: &total.tier,
            month: Some(month),
            overage: total.overage(),
            at: now,
        });
        // Marked after it was reported: a crash in between reports it twice rather than never.
        let settled = true;
        self.share(id, &Total { settled, ..total }).await
    }

    async fn share(&self, id: &str, total: &Total) -> Result<(), StoreError> {
        let entry = Entry {
            id: id.to_owned(),
            bytes: serde_json::to_vec(total).unwrap_or_default(),
            expires_at: Some(end_of_keeping(self.now(), id)),
        };
        self.link
            .operate(|store| store.put_entry(Registry::Overages, entry))
            .await
    }

    async fn shared_totals(&self) -> Result<HashMap<String, Total>, StoreError> {
        let found = self
            .link
            .operate(|store| store.entries(Registry::Overages, None))
            .await?;
        let entries = found.map(|all| all.entries).unwrap_or_default();
        Ok(entries
            .into_iter()
            .filter_map(|entry| Some((entry.id, serde_json::from_slice(&entry.bytes).ok()?)))
            .collect())
    }

    /// Use of keys beyond their quotas in the previous month.
    pub(super) async fn last_month(&self) -> Result<HashMap<String, LastMonth>, StoreError> {
        let (start, _) = self.now().month_bounds();
        let before = month_of(Micros(start.0.saturating_sub(1)));
        let of_key = |(id, total): (String, Total)| {
            let (month, hash) = id.split_once(':').filter(|(month, _)| *month == before)?;
            let overage = total.overage();
            let last = LastMonth {
                month: month.to_owned(),
                quota_used: total.used,
                overage,
                overage_cost: total
                    .price
                    .map(|price| price * super::quotas::as_f64(overage)),
            };
            Some((hash.to_owned(), last))
        };
        let totals = self.shared_totals().await?;
        Ok(totals.into_iter().filter_map(of_key).collect())
    }
}

impl Overages {
    /// Raises a key's total. A lower count does not replace it: counts only grow within a month,
    /// and an operator's reset does not lower the total.
    fn raise(&self, id: String, total: Total) {
        let mut all = self.0.lock();
        let known = all.entry(id).or_default();
        if known.used < total.used {
            *known = total;
        }
    }

    fn all(&self) -> HashMap<String, Total> {
        self.0.lock().clone()
    }
}

/// Whether a month ended recently, so that a node that has just started looks for totals of others.
fn is_near_turn(now: Micros) -> bool {
    now.0.saturating_sub(now.month_bounds().0.0) < 2 * ORPHANED_AFTER
}

/// A total is kept until the end of the month after its own.
fn end_of_keeping(now: Micros, id: &str) -> Micros {
    let (_, next) = now.month_bounds();
    match id.starts_with(&month_of(now)) {
        true => next.month_bounds().1,
        false => next,
    }
}

pub(super) fn price_of(tier: &Tier) -> Option<f64> {
    match tier.overage {
        Overage::Priced(price) if tier.quota.is_some() => Some(price),
        Overage::Priced(_) | Overage::Blocked => None,
    }
}
