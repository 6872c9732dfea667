//! Examinations that need no server: files, and the store.

use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use palisade::SystemClock;
use palisade_core::time::{Clock, Micros, SECOND};
use palisade_server::config::ready::Ready;
use palisade_server::config::{Config, SecretRef, StoreUrl};
use palisade_server::serve::{SECRET_FILE, audit_files_beside, try_write};
use palisade_server::store::{PreparedStore, risks};

use super::super::check;
use super::finding::{Findings, Weight};

/// Difference of clocks beyond which a reader of two logs is confused.
const SKEW_NOTED_US: u64 = SECOND;
/// Difference of clocks beyond which tokens are judged expired too late or too early.
const SKEW_WRONG_US: u64 = 30 * SECOND;

/// Examines whether secrets, data and audit files are closed to other users.
pub(super) fn permissions(config: &Config, found: &mut Findings) {
    let before = found.list.len();
    if let StoreUrl::Embedded(directory) = &config.store.url {
        data(directory, found);
    }
    let references = [
        ("secrets.key", &config.secrets.key),
        ("secrets.previous_key", &config.secrets.previous_key),
        ("server.caller_token", &config.server.caller_token),
        ("admin.token", &config.admin.token),
        ("admin.viewer_token", &config.admin.viewer_token),
    ];
    for (key, reference) in references {
        if let Some(SecretRef::File(path)) = reference {
            private(key, path, found);
        }
    }
    let keys = [
        ("tls.key", &config.tls.key),
        ("proxy.tls_key", &config.proxy.tls_key),
        ("store.certificate_key", &config.store.certificate_key),
    ];
    for (key, path) in keys {
        if let Some(path) = path {
            private(key, path, found);
        }
    }
    if let Some(file) = &config.audit.file {
        audit(file, found);
    }
    if found.list.len() == before {
        found.well("permissions", "data and secrets are their owner's alone");
    }
}

fn data(directory: &Path, found: &mut Findings) {
    let shown = directory.display();
    let Ok(meta) = std::fs::metadata(directory) else {
        let message = format!("the data directory `{shown}` does not exist yet");
        found.add(
            "permissions",
            Weight::Note,
            message,
            "the first start makes it",
        );
        return;
    };
    if meta.permissions().mode() & 0o077 != 0 {
        let message = format!("others may enter the data directory `{shown}`");
        found.add(
            "permissions",
            Weight::Warning,
            message,
            format!("chmod 700 {shown}"),
        );
    }
    private(
        "the data directory's secret",
        &directory.join(SECRET_FILE),
        found,
    );
    let listed = std::fs::read_dir(directory);
    if listed.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied) {
        let message = format!("this user cannot read the data directory `{shown}`");
        let todo = "run this as the user that the server runs as";
        found.add("permissions", Weight::Warning, message, todo);
    }
}

/// Examines a secret file: one that others can read is secret no longer. A missing file is
/// reported with the configuration.
fn private(what: &str, path: &Path, found: &mut Findings) {
    let Ok(meta) = std::fs::metadata(path) else {
        return;
    };
    let shown = path.display();
    if meta.permissions().mode() & 0o007 != 0 {
        let message = format!("{what}: every user may read or write `{shown}`");
        let todo = format!("chmod o-rwx {shown}, and replace what was in it");
        found.add("permissions", Weight::Error, message, todo);
    } else if meta.permissions().mode() & 0o022 != 0 {
        let message = format!("{what}: others may write `{shown}`");
        found.add(
            "permissions",
            Weight::Error,
            message,
            format!("chmod go-w {shown}"),
        );
    }
}

fn audit(file: &Path, found: &mut Findings) {
    let shown = file.display();
    let folder = file
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    if folder.is_some_and(|folder| !folder.is_dir()) {
        let message = format!("`audit.file`: the folder of `{shown}` does not exist");
        found.add(
            "permissions",
            Weight::Error,
            message,
            "make it, for the server's user",
        );
    }
    readable_audit(file, found);
    for (beside, _) in audit_files_beside(file) {
        readable_audit(&beside, found);
    }
}

fn readable_audit(file: &Path, found: &mut Findings) {
    let shown = file.display();
    if std::fs::metadata(file).is_ok_and(|meta| meta.permissions().mode() & 0o007 != 0) {
        let message = format!("every user may read the audit `{shown}`");
        found.add(
            "permissions",
            Weight::Warning,
            message,
            format!("chmod o-rwx {shown}"),
        );
    }
}

/// Examines the store (whether it answers and takes writes, and its clock) and the policy source.
pub(super) async fn store(config: &Config, ready: Ready, found: &mut Findings) {
    match &ready.store {
        PreparedStore::Memory(_) => {
            let todo = "use `embedded:DIR`, Redis or Postgres where it matters";
            let message = "`memory:` keeps nothing beyond the process";
            found.add("store", Weight::Note, message, todo);
        }
        PreparedStore::Embedded(_, directory) => embedded(directory, found),
        PreparedStore::Redis(_) | PreparedStore::Postgres(_) => {
            shared(ready.store, found).await;
        }
    }
    match ready.tenants.fetch(&config.source, "palisade-doctor").await {
        Ok(_) => found.well("policy source", "answers"),
        Err(failure) => found.add(
            "policy source",
            Weight::Error,
            failure.message(),
            failure.hint(),
        ),
    }
}

/// Examines whether the data directory takes a new file.
fn embedded(directory: &Path, found: &mut Findings) {
    if !directory.exists() {
        return;
    }
    let shown = directory.display();
    match try_write(directory) {
        Ok(()) => found.well("store", format!("`{shown}` can be written")),
        Err(error) => found.add(
            "store",
            Weight::Error,
            format!("`{shown}` cannot be written: {error}"),
            "look at its owner and mode, and at what is left on the disk; run this as the server's user",
        ),
    }
}

async fn shared(store: PreparedStore, found: &mut Findings) {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let asked = async {
        let store = store.open(&clock).await?;
        // The first answer includes making the connection: measure the second.
        check::probe(&*store).await?;
        let before = clock.now();
        let theirs = check::probe(&*store).await?;
        let after = clock.now();
        Ok::<_, palisade_server::failure::Failure>((before, theirs, after, store.stats().risks))
    };
    match asked.await {
        Ok((before, theirs, after, at_risk)) => {
            let took = after.0.saturating_sub(before.0);
            found.well(
                "store",
                format!("answers and takes writes, within {took} µs"),
            );
            skew(before, theirs, after, found);
            for risk in at_risk.into_iter().flat_map(risks::of) {
                found.add("store", Weight::Warning, risk.message, risk.hint);
            }
        }
        Err(failure) => found.add("store", Weight::Error, failure.message(), failure.hint()),
    }
}

/// Compares the clocks. The difference counts only as far as the round trip does not explain it.
fn skew(before: Micros, theirs: Micros, after: Micros, found: &mut Findings) {
    let apart = match theirs {
        at if at < before => before.0 - at.0,
        at => at.0.saturating_sub(after.0),
    };
    let message = format!("the store's clock is {} ms from this one", apart / 1_000);
    let todo = "run an NTP client on both machines: limits follow the store's clock, tokens and logs this one";
    if apart <= SKEW_NOTED_US {
        found.well("clock", message);
    } else if apart <= SKEW_WRONG_US {
        found.add("clock", Weight::Warning, message, todo);
    } else {
        found.add("clock", Weight::Error, message, todo);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weight(theirs: u64) -> Weight {
        let mut found = Findings::default();
        let (before, after) = (Micros(100 * SECOND), Micros(100 * SECOND + 5_000));
        skew(before, Micros(theirs), after, &mut found);
        found.list[0].weight
    }

    #[test]
    fn a_clock_between_question_and_answer_is_right_and_one_far_off_is_not() {
        assert_eq!(weight(100 * SECOND + 2_000), Weight::Ok);
        assert_eq!(weight(99 * SECOND + 1), Weight::Ok);
        assert_eq!(weight(98 * SECOND), Weight::Warning);
        assert_eq!(weight(103 * SECOND), Weight::Warning);
        assert_eq!(weight(140 * SECOND), Weight::Error);
        assert_eq!(weight(0), Weight::Error);
    }

    #[test]
    fn a_secret_that_others_read_is_found_and_one_of_its_own_is_not() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("secret");
        std::fs::write(&path, b"x").unwrap();
        for (mode, expected) in [
            (0o600, None),
            (0o640, None),
            (0o644, Some(Weight::Error)),
            (0o660, Some(Weight::Error)),
        ] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let mut found = Findings::default();
            private("secrets.key", &path, &mut found);
            assert_eq!(
                found.list.first().map(|one| one.weight),
                expected,
                "{mode:o}"
            );
        }
    }
}
