//! I-PATH: compares our reading of paths with that of real programs for the same bytes: Node's
//! `URL`, Python's urllib, `http.server`, WSGI and an ASGI server, nginx, and Go's rules as a
//! table.
//!
//! For every spelling, either the request is refused, or its class is that of the resource which
//! the application would serve.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

#[path = "path_readers/corpus.rs"]
mod corpus;
#[expect(unreachable_pub, reason = "the module is also a part of a library")]
#[path = "../../../fuzz/src/go_rules.rs"]
mod go_rules;
#[path = "path_readers/nginx.rs"]
mod nginx_server;
#[path = "path_readers/readers.rs"]
mod readers;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use palisade_core::PolicySet;
use palisade_core::path::{EncodedSlash, normalise};
use palisade_policy::{Env, Overrides, load_text};

/// Routes in addition to the default ones: exempt, open, escaped and odd.
const ROUTES: &str = r#"
[[route]]
path = "/health"
class = "health"
[[route]]
path = "/files/*"
class = "files"
[[route]]
path = "/~staff/*"
class = "staff"
[[route]]
path = "/café/*"
class = "menu"
[[route]]
path = "/v1/users:login"
class = "login"
[[route]]
path = "/api*"
class = "api"
"#;

const METHOD: &str = "POST";

fn policy() -> Arc<PolicySet> {
    let loaded = load_text(
        Path::new("test.toml"),
        ROUTES,
        &Env::default(),
        &Overrides::default(),
    );
    loaded.unwrap().policy
}

/// The target that an application gets, and the path by which the request was judged.
type Asked = BTreeMap<String, String>;

fn path_of(target: &str) -> &str {
    target.split('?').next().unwrap_or_default()
}

/// Every admitted spelling: the target that our proxy forwards, and the one that a proxy with
/// forward-auth forwards.
fn admitted(policy: &PolicySet, corpus: &[String]) -> (Asked, Asked) {
    let (mut passed_on, mut as_written) = (Asked::new(), Asked::new());
    let routes = policy.routes();
    for target in corpus {
        let Ok(normal) = normalise(path_of(target).as_bytes(), EncodedSlash::Refused) else {
            continue;
        };
        let judged = normal.judged().to_owned();
        if routes.agree(METHOD, None, &judged, normal.forwarded_reading()) {
            let query = &target[path_of(target).len()..];
            passed_on.insert(format!("{}{query}", normal.forwarded()), judged.clone());
        }
        if routes.agree(METHOD, None, &judged, normal.readings()) {
            as_written.insert(target.clone(), judged);
        }
    }
    (passed_on, as_written)
}

/// Targets that some program reads as another path than was judged.
fn misread(policy: &PolicySet, asked: &Asked) -> Vec<String> {
    let targets: Vec<&String> = asked.keys().collect();
    let mut found = Vec::new();
    for (reader, answers) in readers::read(&targets) {
        let served = answers.iter().flatten().count();
        assert!(
            served > targets.len() / 4,
            "`{reader}` serves {served} only"
        );
        for ((target, judged), answer) in asked.iter().zip(answers) {
            let Some(path) = answer else { continue };
            let path = match path.strip_suffix('/') {
                Some(rest) if !rest.is_empty() => rest,
                _ => &path,
            };
            let routes = policy.routes();
            if routes.find(METHOD, None, path) != routes.find(METHOD, None, judged) {
                found.push(format!(
                    "{reader} reads {target} as {path}, judged {judged}"
                ));
            }
        }
    }
    found
}

#[test]
fn i_path_every_spelling_is_refused_or_counted_as_what_is_served() {
    let policy = policy();
    let corpus = corpus::spellings(120_000);
    assert!(corpus.len() >= 100_000);
    let (passed_on, as_written) = admitted(&policy, &corpus);
    assert!(passed_on.len() > 1_000 && as_written.len() > 5_000);
    assert!(as_written.len() < corpus.len() / 2, "little is refused");
    for asked in [passed_on, as_written] {
        let found = misread(&policy, &asked);
        let few: Vec<&String> = found.iter().take(20).collect();
        assert!(found.is_empty(), "{} misread: {few:#?}", found.len());
    }
}

/// The comparison is able to fail: spellings that are refused are compared as if they were
/// admitted.
#[test]
fn i_path_the_comparison_finds_disguises() {
    let policy = policy();
    for (target, judged) in [
        ("//x/auth/token", "/x/auth/token"),
        ("/auth/x//../../token", "/auth/token"),
        ("//health/auth/token", "/health/auth/token"),
        ("/auth%2Ftoken", "/auth%2Ftoken"),
        ("/auth\\token", "/auth%5Ctoken"),
        ("/x/../auth/token", "/x/auth/token"),
        ("/%68ealth", "/%68ealth"),
    ] {
        let mut asked = Asked::from([(target.to_owned(), judged.to_owned())]);
        // So many plain paths that every program serves most of the list.
        asked.extend((0..9).map(|n| (format!("/plain/{n}"), format!("/plain/{n}"))));
        assert!(!misread(&policy, &asked).is_empty(), "{target}");
    }
}
