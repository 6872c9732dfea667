//! Loads the whole policy, with the candidate if there is one, into a [`PolicyBundle`].

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use palisade_core::headers::HeaderFamilies;
use palisade_core::path::EncodedSlash;
use palisade_core::policy::{PolicySet, Settings};

use crate::document::env::{Env, Overrides};
use crate::document::error::{ConfigError, ConfigErrors, Origin, Place};
use crate::document::schema::Schema;
use crate::document::{Document, Input};
use crate::geo::{self, GeoSettings};
use crate::policy::outcomes::Outcomes;
use crate::policy::resolve::resolve;
use crate::policy::sections::{Bots, Candidate, PolicyTable};
use crate::policy::spend::Spends;
use crate::policy::values::SourceUrl;
use crate::policy::{challenge, figures, risks, sections, switches};
use crate::tenants::file::{self as tenants, FileTenants};

/// The policy that `defaults = true` starts from.
pub const DEFAULT_POLICY: &str = include_str!("default_policy.toml");

/// Largest policy file, in bytes.
const FILE_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// Everything that decisions depend on: checked, bounded. A reload replaces it as a whole.
#[derive(Clone)]
pub struct PolicyBundle {
    /// Routes, limits, clients, keys, tiers, and all other settings.
    pub policy: Arc<PolicySet>,
    /// `[policy]`: where tenants' own policies come from.
    pub source: PolicyTable,
    /// `[bots]`, for surfaces that see the client's own request.
    pub bots: Bots,
    /// Routes on which the proxy reports how a login ended.
    pub outcomes: Arc<Outcomes>,
    /// Routes whose costs the proxy reads.
    pub spends: Arc<Spends>,
    /// `[places]`: countries and networks.
    pub geo: GeoSettings,
    /// `[[tenant]]`: overrides that stand in the file itself.
    pub tenants: Arc<FileTenants>,
    /// A second policy that is evaluated on counters of its own and never enforced.
    pub candidate: Option<CandidateBundle>,
    /// The file of the candidate.
    pub candidate_file: Option<PathBuf>,
}

/// A policy that is evaluated in parallel with the enforced one, as it would be if it were
/// promoted.
#[derive(Clone)]
pub struct CandidateBundle {
    /// Routes, limits and settings.
    pub policy: Arc<PolicySet>,
    /// Tenants of its own file; `None` where tenants come from elsewhere.
    pub tenants: Option<Arc<FileTenants>>,
    /// Buckets that it may hold.
    pub keys_max: u64,
    /// Whether answers report where its decision differs.
    pub header: bool,
}

/// Shows counts only, and no identifiers.
impl fmt::Debug for PolicyBundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyBundle")
            .field("revision", &self.policy.revision)
            .field("limits", &self.policy.limits().len())
            .finish_non_exhaustive()
    }
}

/// Reads a policy: flags win over the environment, the environment over the file, the file over the
/// defaults. A service's own tables are unknown here: a service opens the [`Document`] itself.
///
/// # Errors
/// All problems, each with its place.
pub fn load(
    path: Option<&Path>,
    env: &Env,
    flags: &Overrides,
) -> Result<PolicyBundle, ConfigErrors> {
    let text = path.map(read_file).transpose()?.unwrap_or_default();
    let input = Input {
        path,
        text: &text,
        env,
        flags,
        geo: &[],
    };
    load_revision(input, 1)
}

/// Reads a policy that is already in memory, as if it stood in `path`.
///
/// # Errors
/// As [`load`].
pub fn load_text(
    path: &Path,
    text: &str,
    env: &Env,
    flags: &Overrides,
) -> Result<PolicyBundle, ConfigErrors> {
    let input = Input {
        path: Some(path),
        text,
        env,
        flags,
        geo: &[],
    };
    load_revision(input, 1)
}

/// Reads `input` as a policy's next revision.
pub(crate) fn load_revision(input: Input<'_>, revision: u64) -> Result<PolicyBundle, ConfigErrors> {
    let tables: Vec<Schema> = sections::schemas().collect();
    let mut document = open(input, &tables)?;
    let bundle = document.policy(revision, HeaderFamilies::default(), EncodedSlash::default());
    document.finish(bundle)
}

/// Opens a document that has a policy among `tables`: defaults, file, environment and
/// flags as one.
///
/// # Errors
/// The text is not TOML.
pub fn open<'a>(input: Input<'a>, tables: &'a [Schema]) -> Result<Document<'a>, ConfigErrors> {
    let mut document = Document::parse(input, tables)?;
    if starts_from_defaults(&document) {
        document.start_from(DEFAULT_POLICY);
    }
    switches::cache_ttl(&mut document);
    document.lay_over();
    Ok(document)
}

/// Reads in advance whether the policy starts from the defaults: they are needed before the
/// document is complete.
fn starts_from_defaults(document: &Document<'_>) -> bool {
    let mut only = document.probe("policy.defaults");
    only.lay_over();
    only.table::<PolicyTable>()
        .is_none_or(|table| table.defaults)
}

/// Reads a policy file, bounded.
///
/// # Errors
/// It cannot be read, is too large or is not UTF-8.
pub fn read_file(path: &Path) -> Result<String, ConfigErrors> {
    use std::io::{ErrorKind, Read};
    let refuse = |message: &str, hint: &str| {
        ConfigErrors::from(ConfigError::at(
            Place::Whole(path.to_owned()),
            message,
            hint,
        ))
    };
    let unreadable = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => refuse(
            "there is no such file",
            "check the path; `palisade init` writes a file to start from",
        ),
        ErrorKind::PermissionDenied => refuse(
            "this user may not read the file",
            "give it permission, for example `chmod 640` and the right group",
        ),
        ErrorKind::IsADirectory => refuse("this is a directory", "name the file in it"),
        kind => refuse(
            &format!("the file cannot be read: {kind}"),
            "check the disk",
        ),
    };
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    // One byte more than allowed shows that the file is too large without reading all of it.
    file.take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(refuse(
            "the file is larger than 32 MiB",
            "split tenants off into a policy source",
        ));
    }
    String::from_utf8(bytes).map_err(|_| refuse("the file is not UTF-8", "save it as UTF-8"))
}

const NO_BOTS: Bots = Bots {
    patterns: Vec::new(),
    missing_user_agent: true,
};

impl Document<'_> {
    /// Reads the policy from the document's tables; `None` if an error was reported.
    pub fn policy(
        &mut self,
        revision: u64,
        headers: HeaderFamilies,
        encoded_slash: EncodedSlash,
    ) -> Option<PolicyBundle> {
        let source = self.table::<PolicyTable>();
        let candidate = self.table::<Candidate>();
        let geo = geo::read(self);
        let file = candidate
            .as_ref()
            .and_then(|candidate| candidate.file.as_deref())
            .map(|file| beside(self.input.path, file));
        let other = file
            .as_deref()
            .and_then(|file| self.candidate(file, revision, geo.as_ref()));
        // Beside the policy's own databases, those that only the candidate names are followed.
        let others = other
            .iter()
            .flat_map(|other| other.geo.files.iter().cloned());
        let others: Vec<_> = others.collect();
        let elsewhere = source
            .as_ref()
            .is_some_and(|source| source.source != SourceUrl::File);
        let beside = other
            .zip(candidate.as_ref())
            .map(|(other, table)| CandidateBundle {
                policy: other.policy,
                tenants: (!elsewhere).then_some(other.tenants),
                keys_max: table.keys_max,
                header: table.header,
            });
        let settings = figures::settings(&self.root, headers, &mut self.sink);
        let settings = settings.map(|settings| Settings {
            encoded_slash,
            ..settings
        });
        let bundle = self.enforced(revision, source.as_ref(), settings, geo.as_ref());
        // Only now, so that errors in the rest of the document were reported too.
        candidate?;
        let mut bundle = bundle?;
        bundle.geo.follow(others);
        Some(PolicyBundle {
            candidate: beside,
            candidate_file: file,
            ..bundle
        })
    }

    fn enforced(
        &mut self,
        revision: u64,
        source: Option<&PolicyTable>,
        settings: Option<Settings>,
        geo: Option<&GeoSettings>,
    ) -> Option<PolicyBundle> {
        let enabled = switches::enabled(self);
        let bots = self.table::<Bots>();
        let (root, sink) = (&self.root, &mut self.sink);
        // Limits are checked even if a value elsewhere is wrong: all errors at once.
        let class = source.and_then(|source| source.default_class.as_deref());
        let patterns = bots.clone().unwrap_or(NO_BOTS);
        let challenge = challenge::read(root, &self.input, sink);
        let complete = settings.is_some() && geo.is_some() && challenge.is_some();
        let geo = geo.cloned().unwrap_or_default();
        let settings = Settings {
            challenge: challenge.unwrap_or_default(),
            ..settings.unwrap_or_default()
        };
        let mut resolved = resolve(root, class, &patterns, settings, enabled, &geo, sink);
        let complete = challenge::bind(root, &mut resolved.parts, sink) && complete;
        let policy = PolicySet::new(revision, resolved.parts)
            .inspect_err(|error| sink.report(&Origin::Nowhere, format!("`tier.quota`: {error}")))
            .ok()?
            .with_geo(geo.lookup());
        let tenants = tenants::read(root, source, &policy, sink);
        risks::warn(self, &policy, &geo);
        Some(PolicyBundle {
            policy: complete.then(|| Arc::new(policy))?,
            source: source?.clone(),
            bots: bots?,
            outcomes: Arc::new(resolved.outcomes),
            spends: Arc::new(resolved.spends),
            geo,
            tenants: Arc::new(tenants),
            candidate: None,
            candidate_file: None,
        })
    }

    /// The candidate's policy as it would be if it were enforced: the environment and the
    /// flags win over it, too.
    fn candidate(
        &mut self,
        path: &Path,
        revision: u64,
        geo: Option<&GeoSettings>,
    ) -> Option<PolicyBundle> {
        let Ok(text) = read_file(path) else {
            self.refuse(
                "candidate",
                "file",
                "`candidate.file` cannot be read",
                "check the path: it is relative to the file that names it",
            );
            return None;
        };
        let open: Vec<_> = geo
            .iter()
            .flat_map(|geo| geo.files.iter().cloned())
            .collect();
        let open: Vec<_> = open
            .into_iter()
            .chain(self.input.geo.iter().cloned())
            .collect();
        let input = Input {
            path: Some(path),
            text: &text,
            geo: &open,
            ..self.input
        };
        match candidate_policy(input, self.tables, revision) {
            Ok(bundle) => Some(bundle),
            Err(errors) => {
                self.sink.adopt(errors);
                None
            }
        }
    }
}

fn candidate_policy(
    input: Input<'_>,
    tables: &[Schema],
    revision: u64,
) -> Result<PolicyBundle, ConfigErrors> {
    let mut document = open(input, tables)?;
    let source = document.table::<PolicyTable>();
    let settings = figures::settings(
        &document.root,
        HeaderFamilies::default(),
        &mut document.sink,
    );
    let geo = geo::read(&mut document);
    let bundle = document.enforced(revision, source.as_ref(), settings, geo.as_ref());
    document.finish(bundle)
}

/// A path that a file names, relative to that file.
pub(crate) fn beside(file: Option<&Path>, named: &Path) -> PathBuf {
    let folder = file.and_then(Path::parent).unwrap_or(Path::new(""));
    folder.join(named)
}
