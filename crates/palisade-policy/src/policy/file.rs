//! The policy file, reloaded when it changes.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use notify::event::{AccessKind, AccessMode, EventKind};
use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use palisade_core::failure::SourceHealth;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::{PolicySource, SourceStatus};
use crate::document::Input;
use crate::document::env::{Env, Overrides};
use crate::document::error::ConfigErrors;
use crate::geo::GeoFile;
use crate::policy::load::{PolicyBundle, load_revision, read_file};

/// Editors write in several steps; a changed file is read when it has been quiet this long.
const SETTLE: Duration = Duration::from_millis(100);

/// Most bytes that are compared of a file other than the policy file.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// The result of a reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reload {
    /// No file has changed.
    Unchanged,
    /// A new policy is in force.
    Replaced {
        /// Revision of the new policy.
        revision: u64,
        /// Tables that also changed but only take effect at a start.
        needs_restart: Vec<&'static str>,
    },
}

/// Reads a policy file into a loaded form.
pub trait Loader: Send + Sync + 'static {
    /// The loaded form: a policy, or a whole configuration with one.
    type Output: Clone + Send + 'static;

    /// Loads the file as the policy's next revision. Databases of countries and networks that are
    /// open in `geo` need not be read again.
    ///
    /// # Errors
    /// All problems in the file.
    fn load(
        &self,
        path: &Path,
        text: &str,
        revision: u64,
        geo: &[Arc<GeoFile>],
    ) -> Result<Self::Output, ConfigErrors>;

    /// The policy in it.
    fn bundle(loaded: &Self::Output) -> &PolicyBundle;

    /// Files that a reload reads again in addition to the policy file: a change of one of them
    /// alone counts as a change.
    fn files(loaded: &Self::Output) -> Vec<PathBuf> {
        let candidate = &Self::bundle(loaded).candidate_file;
        candidate.iter().map(|path| path.to_path_buf()).collect()
    }

    /// Checks that a running service can take the loaded policy over.
    ///
    /// # Errors
    /// The reason why it cannot; the policy in force then stays.
    fn accept(&self, _loaded: &Self::Output) -> Result<(), ConfigErrors> {
        Ok(())
    }

    /// Tables that differ and only take effect at a start.
    fn needs_restart(_old: &Self::Output, _new: &Self::Output) -> Vec<&'static str> {
        Vec::new()
    }
}

/// Reads a policy and nothing else.
#[derive(Clone, Debug, Default)]
pub struct PolicyLoader {
    /// Variables.
    pub env: Env,
    /// Flags.
    pub flags: Overrides,
}

impl Loader for PolicyLoader {
    type Output = PolicyBundle;

    fn load(
        &self,
        path: &Path,
        text: &str,
        revision: u64,
        geo: &[Arc<GeoFile>],
    ) -> Result<PolicyBundle, ConfigErrors> {
        let input = Input {
            path: Some(path),
            text,
            env: &self.env,
            flags: &self.flags,
            geo,
        };
        load_revision(input, revision)
    }

    fn bundle(loaded: &PolicyBundle) -> &PolicyBundle {
        loaded
    }
}

/// A policy file and the policy that was last read from it.
pub struct FileSource<L: Loader = PolicyLoader> {
    path: PathBuf,
    loader: L,
    state: Mutex<State<L::Output>>,
    current: watch::Sender<Arc<PolicyBundle>>,
}

struct State<C> {
    config: C,
    seen: FileDigests,
    replaced: u64,
    refused: u64,
    last_refusal: Option<ConfigErrors>,
}

/// Digests of the files as they were last read; `None` stands for a file that cannot be read.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileDigests {
    file: Option<u64>,
    /// Digest of all other files together.
    beside: u64,
}

impl<L: Loader> FileSource<L> {
    /// Reads the file for the first time.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn open(path: &Path, loader: L) -> Result<Self, ConfigErrors> {
        let text = read_file(path)?;
        let config = loader.load(path, &text, 1, &[])?;
        let bundle = L::bundle(&config);
        let (current, _) = watch::channel(Arc::new(bundle.clone()));
        let seen = FileDigests {
            file: Some(digest(&text)),
            beside: digest_of_files(&L::files(&config)),
        };
        Ok(Self {
            path: path.to_owned(),
            loader,
            state: Mutex::new(State {
                config,
                seen,
                replaced: 0,
                refused: 0,
                last_refusal: None,
            }),
            current,
        })
    }

    /// The loaded form that the policy in force is part of.
    #[must_use]
    pub fn config(&self) -> L::Output {
        self.state.lock().config.clone()
    }

    /// The loader, which reads the file and those that it names.
    #[must_use]
    pub const fn loader(&self) -> &L {
        &self.loader
    }

    /// Reads the file again if it, or a file that it names, has changed, and databases that have
    /// changed. Reads from disk: not for a task that must not wait.
    ///
    /// # Errors
    /// The reason why the new policy is refused; the old one stays in force. The same wrong file is
    /// refused once.
    pub fn reload(&self) -> Result<Reload, ConfigErrors> {
        let mut state = self.state.lock();
        let databases = L::bundle(&state.config).geo.files.clone();
        for database in &databases {
            // Logs and counts its own result.
            let _ = database.refresh();
        }
        let text = read_file(&self.path);
        let seen = FileDigests {
            file: text.as_deref().ok().map(digest),
            beside: digest_of_files(&L::files(&state.config)),
        };
        if seen == state.seen {
            return Ok(Reload::Unchanged);
        }
        // Noted before the file is loaded, so that the same wrong file is refused once.
        state.seen = seen;
        let revision = L::bundle(&state.config).policy.revision.saturating_add(1);
        let loaded = text.and_then(|text| {
            let loaded = self.loader.load(&self.path, &text, revision, &databases)?;
            self.loader.accept(&loaded).map(|()| loaded)
        });
        match loaded {
            Ok(config) => Ok(self.replace(&mut state, config, revision)),
            Err(errors) => {
                state.refused += 1;
                state.last_refusal = Some(errors.clone());
                tracing::error!(%errors, "policy refused, the one in force stays");
                Err(errors)
            }
        }
    }

    fn replace(&self, state: &mut State<L::Output>, config: L::Output, revision: u64) -> Reload {
        let needs_restart = L::needs_restart(&state.config, &config);
        if !needs_restart.is_empty() {
            let tables = needs_restart.join(", ");
            tracing::warn!(tables, "these tables take effect at the next start");
        }
        tracing::info!(revision, "policy replaced");
        // The configuration may name other files now.
        let bundle = L::bundle(&config);
        state.seen.beside = digest_of_files(&L::files(&config));
        state.replaced += 1;
        state.last_refusal = None;
        self.current.send_replace(Arc::new(bundle.clone()));
        state.config = config;
        Reload::Replaced {
            revision,
            needs_restart,
        }
    }

    /// Follows changes of the file until the returned value is dropped. The folder is watched, so
    /// that a file replaced by renaming, or behind a link, is noticed; every `poll` the file is
    /// checked regardless. Needs a Tokio runtime.
    ///
    /// # Errors
    /// The folder cannot be watched.
    pub fn watch(self: &Arc<Self>, poll: Duration) -> notify::Result<FileWatch> {
        let (events, received) = mpsc::channel(1);
        let mut watcher = notify::recommended_watcher(move |event| {
            if is_change(&event) {
                // Full: a change is already waiting to be handled.
                let _ = events.try_send(());
            }
        })?;
        watcher.watch(folder(&self.path), RecursiveMode::NonRecursive)?;
        for database in &L::bundle(&self.state.lock().config).geo.files {
            // Where a folder cannot be watched, a new database is noticed at the next poll.
            let _ = watcher.watch(folder(database.path()), RecursiveMode::NonRecursive);
        }
        let task = tokio::spawn(follow(Arc::downgrade(self), received, poll));
        Ok(FileWatch {
            _watcher: watcher,
            task,
        })
    }
}

impl<L: Loader> PolicySource for FileSource<L> {
    fn current(&self) -> Arc<PolicyBundle> {
        Arc::clone(&self.current.borrow())
    }

    fn subscribe(&self) -> watch::Receiver<Arc<PolicyBundle>> {
        self.current.subscribe()
    }

    fn status(&self) -> SourceStatus {
        let state = self.state.lock();
        SourceStatus {
            revision: L::bundle(&state.config).policy.revision,
            replaced: state.replaced,
            refused: state.refused,
            health: match state.seen.file {
                Some(_) => SourceHealth::Up,
                None => SourceHealth::Down,
            },
            last_refusal: state.last_refusal.clone(),
        }
    }
}

/// Stops following when it is dropped.
pub struct FileWatch {
    _watcher: RecommendedWatcher,
    task: JoinHandle<()>,
}

impl Drop for FileWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn follow<L: Loader>(
    source: Weak<FileSource<L>>,
    mut events: mpsc::Receiver<()>,
    poll: Duration,
) {
    loop {
        tokio::select! {
            event = events.recv() => if event.is_none() { return },
            () = tokio::time::sleep(poll) => {}
        }
        tokio::time::sleep(SETTLE).await;
        // One save causes several events: a single reload serves them all.
        while events.try_recv().is_ok() {}
        let Some(source) = source.upgrade() else {
            return;
        };
        // `reload` logs and counts its own result.
        let _ = tokio::task::spawn_blocking(move || source.reload()).await;
    }
}

/// Whether the event is a change. Reading a file is an event too: if it counted, each reload would
/// cause the next.
fn is_change(event: &notify::Result<notify::Event>) -> bool {
    match event.as_ref().map(|event| event.kind) {
        Ok(EventKind::Access(AccessKind::Close(AccessMode::Write))) | Err(_) => true,
        Ok(EventKind::Access(_)) => false,
        Ok(_) => true,
    }
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn digest(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

fn digest_of_files(paths: &[PathBuf]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for path in paths {
        bytes_of(path).hash(&mut hasher);
    }
    hasher.finish()
}

/// The start of a file, which need not be text; `None` if it cannot be read.
fn bytes_of(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).ok()?;
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}
