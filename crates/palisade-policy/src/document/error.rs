//! Configuration errors: the problem, its place, and the remedy.
//!
//! Messages name keys and policy names, never a value: a value may be a secret or
//! an identifier.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Most errors that are shown; the rest is counted.
const SHOWN_MAX: usize = 100;
/// Most errors that are kept; a file with more is no policy file.
const KEPT_MAX: usize = 1_000;
/// Name, in messages, of the embedded text that a file is overlaid on.
pub(crate) const BUILTIN: &str = "default_policy.toml";
/// Longest stretch of a key that a message repeats, in characters.
const NAME_CHARS_MAX: usize = 64;

/// Where a value was written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// In a file; line and column start at 1.
    File {
        /// The file, as it was named.
        path: PathBuf,
        /// Line.
        line: usize,
        /// Column, in characters.
        column: usize,
        /// Number of characters of the line that the problem is about.
        width: usize,
    },
    /// A file as a whole.
    Whole(PathBuf),
    /// In an environment variable.
    Env(String),
    /// In a command-line flag.
    Flag(&'static str),
    /// Nowhere in particular.
    Nowhere,
}

impl Place {
    /// Whether the place is outside everything that an operator wrote.
    #[must_use]
    pub fn is_default(&self) -> bool {
        match self {
            Self::Nowhere => true,
            Self::File { path, .. } => path == Path::new(BUILTIN),
            Self::Whole(_) | Self::Env(_) | Self::Flag(_) => false,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File {
                path, line, column, ..
            } => write!(f, "{}:{line}:{column}", path.display()),
            Self::Whole(path) => write!(f, "{}", path.display()),
            Self::Env(name) => f.write_str(name),
            Self::Flag(name) => f.write_str(name),
            Self::Nowhere => f.write_str("configuration"),
        }
    }
}

/// Severity of a problem.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The configuration cannot be used.
    #[default]
    Error,
    /// The configuration works, but does not do what was meant, or does something questionable.
    Warning,
}

impl Severity {
    /// The word that messages show.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

/// One thing to correct.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConfigError {
    /// Place of the problem.
    pub place: Place,
    /// Second place that the problem is about.
    pub also: Option<Place>,
    /// Severity of the problem.
    pub severity: Severity,
    /// The problem.
    pub message: String,
    /// The remedy.
    pub hint: Option<String>,
}

impl ConfigError {
    /// An error outside any text.
    #[must_use]
    pub fn nowhere(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::at(Place::Nowhere, message, hint)
    }

    /// An error at a place.
    #[must_use]
    pub fn at(place: Place, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            place,
            also: None,
            severity: Severity::Error,
            message: message.into(),
            hint: Some(hint.into()),
        }
    }

    /// A warning at a place.
    #[must_use]
    pub fn warning(place: Place, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            severity: Severity::Warning,
            ..Self::at(place, message, hint)
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = self.severity.name();
        write!(f, "{}: {severity}: {}", self.place, self.message)?;
        if let Some(also) = &self.also {
            write!(f, "\n  first: {also}")?;
        }
        match &self.hint {
            Some(hint) => write!(f, "\n  hint: {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ConfigError {}

/// Everything that is wrong, in the order of the text. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(Vec<ConfigError>);

impl ConfigErrors {
    /// All of them, ordered; `None` if there are none.
    #[must_use]
    pub fn from_list(mut errors: Vec<ConfigError>) -> Option<Self> {
        errors.sort();
        errors.dedup();
        (!errors.is_empty()).then_some(Self(errors))
    }

    /// Returns the errors as a list.
    #[must_use]
    pub fn into_list(self) -> Vec<ConfigError> {
        self.0
    }

    /// The errors.
    #[must_use]
    pub fn errors(&self) -> &[ConfigError] {
        &self.0
    }
}

impl From<ConfigError> for ConfigErrors {
    fn from(error: ConfigError) -> Self {
        Self(vec![error])
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().take(SHOWN_MAX).enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{error}")?;
        }
        match self.0.len().saturating_sub(SHOWN_MAX) {
            0 => Ok(()),
            more => write!(f, "\n… and {more} more"),
        }
    }
}

impl std::error::Error for ConfigErrors {}

/// Where a node of the tree came from; becomes a [`Place`] when an error is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Bytes of the operator's file.
    File(Range<usize>),
    /// Bytes of the embedded default policy.
    Builtin(Range<usize>),
    /// An environment variable.
    Env(Arc<str>),
    /// A flag.
    Flag(&'static str),
    /// A default of the schema, or nothing at all.
    Nowhere,
}

/// The texts that origins point into.
#[derive(Clone, Copy)]
pub(crate) struct Sources<'a> {
    pub(crate) path: Option<&'a Path>,
    pub(crate) file: &'a str,
    pub(crate) builtin: &'a str,
}

impl<'a> Sources<'a> {
    pub(crate) fn placer(&self) -> Placer<'a> {
        Placer {
            path: self.path.unwrap_or(Path::new("-")),
            file: Lines::new(self.file),
            builtin: Lines::new(self.builtin),
        }
    }
}

/// Turns origins into places.
pub(crate) struct Placer<'a> {
    path: &'a Path,
    file: Lines<'a>,
    builtin: Lines<'a>,
}

impl Placer<'_> {
    pub(crate) fn place(&self, origin: &Origin) -> Place {
        match origin {
            Origin::File(span) => self.file.place(self.path, span),
            Origin::Builtin(span) => self.builtin.place(Path::new(BUILTIN), span),
            Origin::Env(name) => Place::Env(name.to_string()),
            Origin::Flag(name) => Place::Flag(name),
            Origin::Nowhere => Place::Nowhere,
        }
    }
}

/// Where the lines of a text start.
struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn new(text: &'a str) -> Self {
        let breaks = text.match_indices('\n').map(|(at, _)| at + 1);
        Self {
            text,
            starts: std::iter::once(0).chain(breaks).collect(),
        }
    }

    fn place(&self, path: &Path, span: &Range<usize>) -> Place {
        let offset = span.start;
        let line = self.starts.partition_point(|start| *start <= offset);
        let start = self
            .starts
            .get(line.saturating_sub(1))
            .copied()
            .unwrap_or(0);
        let before = self.text.get(start..offset).unwrap_or_default();
        let about = self.text.get(span.clone()).unwrap_or_default();
        let about = about.lines().next().unwrap_or_default();
        Place::File {
            width: about.trim_end().chars().count().max(1),
            path: path.to_owned(),
            line,
            column: before.chars().count() + 1,
        }
    }
}

/// Collects errors while the configuration is read.
#[derive(Default)]
pub struct Sink {
    found: Vec<UnplacedReport>,
    elsewhere: Vec<ConfigError>,
    errors: usize,
}

/// A report whose origin has not been turned into a place yet.
struct UnplacedReport {
    origin: Origin,
    also: Option<Origin>,
    severity: Severity,
    message: String,
    hint: Option<String>,
}

impl Sink {
    pub(crate) fn report(&mut self, origin: &Origin, message: impl Into<String>) {
        self.push(UnplacedReport::error(origin, message.into(), None));
    }

    pub(crate) fn report_with(
        &mut self,
        origin: &Origin,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.push(UnplacedReport::error(
            origin,
            message.into(),
            Some(hint.into()),
        ));
    }

    /// Reports a problem that is about two places.
    pub(crate) fn report_both(
        &mut self,
        origin: &Origin,
        first: &Origin,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.push(UnplacedReport {
            also: Some(first.clone()),
            ..UnplacedReport::error(origin, message.into(), Some(hint.into()))
        });
    }

    /// Warns of something that works, and should be looked at.
    pub(crate) fn warn_with(
        &mut self,
        origin: &Origin,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.push(UnplacedReport {
            severity: Severity::Warning,
            ..UnplacedReport::error(origin, message.into(), Some(hint.into()))
        });
    }

    fn push(&mut self, found: UnplacedReport) {
        if !self.is_full() {
            self.errors += usize::from(found.severity == Severity::Error);
            self.found.push(found);
        }
    }

    /// True if further errors are not kept.
    pub(crate) fn is_full(&self) -> bool {
        self.found.len() >= KEPT_MAX
    }

    /// Adds the errors of another text.
    pub(crate) fn adopt(&mut self, errors: ConfigErrors) {
        self.elsewhere.extend(errors.0);
    }

    /// True if there are no errors; there may be warnings.
    pub(crate) fn is_empty(&self) -> bool {
        self.errors == 0 && self.elsewhere.is_empty()
    }

    /// Everything that was reported, ordered; `None` if there is nothing.
    pub(crate) fn finish(self, sources: Sources<'_>) -> Option<ConfigErrors> {
        let placer = sources.placer();
        let errors = self
            .found
            .into_iter()
            .map(|found| ConfigError {
                place: placer.place(&found.origin),
                also: found.also.map(|also| placer.place(&also)),
                severity: found.severity,
                message: found.message,
                hint: found.hint,
            })
            .chain(self.elsewhere)
            .collect();
        ConfigErrors::from_list(errors)
    }
}

impl UnplacedReport {
    fn error(origin: &Origin, message: String, hint: Option<String>) -> Self {
        Self {
            origin: origin.clone(),
            also: None,
            severity: Severity::Error,
            message,
            hint,
        }
    }
}

/// A key as a message may repeat it: bounded, without control characters.
pub(crate) fn shown(name: &str) -> String {
    let mut shown: String = name.chars().take(NAME_CHARS_MAX).collect();
    if name.chars().nth(NAME_CHARS_MAX).is_some() {
        shown.push('…');
    }
    shown.escape_debug().to_string()
}

/// The candidate that `word` was probably meant to be.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    const SIMILAR_ENOUGH: f64 = 0.8;
    // Bounded, because the comparison takes time in the square of the length.
    let word: String = word.chars().take(NAME_CHARS_MAX).collect();
    let word = word.to_lowercase();
    candidates
        .into_iter()
        .map(|candidate| {
            let similarity = strsim::jaro_winkler(&word, &candidate.to_lowercase());
            (similarity, candidate)
        })
        .filter(|(similarity, _)| *similarity >= SIMILAR_ENOUGH)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}
