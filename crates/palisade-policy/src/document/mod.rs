//! A document: TOML in which every value knows where it was written, overlaid with the environment
//! and the flags, and all errors found at once.
//!
//! The document knows no table itself: its caller declares sections with
//! [`section!`](crate::section) and passes their schemas. The types, the defaults, the bounds, the
//! names of variables, the hints at unknown keys and the reference page all follow from the
//! declarations.
//!
//! Read it in this order: tree (text with places) → schema (what may stand there) →
//! decode (nodes to values) → unknown (what nothing reads) → env (variables and flags).
//!
//! ```
//! use palisade_policy::document::schema::Section;
//! use palisade_policy::document::{Document, Env, Input, Overrides};
//!
//! palisade_policy::section! {
//!     /// A kettle.
//!     struct Kettle(Table "kettle") {
//!         /// How hot it gets, in degrees.
//!         degrees: u8 = "100" where "40"..="100";
//!     }
//! }
//!
//! let (env, flags) = (Env::default(), Overrides::default());
//! let input = Input { path: None, text: "[kettle]\ndegrees = 30", env: &env, flags: &flags, geo: &[] };
//! let tables = [Kettle::SCHEMA];
//! let mut document = Document::parse(input, &tables)?;
//! let kettle = document.table::<Kettle>();
//! let errors = document.finish(kettle).unwrap_err();
//! assert_eq!(errors.to_string(), "-:2:11: error: `kettle.degrees` must be 40 to 100");
//! # Ok::<(), palisade_policy::ConfigErrors>(())
//! ```

pub mod decode;
pub(crate) mod env;
pub mod error;
mod identity;
mod listing;
mod places;
pub mod reference;
pub mod schema;
pub mod tree;
mod unknown;
mod unused;

use std::path::Path;
use std::sync::Arc;

pub use env::{Env, Overrides};
pub use error::{ConfigError, ConfigErrors, Origin, Place, Severity};
pub use listing::Figure;
pub use places::Places;

use crate::geo::GeoFile;
use error::{Sink, Sources};
use schema::{Schema, Section, read_table};
use tree::{Node, Table, merge, parse};

/// Inputs of a document: the file, and the overlays on it.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    /// Name of the file, for the positions that errors state.
    pub path: Option<&'a Path>,
    /// The file's text.
    pub text: &'a str,
    /// Variables; they win over the file.
    pub env: &'a Env,
    /// Flags; they win over everything.
    pub flags: &'a Overrides,
    /// Databases that are open already and need not be read again.
    pub geo: &'a [Arc<GeoFile>],
}

/// A document that is being read.
pub struct Document<'a> {
    pub(crate) input: Input<'a>,
    pub(crate) tables: &'a [Schema],
    pub(crate) root: Table,
    pub(crate) sink: Sink,
    builtin: &'static str,
}

impl<'a> Document<'a> {
    /// Parses the file and reports what no table of `tables` declares.
    ///
    /// # Errors
    /// The text is not TOML: after a syntax error, the rest cannot be trusted to be what was meant.
    /// Everything else is found on the way to [`finish`](Self::finish).
    pub fn parse(input: Input<'a>, tables: &'a [Schema]) -> Result<Self, ConfigErrors> {
        let mut sink = Sink::default();
        let root = parse(input.text, Origin::File, &mut sink);
        let mut document = Self {
            input,
            tables,
            root,
            sink,
            builtin: "",
        };
        // After a syntax error keys may be missing or belong to another table: further errors
        // would mislead.
        if !document.sink.is_empty() {
            return Err(document.into_errors());
        }
        unknown::check(&document.root, tables, &mut document.sink);
        identity::duplicates(&document.root, &mut document.sink);
        Ok(document)
    }

    /// A document with only one key of this one, to read that key in advance. Errors in it are
    /// found again when the whole is read.
    pub(crate) fn probe(&self, path: &str) -> Self {
        let mut root = Table::new();
        if let Some(entry) = tree::lookup(&self.root, path) {
            tree::set(&mut root, path, entry.node.clone());
        }
        Self {
            input: self.input,
            tables: self.tables,
            root,
            sink: Sink::default(),
            builtin: "",
        }
    }

    /// Overlays the file on this text.
    pub(crate) fn start_from(&mut self, builtin: &'static str) {
        let mut root = parse(builtin, Origin::Builtin, &mut self.sink);
        merge(&mut root, std::mem::take(&mut self.root));
        self.root = root;
        self.builtin = builtin;
    }

    /// Overlays the environment and the flags on what was read so far.
    pub fn lay_over(&mut self) {
        env::apply(self.input.env, self.tables, &mut self.root, &mut self.sink);
        self.input.flags.apply(&mut self.root);
        unused::warn(&self.root, self.tables, &mut self.sink);
    }

    /// Sets a key, as if it stood at `origin`.
    pub(crate) fn set(&mut self, path: &str, text: &str, origin: Origin) {
        tree::set(&mut self.root, path, Node::text(text, origin));
    }

    /// Reads a table; `None` if something in it was reported.
    pub fn table<S: Section>(&mut self) -> Option<S> {
        read_table(&self.root, &mut self.sink)
    }

    /// Reports a problem with a key, at the key's place.
    pub fn refuse(
        &mut self,
        table: &str,
        key: &str,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        let origin = tree::origin_of(&self.root, table, key);
        self.sink.report_with(&origin, message, hint);
    }

    /// Warns of a key that works, and should be looked at.
    pub fn warn(
        &mut self,
        table: &str,
        key: &str,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        let origin = tree::origin_of(&self.root, table, key);
        self.sink.warn_with(&origin, message, hint);
    }

    /// Every key of the tables, its value, and its place.
    #[must_use]
    pub fn figures(&self) -> Vec<Figure> {
        listing::of(&self.root, self.tables, &self.sources().placer())
    }

    /// Where every key was written.
    #[must_use]
    pub fn places(&self) -> Places {
        Places::of(&self.root, &self.sources())
    }

    /// Returns `read` if there are no errors.
    ///
    /// # Errors
    /// Everything that was reported, in the order of the text.
    pub fn finish<T>(self, read: Option<T>) -> Result<T, ConfigErrors> {
        self.finish_with_warnings(read).map(|(read, _)| read)
    }

    /// Returns `read` and the warnings if there are no errors.
    ///
    /// # Errors
    /// Everything that was reported, warnings too, in the order of the text.
    pub fn finish_with_warnings<T>(
        self,
        read: Option<T>,
    ) -> Result<(T, Vec<ConfigError>), ConfigErrors> {
        match read {
            Some(read) if self.sink.is_empty() => {
                let sources = self.sources();
                let warnings = self.sink.finish(sources).map(ConfigErrors::into_list);
                Ok((read, warnings.unwrap_or_default()))
            }
            _ => Err(self.into_errors()),
        }
    }

    fn sources(&self) -> Sources<'a> {
        Sources {
            path: self.input.path,
            file: self.input.text,
            builtin: self.builtin,
        }
    }

    fn into_errors(self) -> ConfigErrors {
        let sources = self.sources();
        self.sink.finish(sources).unwrap_or_else(|| {
            ConfigErrors::from(ConfigError::nowhere(
                "the configuration cannot be used",
                "this is a defect: a value was refused without a reason",
            ))
        })
    }
}
