//! A database file that is replaced while it is asked.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use palisade_core::geo::DatabaseState;
use parking_lot::Mutex;

use super::database::{Content, Database, DatabaseError};

/// Interval at which [`follow`] looks at its files.
const POLL: Duration = Duration::from_secs(5);

/// The result of looking for a new database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refresh {
    /// The file is as it was.
    Unchanged,
    /// The new file is in use.
    Replaced,
    /// The new file cannot be used: the one that was read before is in use.
    Refused(DatabaseError),
}

/// A file and the database that was last read from it.
pub struct GeoFile {
    path: PathBuf,
    content: Content,
    pub(super) database: ArcSwap<Database>,
    state: Mutex<State>,
}

struct State {
    seen: Option<Stamp>,
    replaced: u64,
    refused: u64,
    error: Option<DatabaseError>,
}

/// Tells one version of a file from another without reading it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    bytes: u64,
    modified: Option<SystemTime>,
    /// Another instant if the file was replaced by renaming another one.
    created: Option<SystemTime>,
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok()?;
        Some(Self {
            bytes: metadata.len(),
            modified: metadata.modified().ok(),
            created: metadata.created().ok(),
        })
    }
}

impl GeoFile {
    /// Reads a file for the first time.
    ///
    /// # Errors
    /// The file cannot be used.
    pub fn open(path: &Path, content: Content) -> Result<Self, DatabaseError> {
        // Before the file: a change while it is read is then noticed the next time.
        let seen = Stamp::of(path);
        let database = Database::read(path, content)?;
        Ok(Self {
            path: path.to_owned(),
            content,
            database: ArcSwap::from_pointee(database),
            state: Mutex::new(State {
                seen,
                replaced: 0,
                refused: 0,
                error: None,
            }),
        })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True if this is the file at `path`, asked for `content`.
    pub(super) fn is(&self, path: &Path, content: Content) -> bool {
        self.path == path && self.content == content
    }

    /// Reads the file again if it has changed. Reads from disk: not for a task that must not wait.
    /// Lookups go on meanwhile, in the database that was read before. The same wrong file is
    /// refused, and reported, once.
    pub fn refresh(&self) -> Refresh {
        let mut state = self.state.lock();
        let seen = Stamp::of(&self.path);
        if seen == state.seen {
            return Refresh::Unchanged;
        }
        state.seen = seen;
        let (file, key) = (self.path.display(), self.content.key());
        match Database::read(&self.path, self.content) {
            Ok(database) => {
                self.database.store(Arc::new(database));
                state.replaced += 1;
                state.error = None;
                tracing::info!(%file, "`places.{key}` replaced");
                Refresh::Replaced
            }
            Err(error) => {
                state.refused += 1;
                state.error = Some(error);
                tracing::error!(%file, %error, "`places.{key}` refused, the one in use stays");
                Refresh::Refused(error)
            }
        }
    }

    /// State of the file.
    #[must_use]
    pub fn state(&self) -> DatabaseState {
        let state = self.state.lock();
        DatabaseState {
            name: self.content.key(),
            replaced: state.replaced,
            refused: state.refused,
            error: state.error.map(DatabaseError::name),
        }
    }
}

/// Reads files again when they have changed, for as long as it is polled. For a process whose policy
/// file is not followed; [`FileSource`](crate::FileSource) follows both. Needs a Tokio runtime.
pub async fn follow(files: Vec<Arc<GeoFile>>) {
    while !files.is_empty() {
        tokio::time::sleep(POLL).await;
        let files = files.clone();
        let refresh = move || {
            for file in files {
                // Logs and counts its own result.
                let _ = file.refresh();
            }
        };
        let _ = tokio::task::spawn_blocking(refresh).await;
    }
}

impl std::fmt::Debug for GeoFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GeoFile")
            .field("path", &self.path)
            .field("content", &self.content)
            .finish_non_exhaustive()
    }
}
