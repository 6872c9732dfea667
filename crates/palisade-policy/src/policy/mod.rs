//! Turns a document into the policy: the meaning of its tables, alone and together.

pub(crate) mod challenge;
mod descriptors;
pub(crate) mod figures;
mod file;
pub(crate) mod limits;
pub(crate) mod load;
pub(crate) mod outcomes;
pub(crate) mod resolve;
mod risks;
pub(crate) mod sections;
mod source;
pub(crate) mod spend;
mod switches;
pub(crate) mod tables;
pub(crate) mod values;

pub use file::{FileSource, FileWatch, Loader, PolicyLoader, Reload};
pub use source::{PolicySource, SourceStatus};
