//! A changed file replaces the policy, a wrong one does not.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use palisade_policy::{Env, FileSource, Overrides, PolicyLoader, PolicySource, Reload};

fn limit(rate: &str) -> String {
    format!("[[limit]]\nname = \"ip-auth\"\nby = [\"ip\"]\nclass = \"auth\"\nrate = \"{rate}\"\n")
}

fn open(path: &Path) -> Arc<FileSource> {
    Arc::new(FileSource::open(path, PolicyLoader::default()).unwrap())
}

fn rate(source: &FileSource, name: &str) -> u64 {
    let bundle = source.current();
    bundle
        .policy
        .limit(name)
        .map_or(0, |limit| limit.def.spec.limit())
}

#[test]
fn a_new_file_is_checked_whole_before_it_replaces_the_old() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.toml");
    std::fs::write(&path, limit("5/min")).unwrap();
    let source = open(&path);
    assert_eq!(rate(&source, "ip-auth"), 5);
    assert_eq!(source.reload(), Ok(Reload::Unchanged));

    std::fs::write(&path, limit("7/min")).unwrap();
    let replaced = Reload::Replaced {
        revision: 2,
        needs_restart: Vec::new(),
    };
    assert_eq!(source.reload(), Ok(replaced));
    assert_eq!(rate(&source, "ip-auth"), 7);

    // One error far from the limit keeps all of it out.
    let wrong = format!("{}[fallback]\nauth_percent = 0\n", limit("9/min"));
    std::fs::write(&path, wrong).unwrap();
    assert!(source.reload().is_err());
    assert_eq!(source.reload(), Ok(Reload::Unchanged), "refused once");
    assert_eq!(rate(&source, "ip-auth"), 7);
    let status = source.status();
    assert_eq!(
        (status.revision, status.replaced, status.refused),
        (2, 1, 1)
    );
    assert!(
        status
            .last_refusal
            .unwrap()
            .to_string()
            .contains("`fallback.auth_percent`")
    );

    std::fs::write(&path, limit("9/min")).unwrap();
    assert!(source.reload().is_ok());
    assert_eq!(rate(&source, "ip-auth"), 9);
    assert!(source.status().last_refusal.is_none());
}

#[test]
fn a_missing_file_leaves_the_policy_and_says_that_the_source_is_down() {
    use palisade_core::failure::SourceHealth;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.toml");
    std::fs::write(&path, limit("5/min")).unwrap();
    let source = open(&path);
    std::fs::remove_file(&path).unwrap();
    assert!(source.reload().is_err());
    assert_eq!(rate(&source, "ip-auth"), 5);
    assert_eq!(source.status().health, SourceHealth::Down);
    std::fs::write(&path, limit("5/min")).unwrap();
    assert!(source.reload().is_ok());
    assert_eq!(source.status().health, SourceHealth::Up);
}

#[test]
fn environment_and_flags_still_win_after_a_reload() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.toml");
    std::fs::write(&path, limit("5/min")).unwrap();
    let env = Env::from([("PALISADE_LIMIT__IP_READ__RATE", "1/min")]);
    let flags = Overrides::default();
    let source = FileSource::open(&path, PolicyLoader { env, flags }).unwrap();
    std::fs::write(&path, limit("6/min")).unwrap();
    source.reload().unwrap();
    assert_eq!((rate(&source, "ip-auth"), rate(&source, "ip-read")), (6, 1));
}

#[test]
fn a_changed_candidate_replaces_the_candidate() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.toml");
    let next = folder.path().join("next.toml");
    std::fs::write(&next, limit("5/min")).unwrap();
    std::fs::write(&path, "[candidate]\nfile = \"next.toml\"\n").unwrap();
    let source = open(&path);
    std::fs::write(&next, limit("6/min")).unwrap();
    assert!(matches!(source.reload(), Ok(Reload::Replaced { .. })));
    let candidate = source.current().candidate.clone().unwrap();
    let limit = candidate.policy.limit("ip-auth").unwrap();
    assert_eq!(limit.def.spec.limit(), 6);
    assert_eq!(source.reload(), Ok(Reload::Unchanged));
}

/// Waits until the source says that a policy with this limit is in force.
async fn until(source: &FileSource, expected: u64) {
    let mut changes = source.subscribe();
    let wait = changes.wait_for(|bundle| {
        let limit = bundle.policy.limit("ip-auth");
        limit.is_some_and(|limit| limit.def.spec.limit() == expected)
    });
    let waited = tokio::time::timeout(Duration::from_secs(20), wait).await;
    assert!(waited.is_ok(), "no policy with {expected} within 20 s");
}

/// So long that only the watch on the folder can have noticed the change.
const NO_POLL: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn a_written_renamed_or_relinked_file_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.toml");
    std::fs::write(&path, limit("5/min")).unwrap();
    let source = open(&path);
    let _watching = source.watch(NO_POLL).unwrap();

    std::fs::write(&path, limit("6/min")).unwrap();
    until(&source, 6).await;

    let other = folder.path().join("policy.toml.new");
    std::fs::write(&other, limit("7/min")).unwrap();
    std::fs::rename(&other, &path).unwrap();
    until(&source, 7).await;

    std::fs::write(&path, "not toml").unwrap();
    std::fs::write(&path, limit("8/min")).unwrap();
    until(&source, 8).await;
}

#[cfg(unix)]
#[tokio::test]
async fn a_file_behind_a_swapped_link_is_noticed() {
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (version, rate) in [("v1", "5/min"), ("v2", "6/min")] {
        std::fs::create_dir(at(version)).unwrap();
        std::fs::write(at(version).join("policy.toml"), limit(rate)).unwrap();
    }
    symlink("v1", at("data")).unwrap();
    symlink("data/policy.toml", at("policy.toml")).unwrap();
    let source = open(&at("policy.toml"));
    let _watching = source.watch(NO_POLL).unwrap();
    symlink("v2", at("data.new")).unwrap();
    std::fs::rename(at("data.new"), at("data")).unwrap();
    until(&source, 6).await;
}

#[cfg(unix)]
#[tokio::test]
async fn a_change_outside_the_watched_folder_is_noticed_by_polling() {
    let folder = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.toml");
    let target = elsewhere.path().join("policy.toml");
    std::fs::write(&target, limit("5/min")).unwrap();
    std::os::unix::fs::symlink(&target, &path).unwrap();
    let source = open(&path);
    let _watching = source.watch(Duration::from_millis(50)).unwrap();
    std::fs::write(&target, limit("6/min")).unwrap();
    until(&source, 6).await;
}

#[test]
fn x10_a_limit_that_forgets_what_was_used_is_named_with_the_key_that_changed() {
    let policy = |limit: &str| {
        let classes = "[[class]]\nname = \"a\"\n[[class]]\nname = \"b\"\n";
        let text =
            format!("[policy]\ndefaults = false\n{classes}[[limit]]\nname = \"few\"\n{limit}\n");
        let path = std::path::Path::new("test.toml");
        let (env, flags) = (Env::default(), Overrides::default());
        palisade_policy::load_text(path, &text, &env, &flags)
            .unwrap()
            .policy
    };
    let before = policy("by = [\"ip\"]\nrate = \"5/min\"");
    let changed = |limit: &str| {
        let after = policy(limit);
        let mut found = after.limits_starting_anew(&before);
        found
            .next()
            .map(|(limit, key)| (limit.name.to_string(), key))
    };
    for kept in [
        "by = [\"ip\"]\nrate = \"9/min\"",
        "by = [\"ip\"]\nrate = \"5/min\"\naccuracy = \"leased\"",
        "by = [\"ip\"]\nrate = \"5/min\"\nalgorithm = \"token-bucket\"",
        "by = [\"ip\"]\nrate = \"5/min\"\nclass = [\"a\", \"b\"]",
    ] {
        assert_eq!(changed(kept), None, "{kept}");
    }
    for (forgotten, key) in [
        ("by = [\"ip\"]\nrate = \"5/h\"", "rate"),
        ("by = [\"user\"]\nrate = \"5/min\"", "by"),
        ("by = [\"ip\"]\nrate = \"5/min\"\nclass = \"a\"", "class"),
        (
            "by = [\"ip\"]\nrate = \"5/min\"\naccuracy = \"local\"",
            "accuracy",
        ),
        (
            "by = [\"ip\"]\nrate = \"5/min\"\nalgorithm = \"fixed-window\"",
            "algorithm",
        ),
        ("by = [\"ip\"]\nrate = \"5/min\"\nunit = \"tokens\"", "unit"),
        (
            "by = [\"ip\"]\nconcurrency = 5\nhold = \"60s\"",
            "concurrency",
        ),
    ] {
        assert_eq!(
            changed(forgotten),
            Some(("few".to_owned(), key)),
            "{forgotten}"
        );
    }
}
