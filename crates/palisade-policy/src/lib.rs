//! Where Palisade's policies come from.
//!
//! [`load`] turns them into a [`Config`], or into all errors at once, each with its
//! place and a hint. Read it in this order: tree (text with places) →
//! schema (what may stand there) → sections, tables, figures (the declarations) →
//! resolve and limits (what they mean together) → load. [`source`] keeps a policy in
//! force while its file changes.

mod decode;
mod env;
mod error;
mod figures;
mod identity;
mod limits;
mod load;
mod reference;
mod resolve;
mod schema;
mod sections;
mod serve;
pub mod source;
mod tables;
mod tenants;
mod tree;
mod unknown;
mod values;

pub use env::{Env, Overrides};
pub use error::{ConfigError, ConfigErrors, Place};
pub use load::{Config, DEFAULT_POLICY, PolicyBundle, load, load_text};
pub use reference::{keys, reference};
pub use resolve::OutcomeRoute;
pub use sections::{
    Admin, Audit, Bots, Candidate, Identity, Jwt, Log, Metrics, PolicyTable, Proxy, Repair,
    Secrets, Server, Store, Urls,
};
pub use tables::{Outcome, UsernameSource};
pub use tenants::FileTenants;
pub use values::{
    AgentFragment, ForwardedHeader, HeaderFamily, HeaderName, JwtAlgorithm, LogFormat, LogLevel,
    OneOrMany, OriginalRequest, PostgresUrl, Rate, Secret, SecretRef, SlashMeaning, SourceUrl,
    StoreUrl, TokenExpiry, Url, WebUrl,
};
