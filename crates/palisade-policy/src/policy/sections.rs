//! The tables about the policy as a whole.

use std::path::PathBuf;
use std::time::Duration;

use crate::document::schema::{Schema, Section};
use crate::policy::values::{AgentFragment, SourceUrl, WebUrl};
use crate::policy::{figures, tables};
use crate::section;

section! {
    /// Where policies come from.
    pub struct PolicyTable(Table "policy") {
        /// Source of policies.
        source: SourceUrl = "file";
        /// Whether to start from the embedded default policy; `false` is only what the
        /// file says.
        defaults: bool = "true";
        /// Class of requests that no route gives one. The embedded default policy sets
        /// `write`.
        default_class: Option<String>;
        /// Whether a changed file replaces the policy without a restart.
        reload: bool = "true";
        /// Age at which a tenant's policy is fetched again (also `POLICY_CACHE_TTL`, in
        /// milliseconds).
        cache_ttl: Duration = "30s" where "100ms"..="1day";
        /// Age at which the absence of a tenant's policy is looked up again.
        negative_ttl: Duration = "5s" where "100ms"..="1h";
        /// Tenants whose policies are kept.
        cache_max: u32 = "10000" where "1"..="10000000";
        /// Table or collection that holds tenants' policies.
        collection: String = "rate_limit_policies";
        /// Time after which a call to the source counts as failed.
        timeout: Duration = "2s" where "10ms"..="1min";
    }
}

section! {
    /// Which requests are bots.
    pub struct Bots(Table "bots") {
        /// Fragments of user agents that mark a bot, whatever their case. The embedded
        /// default policy lists well-known scanners.
        patterns: Vec<AgentFragment> = "";
        /// Whether a request without a user agent is a bot on enforcing surfaces.
        missing_user_agent: bool = "true";
    }
}

section! {
    /// Addresses that answers may name.
    pub struct Urls(Table "urls") {
        /// Where a locked-out user finds help.
        support_url: WebUrl = "https://example.com/support";
        /// Where an API key's owner finds a larger tier.
        upgrade_url: WebUrl = "https://example.com/plans";
    }
}

section! {
    /// A second policy that decides beside the first, on counters of its own, and is never
    /// enforced. In the candidate's own file this table has no effect: so the two files
    /// can change places.
    pub struct Candidate(Table "candidate") {
        /// Its file; relative to this one.
        file: Option<PathBuf>;
        /// Buckets that it may hold in each process.
        keys_max: u64 = "1000000" where "1000"..="100000000";
        /// Whether answers say in `X-RateLimit-Candidate` where it differs. Clients see it
        /// wherever they see the other headers.
        header: bool = "false";
    }
}

/// Every table of a policy, in the order of the reference.
pub fn schemas() -> impl Iterator<Item = Schema> {
    std::iter::once(PolicyTable::SCHEMA)
        .chain(tables::schemas())
        .chain([Bots::SCHEMA])
        .chain(figures::schemas())
        .chain([Urls::SCHEMA, Candidate::SCHEMA])
}
