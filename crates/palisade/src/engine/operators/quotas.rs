//! API-key quotas as operators and billing see them. A key is named by its hash.

use palisade_core::policy::{PolicySet, Tier, quota_charge};
use palisade_store::{Entry, Registry, StoreError, Take};
use serde::Serialize;

use super::super::{Change, Engine};
use super::overage::{LastMonth, price_of};
use super::{Admin, AdminError};

/// Most quotas on one page.
pub const QUOTAS_PAGE_MAX: usize = 1_000;

/// Use of one API key this month.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Quota))]
pub struct QuotaUsage {
    /// Hash of the API key.
    pub key: String,
    /// Tier of the API key.
    pub tier: String,
    /// Monthly quota in requests; null if unlimited.
    pub quota_limit: Option<u64>,
    /// Requests used this month, overage included.
    pub quota_used: u64,
    /// Requests left this month; null if unlimited.
    pub quota_remaining: Option<u64>,
    /// Start of the next month, Unix time in seconds.
    pub quota_reset: u64,
    /// Requests beyond the quota.
    pub overage: u64,
    /// Price of one request beyond the quota; null if such requests are refused.
    pub overage_price: Option<f64>,
    /// Cost of the overage so far; null if it has no price.
    pub overage_cost: Option<f64>,
    /// The previous month, if the key exceeded its quota in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_month: Option<LastMonth>,
}

/// A page of quotas, ordered by hash.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Quotas))]
pub struct QuotaPage {
    /// The quotas.
    pub quotas: Vec<QuotaUsage>,
    /// Value of `after` for the next page; null on the last page.
    pub next: Option<String>,
}

impl Engine {
    /// Returns the usage of the API key with this hash.
    ///
    /// # Errors
    /// There is no such key, or an error of the store.
    pub async fn quota(&self, hash: &str) -> Result<QuotaUsage, AdminError> {
        let policy = self.policy.load_full();
        let (tier, hash) = self.tier_in_force(&policy, hash)?;
        let mut usage = self.usage(tier, hash).await?;
        usage.last_month = self.last_month().await?.remove(hash);
        Ok(usage)
    }

    /// Usage of registered API keys after `after`, in the order of their hashes.
    ///
    /// # Errors
    /// An error of the store.
    pub async fn quotas(
        &self,
        after: Option<&str>,
        count_max: usize,
    ) -> Result<QuotaPage, AdminError> {
        let policy = self.policy.load_full();
        let mut hashes: Vec<&str> = policy
            .api_keys()
            .map(|(hash, key)| key.usage_of.as_deref().unwrap_or(hash))
            .filter(|hash| after.is_none_or(|after| *hash > after))
            .collect();
        hashes.sort_unstable();
        hashes.dedup();
        let count_max = count_max.clamp(1, QUOTAS_PAGE_MAX);
        let more = hashes.len() > count_max;
        hashes.truncate(count_max);
        let mut page = QuotaPage {
            next: hashes
                .last()
                .filter(|_| more)
                .map(|last| (*last).to_owned()),
            ..QuotaPage::default()
        };
        let mut before = self.last_month().await?;
        for hash in hashes {
            // A key on a tier that is gone is denied: it has no usage to show.
            if let Ok((tier, hash)) = self.tier_in_force(&policy, hash) {
                let mut usage = self.usage(tier, hash).await?;
                usage.last_month = before.remove(hash);
                page.quotas.push(usage);
            }
        }
        Ok(page)
    }

    /// The tier of the key with this hash, and the hash under which its usage is counted.
    pub(super) fn tier_in_force<'p>(
        &self,
        policy: &'p PolicySet,
        hash: &str,
    ) -> Result<(&'p Tier, &'p str), AdminError> {
        let found = policy.key_registration(hash);
        let found = found.ok_or(AdminError::NotFound("API key"))?;
        // The tier that an operator has chosen, if this policy has it.
        let tier = self.tier_of(policy, found.usage);
        let tier = tier.or_else(|| policy.tier(&found.key.tier));
        Ok((tier.ok_or(AdminError::NotFound("tier"))?, found.usage))
    }

    async fn usage(&self, tier: &Tier, hash: &str) -> Result<QuotaUsage, AdminError> {
        let charge = quota_charge(tier, hash).ok_or(AdminError::NotFound("API key"))?;
        let charges = [charge];
        let charged = self
            .link
            .operate(|store| store.charge(&charges, Take::Peek))
            .await?;
        let reading = charged.readings.first().copied().ok_or_else(|| {
            StoreError::Corrupt("a reading is missing from the answer".to_owned())
        })?;
        let limit = tier.quota.map(std::num::NonZero::get);
        let overage = limit.map_or(0, |limit| reading.used.saturating_sub(limit));
        let price = price_of(tier);
        Ok(QuotaUsage {
            key: hash.to_owned(),
            tier: tier.name.to_string(),
            quota_limit: limit,
            quota_used: reading.used,
            quota_remaining: limit.map(|limit| limit.saturating_sub(reading.used)),
            quota_reset: reading.reset_at.unix_seconds_ceil(),
            overage,
            overage_price: price,
            overage_cost: price.map(|price| price * as_f64(overage)),
            last_month: None,
        })
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a month's requests are far below 2^53"
)]
pub(super) const fn as_f64(count: u64) -> f64 {
    count as f64
}

impl Admin<'_> {
    /// Resets the use of an API key in this month to zero.
    ///
    /// # Errors
    /// No such key, no reason, or an error of the store.
    pub async fn quota_reset(&self, hash: &str, reason: &str) -> Result<QuotaUsage, AdminError> {
        check_reason(reason)?;
        let engine = self.engine;
        let policy = engine.policy.load_full();
        let (tier, hash) = engine.tier_in_force(&policy, hash)?;
        let charge = quota_charge(tier, hash).ok_or(AdminError::NotFound("API key"))?;
        let reset = engine
            .link
            .operate(|store| store.reset(std::slice::from_ref(&charge)))
            .await?;
        if reset.done != [true] {
            return Err(StoreError::Unreachable("the quota was not reset".to_owned()).into());
        }
        engine.announce_reset().await?;
        self.record(Change::Reset {
            buckets: 1,
            reason: Some(reason),
            api_key: Some(hash),
        });
        engine.usage(tier, hash).await
    }

    /// Moves a key to another tier, at once on this node and within a second on the others. Its use
    /// so far is kept.
    ///
    /// # Errors
    /// No such key or tier, or an error of the store.
    pub async fn change_tier(
        &self,
        hash: &str,
        to: &str,
        reason: Option<&str>,
    ) -> Result<QuotaUsage, AdminError> {
        reason.map_or(Ok(()), check_reason)?;
        let engine = self.engine;
        let policy = engine.policy.load_full();
        let (from, hash) = engine.tier_in_force(&policy, hash)?;
        let tier = policy.tier(to).ok_or(AdminError::Invalid {
            field: "tier",
            problem: "is not a tier of this policy",
        })?;
        let entry = Entry {
            id: hash.to_owned(),
            bytes: to.as_bytes().to_vec(),
            expires_at: None,
        };
        engine
            .link
            .operate(|store| store.put_entry(Registry::Tiers, entry))
            .await?;
        engine.refresh_tiers().await?;
        engine.announce_reset().await?;
        self.record(Change::TierChanged {
            api_key: hash,
            from: &from.name,
            to: &tier.name,
            reason,
        });
        engine.usage(tier, hash).await
    }
}

/// Checks a reason. People read it in the audit, so it must not be empty.
pub(super) fn check_reason(reason: &str) -> Result<(), AdminError> {
    if reason.trim().is_empty() || reason.len() > 500 {
        return Err(AdminError::Invalid {
            field: "reason",
            problem: "must be 1 to 500 characters",
        });
    }
    Ok(())
}
