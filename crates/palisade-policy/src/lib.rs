//! Sources of Palisade's policies.
//!
//! [`load`] turns a file into a [`PolicyBundle`], or into all errors at once, each with its place
//! and a hint. There are four modules: [`document`] (text with places, for any tables), `policy`
//! (the meaning of a policy's tables, and the file that is followed while it changes), [`geo`]
//! (databases of countries and networks) and [`tenants`] (tenants' own policies from outside, and their cache).

pub mod document;
pub mod geo;
mod policy;
pub mod tenants;

pub use document::{ConfigError, ConfigErrors, Env, Overrides, Place, Severity};
pub use policy::load::{
    CandidateBundle, DEFAULT_POLICY, PolicyBundle, load, load_text, open, read_file,
};
pub use policy::outcomes::{
    LocationPatterns, Neither, Outcome, OutcomeRoute, Outcomes, UsernameSource,
};
pub use policy::sections::{Bots, Candidate, PolicyTable, Urls, schemas};
pub use policy::spend::{
    ErrorShape, Output, PRICE_UNIT, Price, Prices, Spend, SpendRoute, Spends, UsedSource,
};
pub use policy::values::{AgentFragment, OneOrMany, Rate, SecretSource, SourceUrl, Url, WebUrl};
pub use policy::{FileSource, FileWatch, Loader, PolicyLoader, PolicySource, Reload, SourceStatus};
pub use tenants::FileTenants;
