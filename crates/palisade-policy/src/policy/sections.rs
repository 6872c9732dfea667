//! The tables about the policy as a whole.

use std::path::PathBuf;
use std::time::Duration;

use crate::document::schema::{Schema, Section};
use crate::geo::PlacesTable;
use crate::policy::challenge::ChallengeTable;
use crate::policy::values::{AgentFragment, SourceUrl, WebUrl};
use crate::policy::{figures, tables};
use crate::section;

section! {
    /// Source of policies, and how they are cached.
    pub struct PolicyTable(Table "policy") {
        /// Source of policies.
        source: SourceUrl = "file";
        /// Whether the file extends the embedded default policy. With `false`, only the file
        /// counts.
        defaults: bool = "true";
        /// Class of requests that get none from a route. The embedded default policy sets `write`.
        default_class: Option<String>;
        /// Whether a changed file replaces the policy without a restart.
        reload: bool = "true";
        /// Age at which a tenant's policy is fetched again (also `POLICY_CACHE_TTL`, in
        /// milliseconds).
        cache_ttl: Duration = "30s" where "100ms"..="1day";
        /// Age at which the absence of a tenant's policy is looked up again.
        negative_ttl: Duration = "5s" where "100ms"..="1h";
        /// Most tenants whose policies are cached.
        cache_max: u32 = "10000" where "1"..="10000000";
        /// Table or collection that holds tenants' policies.
        collection: String = "rate_limit_policies";
        /// Time after which a call to the source counts as failed.
        timeout: Duration = "2s" where "10ms"..="1min";
    }
}

section! {
    /// Signs by which a request counts as a bot's.
    pub struct Bots(Table "bots") {
        /// Parts of user agents that mark a bot, regardless of letter case. The embedded default
        /// policy lists well-known scanners.
        patterns: Vec<AgentFragment> = "";
        /// Whether a request without a user agent counts as a bot's on enforcing surfaces.
        missing_user_agent: bool = "true";
    }
}

section! {
    /// Links in answers.
    pub struct Urls(Table "urls") {
        /// Page with help for users who are locked out.
        support_url: WebUrl = "https://example.com/support";
        /// Page on which the owner of an API key finds larger tiers.
        upgrade_url: WebUrl = "https://example.com/plans";
    }
}

section! {
    /// A second policy that is evaluated beside the one in force, on counters of its own, and is
    /// never enforced. This table has no effect in the candidate's own file, so that the two files
    /// can be swapped.
    pub struct Candidate(Table "candidate") {
        /// File of the candidate policy, relative to this file.
        file: Option<PathBuf>;
        /// Most buckets of the candidate in each process.
        keys_max: u64 = "1000000" where "1000"..="100000000";
        /// Whether answers show in `X-RateLimit-Candidate` that the candidate decides differently.
        /// Clients see this header wherever they see the others.
        header: bool = "false";
    }
}

/// Every table of a policy, in the order of the reference.
pub fn schemas() -> impl Iterator<Item = Schema> {
    std::iter::once(PolicyTable::SCHEMA)
        .chain(tables::schemas())
        .chain([Bots::SCHEMA])
        .chain(figures::schemas())
        .chain([
            ChallengeTable::SCHEMA,
            PlacesTable::SCHEMA,
            Urls::SCHEMA,
            Candidate::SCHEMA,
        ])
}
