//! File, environment and flags → [`Config`].

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use palisade_core::policy::{PolicySet, Settings};

use crate::env::{self, Env, Overrides};
use crate::error::{ConfigError, ConfigErrors, Origin, Place, Sink, Sources};
use crate::resolve::{OutcomeRoute, duplicates, origin_of, resolve};
use crate::schema::read_table;
use crate::sections::{
    Admin, Audit, Bots, Candidate, Identity, Jwt, Log, Metrics, PolicyTable, Proxy, Repair,
    Secrets, Server, Store,
};
use crate::tenants::{self, FileTenants};
use crate::tree::{Table, lookup, merge, parse};
use crate::{figures, unknown};

/// The policy that `defaults = true` starts from.
pub const DEFAULT_POLICY: &str = include_str!("default_policy.toml");

/// Largest policy file, in bytes.
const FILE_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// Everything that a running service takes from the configuration: checked, bounded.
#[derive(Clone, Debug)]
pub struct Config {
    /// The file it was read from.
    pub path: Option<PathBuf>,
    /// `[server]`.
    pub server: Server,
    /// `[proxy]`.
    pub proxy: Proxy,
    /// `[store]`.
    pub store: Store,
    /// `[secrets]`.
    pub secrets: Secrets,
    /// `[policy]`.
    pub source: PolicyTable,
    /// `[identity]`.
    pub identity: Identity,
    /// `[jwt]`.
    pub jwt: Jwt,
    /// `[admin]`.
    pub admin: Admin,
    /// `[audit]`.
    pub audit: Audit,
    /// `[repair]`.
    pub repair: Repair,
    /// `[log]`.
    pub log: Log,
    /// `[metrics]`.
    pub metrics: Metrics,
    /// `[candidate]`.
    pub candidate: Candidate,
    /// What a reload replaces.
    pub bundle: PolicyBundle,
}

impl Config {
    /// Tables that differ from `other` and only take effect at a start.
    #[must_use]
    pub fn tables_that_need_a_restart(&self, other: &Self) -> Vec<&'static str> {
        let tables = [
            ("server", self.server != other.server),
            ("proxy", self.proxy != other.proxy),
            ("store", self.store != other.store),
            ("secrets", self.secrets != other.secrets),
            ("policy", self.source != other.source),
            ("identity", self.identity != other.identity),
            ("jwt", self.jwt != other.jwt),
            ("admin", self.admin != other.admin),
            ("audit", self.audit != other.audit),
            ("repair", self.repair != other.repair),
            ("log", self.log != other.log),
            ("metrics", self.metrics != other.metrics),
        ];
        let changed = tables.into_iter().filter(|(_, changed)| *changed);
        changed.map(|(table, _)| table).collect()
    }

    /// The policy.
    #[must_use]
    pub const fn policy(&self) -> &Arc<PolicySet> {
        &self.bundle.policy
    }
}

/// The part of the configuration that decisions are made by. A reload replaces it
/// as a whole.
#[derive(Clone)]
pub struct PolicyBundle {
    /// Routes, limits, clients, keys, tiers, and every figure beside them.
    pub policy: Arc<PolicySet>,
    /// `[bots]`, for surfaces that see the client's own request.
    pub bots: Bots,
    /// Routes on which the proxy reports how a login ended.
    pub outcomes: Arc<[OutcomeRoute]>,
    /// `[[tenant]]`: overrides that stand in the file itself.
    pub tenants: Arc<FileTenants>,
    /// A second policy that is evaluated beside the first and never enforced.
    pub candidate: Option<Arc<PolicySet>>,
}

/// Shows how much there is and nothing of whom it is about.
impl fmt::Debug for PolicyBundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyBundle")
            .field("revision", &self.policy.revision)
            .field("limits", &self.policy.limits().len())
            .finish_non_exhaustive()
    }
}

/// Reads the configuration: flags win over the environment, the environment over
/// the file, the file over the defaults.
///
/// # Errors
/// Everything that is wrong with it, each with its place.
pub fn load(path: Option<&Path>, env: &Env, flags: &Overrides) -> Result<Config, ConfigErrors> {
    match path {
        Some(path) => load_text(path, &read_file(path)?, env, flags),
        None => load_revision(None, "", env, flags, 1),
    }
}

/// Reads a configuration that is already in memory, as if it stood in `path`.
///
/// # Errors
/// As [`load`].
pub fn load_text(
    path: &Path,
    text: &str,
    env: &Env,
    flags: &Overrides,
) -> Result<Config, ConfigErrors> {
    load_revision(Some(path), text, env, flags, 1)
}

/// The same, for a policy's next revision.
pub(crate) fn load_revision(
    path: Option<&Path>,
    text: &str,
    env: &Env,
    flags: &Overrides,
    revision: u64,
) -> Result<Config, ConfigErrors> {
    Loader {
        path,
        env,
        flags,
        revision,
        depth: Depth::Own,
    }
    .load(text)
}

pub(crate) fn read_file(path: &Path) -> Result<String, ConfigErrors> {
    use std::io::Read;
    let refuse = |message: &str, hint: &str| {
        ConfigErrors::from(ConfigError {
            place: Place::File {
                path: path.to_owned(),
                line: 1,
                column: 1,
            },
            message: message.to_owned(),
            hint: Some(hint.to_owned()),
        })
    };
    let file = std::fs::File::open(path).map_err(|error| {
        refuse(
            &format!("cannot open the file: {}", error.kind()),
            "check the path",
        )
    })?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| {
            refuse(
                &format!("cannot read the file: {}", error.kind()),
                "check the path",
            )
        })?;
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

#[derive(Clone, Copy, PartialEq, Eq)]
enum Depth {
    /// The operator's own file.
    Own,
    /// A candidate, which has none itself.
    Candidate,
}

struct Loader<'a> {
    path: Option<&'a Path>,
    env: &'a Env,
    flags: &'a Overrides,
    revision: u64,
    depth: Depth,
}

impl Loader<'_> {
    fn load(&self, text: &str) -> Result<Config, ConfigErrors> {
        let sources = Sources {
            path: self.path,
            file: text,
            builtin: DEFAULT_POLICY,
        };
        let mut sink = Sink::default();
        let file = parse(text, Origin::File, &mut sink);
        if !sink.is_empty() {
            // What follows a syntax error cannot be trusted to be what was meant.
            return Err(finish(sink, sources));
        }
        let root = self.tree(file, &mut sink);
        let config = self.decode(&root, &mut sink);
        match config {
            Some(config) if sink.is_empty() => Ok(config),
            _ => Err(finish(sink, sources)),
        }
    }

    /// Defaults, file, environment and flags as one tree.
    fn tree(&self, file: Table, sink: &mut Sink) -> Table {
        unknown::check(&file, sink);
        duplicates(&file, sink);
        let mut root = Table::new();
        if self.starts_from_defaults(&file) {
            root = parse(DEFAULT_POLICY, Origin::Builtin, sink);
        }
        merge(&mut root, file);
        env::apply(self.env, &mut root, sink);
        self.flags.apply(&mut root);
        root
    }

    fn starts_from_defaults(&self, file: &Table) -> bool {
        let mut only = Table::new();
        if let Some(entry) = lookup(file, "policy.defaults") {
            crate::tree::set(&mut only, "policy.defaults", entry.node.clone());
        }
        // Errors are found again when the whole tree is read.
        let mut ignored = Sink::default();
        env::apply(self.env, &mut only, &mut ignored);
        let mut ignored = Sink::default();
        read_table::<PolicyTable>(&only, &mut ignored).is_none_or(|table| table.defaults)
    }

    fn decode(&self, root: &Table, sink: &mut Sink) -> Option<Config> {
        let server = read_table::<Server>(root, sink);
        let proxy = read_table::<Proxy>(root, sink);
        let store = read_table::<Store>(root, sink);
        let secrets = read_table::<Secrets>(root, sink).inspect(|s| check_secrets(s, root, sink));
        let source = read_table::<PolicyTable>(root, sink);
        let identity = read_table::<Identity>(root, sink);
        let jwt = read_table::<Jwt>(root, sink).inspect(|jwt| check_jwt(jwt, root, sink));
        let admin = read_table::<Admin>(root, sink);
        let audit = read_table::<Audit>(root, sink);
        let repair = read_table::<Repair>(root, sink);
        let log = read_table::<Log>(root, sink);
        let metrics = read_table::<Metrics>(root, sink);
        let candidate = read_table::<Candidate>(root, sink);
        let shadow = self.shadow(candidate.as_ref(), root, sink);
        let settings = figures::settings(root, server.as_ref(), sink);
        let bundle = self.bundle(root, source.as_ref(), settings, sink);
        if let (Some(admin), Some(jwt)) = (&admin, &jwt) {
            check_admin(admin, jwt, root, sink);
        }
        Some(Config {
            path: self.path.map(Path::to_owned),
            server: server?,
            proxy: proxy?,
            store: store?,
            secrets: secrets?,
            source: source?,
            identity: identity?,
            jwt: jwt?,
            admin: admin?,
            audit: audit?,
            repair: repair?,
            log: log?,
            metrics: metrics?,
            candidate: candidate?,
            bundle: PolicyBundle {
                candidate: shadow,
                ..bundle?
            },
        })
    }

    fn bundle(
        &self,
        root: &Table,
        source: Option<&PolicyTable>,
        settings: Option<Settings>,
        sink: &mut Sink,
    ) -> Option<PolicyBundle> {
        let enabled = env::enabled(self.env, sink);
        let bots = read_table::<Bots>(root, sink);
        // Limits are checked even if a figure elsewhere is wrong: all errors at once.
        let class = source.and_then(|source| source.default_class.as_deref());
        let patterns = bots.clone().unwrap_or(NO_BOTS);
        let complete = settings.is_some();
        let settings = settings.unwrap_or_default();
        let resolved = resolve(root, class, &patterns, settings, enabled, sink);
        let policy = PolicySet::new(self.revision, resolved.parts)
            .inspect_err(|error| sink.report(&Origin::Nowhere, format!("`tier.quota`: {error}")))
            .ok()?;
        let tenants = tenants::read(root, source, &policy, sink);
        Some(PolicyBundle {
            policy: complete.then(|| Arc::new(policy))?,
            bots: bots?,
            outcomes: resolved.outcomes.into(),
            tenants: Arc::new(tenants),
            candidate: None,
        })
    }

    /// The candidate's policy. The environment and the flags are about the enforced
    /// policy and do not apply to it.
    fn shadow(
        &self,
        candidate: Option<&Candidate>,
        root: &Table,
        sink: &mut Sink,
    ) -> Option<Arc<PolicySet>> {
        let file = candidate?.file.as_deref()?;
        if self.depth == Depth::Candidate {
            sink.report_with(
                &origin_of(root, "candidate", "file"),
                "`candidate.file` must not stand in a candidate",
                "leave it out: there is one candidate at a time",
            );
            return None;
        }
        let path = beside(self.path, file);
        let Ok(text) = read_file(&path) else {
            sink.report_with(
                &origin_of(root, "candidate", "file"),
                "`candidate.file` cannot be read",
                "check the path: it is relative to the file that names it",
            );
            return None;
        };
        let loaded = Loader {
            path: Some(&path),
            env: &Env::default(),
            flags: &Overrides::default(),
            revision: self.revision,
            depth: Depth::Candidate,
        }
        .load(&text);
        match loaded {
            Ok(config) => Some(config.bundle.policy),
            Err(errors) => {
                sink.adopt(errors);
                None
            }
        }
    }
}

/// A path that a file names, relative to that file.
pub(crate) fn beside(file: Option<&Path>, named: &Path) -> PathBuf {
    let folder = file.and_then(Path::parent).unwrap_or(Path::new(""));
    folder.join(named)
}

fn finish(sink: Sink, sources: Sources<'_>) -> ConfigErrors {
    sink.finish(sources).unwrap_or_else(|| {
        ConfigErrors::from(ConfigError::nowhere(
            "the configuration cannot be used",
            "this is a defect: a value was refused without a reason",
        ))
    })
}

fn check_jwt(jwt: &Jwt, root: &Table, sink: &mut Sink) {
    let at = |key| origin_of(root, "jwt", key);
    if jwt.jwks.is_some() && jwt.key.is_some() {
        let hint = "keep the one that your issuer publishes";
        sink.report_with(
            &at("key"),
            "`jwt.key` and `jwt.jwks` exclude each other",
            hint,
        );
    }
    match (jwt.algorithm, jwt.jwks.is_some() || jwt.key.is_some()) {
        (None, true) => sink.report_with(
            &at(if jwt.jwks.is_some() { "jwks" } else { "key" }),
            "`jwt.algorithm` is missing",
            "pin the algorithm that your issuer signs with, for example `algorithm = \"RS256\"`",
        ),
        (Some(_), false) => sink.report_with(
            &at("algorithm"),
            "`jwt.algorithm` needs a key to verify with",
            "add `jwks` or `key`",
        ),
        (Some(algorithm), true) if algorithm.is_symmetric() && jwt.jwks.is_some() => sink
            .report_with(
                &at("algorithm"),
                "`jwt.algorithm` must not be a shared-secret one with a key set",
                "use `key`, or the public-key algorithm of the set",
            ),
        _ => {}
    }
}

fn check_secrets(secrets: &Secrets, root: &Table, sink: &mut Sink) {
    if secrets.previous_key.is_some() && secrets.key.is_none() {
        sink.report_with(
            &origin_of(root, "secrets", "previous_key"),
            "`secrets.previous_key` needs `secrets.key`",
            "a rotation goes from one secret to another: name both",
        );
    }
}

fn check_admin(admin: &Admin, jwt: &Jwt, root: &Table, sink: &mut Sink) {
    if admin.jwt && jwt.jwks.is_none() && jwt.key.is_none() {
        sink.report_with(
            &origin_of(root, "admin", "jwt"),
            "`admin.jwt` needs a key to verify with",
            "add `[jwt]` with `jwks` or `key`",
        );
    }
}
