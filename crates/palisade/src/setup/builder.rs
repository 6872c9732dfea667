//! Builds a running engine from policy, store, secret and clock.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use palisade_core::key::Keyring;
use palisade_core::time::Clock;
use palisade_policy::{ConfigErrors, Env, Overrides, PolicyBundle, SourceUrl};
use palisade_store::Store;
use palisade_store::memory::MemoryStore;
use zeroize::Zeroizing;

use super::data_dir::{SECRET_VARIABLE, create_data_dir, starting_secret, without_line_end};
use super::{OpeningError, Palisade, PreparedStore, StoreConfig, StoreUrl};
use crate::clock::SystemClock;
use crate::engine::{Engine, EngineConfig, NoObserver, Observer, Tenants};

/// A reason why [`Builder::start`] failed, and what to do about it. Messages name what is
/// wrong and never a secret or an address.
///
/// ```
/// use palisade::{BuildError, Palisade};
///
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let refused = Palisade::builder().store("redis://localhost").start().await;
/// let Err(BuildError::Secret { hint, .. }) = refused else {
///     panic!("nodes that share a store must share a secret");
/// };
/// assert!(hint.contains("Builder::secret"));
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, thiserror::Error)]
pub enum BuildError {
    /// Every error of the policy, each with its place and a hint.
    #[error("the policy is not valid\n{0}")]
    Policy(#[from] ConfigErrors),
    /// There is no usable secret.
    #[error("{problem}\n  hint: {hint}")]
    Secret {
        /// The problem with the secret.
        problem: String,
        /// Advice to fix it.
        hint: &'static str,
    },
    /// The store cannot be opened.
    #[error("{problem}\n  hint: {hint}")]
    Store {
        /// The problem with the store.
        problem: String,
        /// Advice to fix it.
        hint: String,
    },
    /// There is no Tokio runtime that could run the background.
    #[error(
        "there is no Tokio runtime\n  hint: call `start` below `#[tokio::main]` or in `Runtime::block_on`"
    )]
    NoRuntime,
}

/// A store for a [`Builder`]: an address, or a store that is open already.
pub struct StoreSource(Source);

enum Source {
    Address(String),
    Open(Arc<dyn Store>),
}

impl From<&str> for StoreSource {
    fn from(address: &str) -> Self {
        Self::from(address.to_owned())
    }
}

impl From<String> for StoreSource {
    fn from(address: String) -> Self {
        Self(Source::Address(address))
    }
}

impl From<Arc<dyn Store>> for StoreSource {
    fn from(store: Arc<dyn Store>) -> Self {
        Self(Source::Open(store))
    }
}

impl<C: Clock> From<MemoryStore<C>> for StoreSource {
    fn from(store: MemoryStore<C>) -> Self {
        Self(Source::Open(Arc::new(store)))
    }
}

#[cfg(feature = "redis")]
impl From<palisade_store::redis::RedisStore> for StoreSource {
    fn from(store: palisade_store::redis::RedisStore) -> Self {
        Self(Source::Open(Arc::new(store)))
    }
}

#[cfg(feature = "postgres")]
impl From<palisade_store::postgres::PostgresStore> for StoreSource {
    fn from(store: palisade_store::postgres::PostgresStore) -> Self {
        Self(Source::Open(Arc::new(store)))
    }
}

enum PolicyInput {
    BuiltIn,
    Text(String),
    File(PathBuf),
}

/// Configures an engine and starts it. Made by [`Palisade::builder`].
///
/// | | default |
/// | --- | --- |
/// | [`policy`](Self::policy), [`policy_file`](Self::policy_file) | the built-in policy |
/// | [`store`](Self::store) | `memory:`, gone at the end of the process |
/// | [`secret`](Self::secret) | `memory:`: random; `embedded:DIR`: kept in `DIR`; a store that others share: an error |
/// | [`environment`](Self::environment) | no variable is read |
/// | [`clock`](Self::clock), [`observer`](Self::observer), [`tenants`](Self::tenants), [`deadline`](Self::deadline) | the system's clock, no observer, the tenants of the policy file, 100 ms |
///
/// ```
/// use palisade::{Palisade, RequestFacts};
///
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let directory = tempfile::tempdir()?;
/// # let address = format!("embedded:{}", directory.path().display());
/// # let policy = directory.path().join("policy.toml");
/// # std::fs::write(&policy, "[[limit]]\nname = \"one\"\nby = [\"ip\"]\nrate = \"1/day\"")?;
/// let facts = RequestFacts::new("203.0.113.5".parse()?, "GET", "/things");
/// for expected in [200, 429] {
///     let palisade = Palisade::builder()
///         .policy_file(&policy)
///         .store(address.as_str())
///         .start()
///         .await?;
///     assert_eq!(palisade.check(&facts).await.decision.status, expected);
///     palisade.stop().await?; // the next one finds what this one counted
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "nothing runs before `start`"]
pub struct Builder {
    policy: PolicyInput,
    store: StoreSource,
    secret: Option<Zeroizing<Vec<u8>>>,
    previous_secret: Option<Zeroizing<Vec<u8>>>,
    env: Env,
    clock: Arc<dyn Clock>,
    observer: Arc<dyn Observer>,
    tenants: Option<Arc<dyn Tenants>>,
    deadline: Duration,
}

impl Builder {
    pub(super) fn new() -> Self {
        Self {
            policy: PolicyInput::BuiltIn,
            store: "memory:".into(),
            secret: None,
            previous_secret: None,
            env: Env::default(),
            clock: Arc::new(SystemClock::new()),
            observer: Arc::new(NoObserver),
            tenants: None,
            deadline: palisade_store::DEADLINE_DEFAULT,
        }
    }

    /// Sets the policy to `text` (TOML). It adds to the built-in policy, unless it says `[policy]
    /// defaults = false`. The last call of this and [`Self::policy_file`] wins.
    pub fn policy(mut self, text: impl Into<String>) -> Self {
        self.policy = PolicyInput::Text(text.into());
        self
    }

    /// Sets the policy to that of a file.
    pub fn policy_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.policy = PolicyInput::File(path.into());
        self
    }

    /// Sets the store: `memory:`, `embedded:DIR`, `redis://…`, `rediss://…`,
    /// `redis+cluster://h1,h2`, `postgres://…`, or a store that you have opened yourself, which
    /// keeps the clock that you gave it.
    pub fn store(mut self, store: impl Into<StoreSource>) -> Self {
        self.store = store.into();
        self
    }

    /// Sets the secret of all digests, of at least 32 bytes. All nodes that share a store need the
    /// same secret, and a store that outlives the process needs it again.
    pub fn secret(mut self, secret: impl AsRef<[u8]>) -> Self {
        self.secret = Some(Zeroizing::new(secret.as_ref().to_vec()));
        self
    }

    /// Sets the secret before the current one, so that what was stored under it is still found.
    pub fn previous_secret(mut self, secret: impl AsRef<[u8]>) -> Self {
        self.previous_secret = Some(Zeroizing::new(secret.as_ref().to_vec()));
        self
    }

    /// Reads `PALISADE_…` variables as the server does: they win over the policy file, and
    /// `PALISADE_KEY` is the secret unless there is one in the code.
    ///
    /// ```
    /// use palisade::Palisade;
    /// use palisade::policy::Env;
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let palisade = Palisade::builder().environment(Env::from_process()).start().await?;
    /// assert!(palisade.engine().policy().enabled);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn environment(mut self, env: Env) -> Self {
        self.env = env;
        self
    }

    /// Sets the clock. A test's clock stands still until it is moved.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Reports decisions, failures and changes to `observer`: metrics, a log, an audit.
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = observer;
        self
    }

    /// Sets a source of tenants' own policies other than the policy file.
    pub fn tenants(mut self, tenants: Arc<dyn Tenants>) -> Self {
        self.tenants = Some(tenants);
        self
    }

    /// Sets the longest time that a store call may take.
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Opens the store and starts the engine with its background work. A shared store may be down:
    /// the engine then starts degraded and recovers with the store. Needs a Tokio runtime.
    ///
    /// # Errors
    /// [`BuildError`] says what is wrong with policy, secret or store, and what to do.
    pub async fn start(self) -> Result<Palisade, BuildError> {
        tokio::runtime::Handle::try_current().map_err(|_| BuildError::NoRuntime)?;
        let bundle = self.bundle()?;
        let tenants = self.tenants_of(&bundle)?;
        let current = self.secret.or_else(|| variable(&self.env));
        let (opened, secret) = match self.store.0 {
            Source::Open(store) => {
                let secret = current.ok_or_else(|| no_secret(OPEN_STORE))?;
                (Ok(store), secret)
            }
            Source::Address(address) => {
                let url = address_of(&address)?;
                let secret = secret_of(current, &url)?;
                let config = StoreConfig {
                    timeout: self.deadline,
                    ..StoreConfig::new(url)
                };
                (open(&config, &self.clock).await, secret)
            }
        };
        let previous = self.previous_secret.as_deref().map(Vec::as_slice);
        let keyring = Keyring::new(&secret, previous).map_err(|error| BuildError::Secret {
            problem: error.to_string(),
            hint: "`openssl rand -hex 32` makes a good one",
        })?;
        let engine = Engine::new(EngineConfig {
            store: opened.map_err(|error| refused(&error))?,
            policy: bundle.policy,
            keyring: Arc::new(keyring),
            clock: self.clock,
            deadline: self.deadline,
            tenants,
            observer: self.observer,
        });
        engine.set_candidate(bundle.candidate.as_ref());
        Ok(Palisade::of(engine, bundle.geo.files))
    }

    fn bundle(&self) -> Result<PolicyBundle, ConfigErrors> {
        let flags = Overrides::default();
        match &self.policy {
            PolicyInput::BuiltIn => palisade_policy::load(None, &self.env, &flags),
            PolicyInput::File(path) => palisade_policy::load(Some(path), &self.env, &flags),
            PolicyInput::Text(text) => {
                palisade_policy::load_text("policy".as_ref(), text, &self.env, &flags)
            }
        }
    }

    /// Returns the tenants to use. A policy that names a database is an error without
    /// [`Builder::tenants`], because the tenants would silently get everybody's policy.
    fn tenants_of(&self, bundle: &PolicyBundle) -> Result<Arc<dyn Tenants>, BuildError> {
        match &self.tenants {
            Some(tenants) => Ok(Arc::clone(tenants)),
            None if bundle.source.source == SourceUrl::File => {
                Ok(Arc::<palisade_policy::FileTenants>::clone(&bundle.tenants))
            }
            None => Err(ConfigErrors::from(palisade_policy::ConfigError::nowhere(
                "`policy.source` names a database, which the library does not follow by itself",
                "give `Builder::tenants` a `palisade::tenants::TenantCache` that follows it, or leave `policy.source` out",
            ))
            .into()),
        }
    }
}

async fn open(
    config: &StoreConfig,
    clock: &Arc<dyn Clock>,
) -> Result<Arc<dyn Store>, OpeningError> {
    PreparedStore::of(config)?.open(clock).await
}

fn address_of(address: &str) -> Result<StoreUrl, BuildError> {
    StoreUrl::parse(address).map_err(|problems| {
        let problem = problems.into_iter().next();
        let (message, hint) = problem.map_or_else(Default::default, |problem| {
            (problem.message, problem.hint.unwrap_or_default())
        });
        let hint = match hint.is_empty() {
            true => "for example \"embedded:./palisade-data\" or \"redis://localhost\"".to_owned(),
            false => hint,
        };
        BuildError::Store {
            problem: format!("the address of the store {message}"),
            hint,
        }
    })
}

fn variable(env: &Env) -> Option<Zeroizing<Vec<u8>>> {
    let secret = env.get(SECRET_VARIABLE).filter(|text| !text.is_empty())?;
    Some(Zeroizing::new(without_line_end(secret.as_bytes()).to_vec()))
}

const SHARED_STORE: &str = "a shared store needs a secret that all nodes share";
const OPEN_STORE: &str = "a store that is open already needs a secret: it may outlive this process";

fn no_secret(problem: &str) -> BuildError {
    BuildError::Secret {
        problem: problem.to_owned(),
        hint: "make one with `openssl rand -hex 32`, give every node the same in `PALISADE_KEY`, and read it with `Builder::environment(Env::from_process())`, or give it to `Builder::secret`",
    }
}

/// Returns the secret to start with. Creates the data directory first, because the secret is stored
/// in it.
fn secret_of(
    given: Option<Zeroizing<Vec<u8>>>,
    url: &StoreUrl,
) -> Result<Zeroizing<Vec<u8>>, BuildError> {
    if url.is_shared() {
        return given.ok_or_else(|| no_secret(SHARED_STORE));
    }
    let directory = match url {
        StoreUrl::Embedded(directory) => Some(directory.as_path()),
        _ => None,
    };
    let made = directory.map_or(Ok(()), create_data_dir);
    let secret = made.and_then(|()| starting_secret(given, directory));
    secret.map_err(|error| BuildError::Store {
        problem: format!(
            "the data directory `{}` cannot be used: {error}",
            directory.unwrap_or("".as_ref()).display()
        ),
        hint: "make it writable for this user, or choose another directory in `embedded:DIR`"
            .to_owned(),
    })
}

fn refused(error: &OpeningError) -> BuildError {
    let hint = match error {
        OpeningError::Directory { .. } => "or choose another directory in `embedded:DIR`",
        #[cfg(feature = "redis")]
        OpeningError::Redis(_) => "correct the address given to `Builder::store`",
        #[cfg(feature = "postgres")]
        OpeningError::Postgres(_) => {
            "correct the address given to `Builder::store`, or run `palisade migrate` with it"
        }
        OpeningError::FeatureOff(_) => "add the feature to `palisade` in your Cargo.toml",
    };
    BuildError::Store {
        problem: error.to_string(),
        hint: hint.to_owned(),
    }
}
