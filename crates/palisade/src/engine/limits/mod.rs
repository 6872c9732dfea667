//! Requests against limits and quotas. Read [`check`] first: a request from its facts
//! to its decision. [`charge`] takes what it costs, from buckets that live here
//! ([`near`], [`lease`]) and from the store; [`denials`] spares the store what it has
//! refused already; [`fallback`] decides while it cannot be asked. [`descriptors`] are what
//! an Envoy rate-limit service asks, on the same counters. [`receipts`] say what was charged,
//! and [`refund`] gives it back. [`keyed`] is beside all that: buckets that a caller figures
//! itself, [`reserved`] what reservations ask of the buckets, [`overdraft`] what is charged although
//! it is refused.

pub(super) mod both_names;
mod charge;
mod check;
mod denials;
mod descriptors;
mod fallback;
mod foresee;
mod keyed;
mod lease;
mod near;
mod overdraft;
mod receipts;
mod refund;
mod reserved;

use std::collections::HashSet;
use std::sync::Arc;

use arc_swap::ArcSwap;
use palisade_core::Digest;
use palisade_core::failure::FallbackPolicy;
use palisade_core::plan::Charge;
use palisade_core::policy::{Accuracy, Limit};
use palisade_core::time::Clock;

use super::link::{LocalStore, local_store};
use denials::Denials;
use descriptors::Beside;
use fallback::CapLimits;
use lease::{Leases, is_leasable};
use receipts::Receipts;

pub use check::RequestAnswer;
pub use descriptors::{DescriptorAnswer, DescriptorStatus, DescriptorVerdict, Figure};
pub use keyed::{KEYED_MAX, Keyed, KeyedAnswer};
pub use refund::RefundOutcome;
pub(super) use reserved::{limit_named, readings_of};

/// What this node keeps of limits beside the store.
pub(super) struct Limits {
    /// Whether other nodes use the same store: then tokens are leased and denials
    /// remembered.
    is_shared: bool,
    /// Buckets of this process alone.
    local: LocalStore,
    leases: Leases,
    denials: Denials,
    /// What calls of Envoy were told that were denied.
    beside: Beside,
    cap_limits: ArcSwap<CapLimits>,
    receipts: Receipts,
    /// What buckets belong to that a caller figures itself.
    keyed: Limit,
}

impl Limits {
    pub(super) fn new(is_shared: bool, clock: &Arc<dyn Clock>, fallback: &FallbackPolicy) -> Self {
        Self {
            is_shared,
            local: local_store(clock),
            leases: Leases::default(),
            denials: Denials::default(),
            beside: Beside::default(),
            cap_limits: ArcSwap::from_pointee(CapLimits::new(fallback)),
            receipts: Receipts::new(),
            keyed: keyed::limit(),
        }
    }

    /// Takes over the figures of a new policy.
    pub(super) fn reconfigure(&self, fallback: &FallbackPolicy) {
        self.cap_limits.store(Arc::new(CapLimits::new(fallback)));
    }

    /// What is known under a policy that has gone goes, too; leased tokens go back.
    pub(super) fn retire(&self) {
        self.leases.retire();
        self.denials.clear();
        self.beside.clear();
    }

    /// Drops cached denials and leased tokens: the next request asks the store.
    pub(super) fn forget_cached(&self) {
        self.leases.clear();
        self.denials.clear();
        self.beside.clear();
    }

    /// Something was given back to these buckets: what is remembered of them goes, tokens
    /// and all other buckets stay.
    pub(super) fn reopen(&self, buckets: &HashSet<Digest>) {
        self.denials.forget(buckets);
        for id in buckets {
            self.leases.reopen(*id);
        }
    }

    /// The buckets of this process alone.
    pub(super) const fn local(&self) -> &LocalStore {
        &self.local
    }

    /// Leased buckets and denials that are remembered.
    pub(super) fn cached(&self) -> usize {
        self.leases.len() + self.denials.len()
    }

    /// Counted in the store, each request by itself. So is a leased limit on a store that
    /// nobody shares: batches would spare no call, and the store outlives this process
    /// (L-DURABLE).
    fn is_exact(&self, charge: &Charge<'_>) -> bool {
        match charge.limit.def.accuracy {
            Accuracy::Exact => true,
            Accuracy::Local => false,
            Accuracy::Leased if self.is_shared => !is_leasable(charge.spec),
            Accuracy::Leased => !charge.limit.def.throttle,
        }
    }

    /// Counted in this process, and forgotten when it ends. A leased throttle on a store
    /// that nobody shares is too: it counts a second, and is asked before the store is.
    pub(super) fn is_local(&self, charge: &Charge<'_>) -> bool {
        match charge.limit.def.accuracy {
            Accuracy::Local => true,
            Accuracy::Leased => !self.is_shared && charge.limit.def.throttle,
            Accuracy::Exact => false,
        }
    }
}
