//! Compares our reading of user names with that of real programs for the same bytes: PHP, Express
//! (`qs`, `querystring`, busboy), Flask, Django, urllib and Rack.
//!
//! For every login, either it is refused, or no program finds another name in it than the one that
//! is counted.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

#[path = "name_readers/corpus.rs"]
mod corpus;
#[path = "name_readers/readers.rs"]
mod readers;

use corpus::Case;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue};
use palisade::extract::login::username;
use palisade_core::spelling;
use palisade_policy::UsernameSource;

const CASES: usize = 24_000;

/// The name that a login is counted for, if it is admitted.
fn counted(case: &Case) -> Option<String> {
    let kind = HeaderValue::from_str(&case.kind).unwrap();
    let headers = HeaderMap::from_iter([(CONTENT_TYPE, kind)]);
    let name = username(&case.source, Some(&case.query), &headers, &case.body);
    name.ok().flatten().map(|name| name.as_str().to_owned())
}

/// Names that some program finds in these cases besides the given ones.
fn misread(cases: &[(&Case, String)]) -> Vec<String> {
    let only: Vec<&Case> = cases.iter().map(|(case, _)| *case).collect();
    let mut found = Vec::new();
    for (reader, findings) in readers::read(&only) {
        let named = findings.iter().filter(|names| !names.is_empty()).count();
        assert!(named > cases.len() / 4, "{reader} finds {named} names only");
        for ((case, name), others) in cases.iter().zip(findings) {
            let other = others.iter().find(|other| spelling::one(other) != *name);
            found.extend(other.map(|other| format!("{reader} reads {other} in {}", case.shown())));
        }
    }
    found
}

#[test]
fn s2_every_login_is_refused_or_counted_for_the_name_that_is_read() {
    let cases = corpus::cases(CASES);
    let admitted: Vec<(&Case, String)> = cases
        .iter()
        .filter_map(|case| Some((case, counted(case)?)))
        .collect();
    assert!(
        admitted.len() > CASES / 20,
        "{} are admitted",
        admitted.len()
    );
    assert!(
        admitted.len() < CASES / 2,
        "{} are admitted",
        admitted.len()
    );
    let found = misread(&admitted);
    let few: Vec<&String> = found.iter().take(20).collect();
    assert!(found.is_empty(), "{} misread: {few:#?}", found.len());
}

/// The comparison is able to fail: bodies that are refused are compared as if the decoy were
/// counted.
#[test]
fn s2_the_comparison_finds_disguises() {
    let form = |body: &str| Case {
        kind: "application/x-www-form-urlencoded".to_owned(),
        query: String::new(),
        body: body.as_bytes().to_vec(),
        source: UsernameSource::Form("email".to_owned()),
        path: vec!["email".to_owned()],
    };
    let plain: Vec<Case> = (0..9).map(|_| form("email=bob")).collect();
    for body in [
        "email=bob&email%00=ann",
        "email=bob&+email=ann",
        "email=bob&email[]=ann",
        "email=bob&email=ann",
        "email=bob&a;email=ann",
    ] {
        let disguised = form(body);
        assert_eq!(counted(&disguised), None, "{body}");
        let all = plain.iter().chain([&disguised]);
        let all: Vec<(&Case, String)> = all.map(|case| (case, "bob".to_owned())).collect();
        let found = misread(&all);
        assert!(!found.is_empty(), "{body}");
    }
}
