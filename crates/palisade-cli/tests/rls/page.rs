//! What docs/rls.md shows, as it shows it.

use std::path::Path;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;

use crate::common::palisade;
use crate::service::{Service, of};

/// Blocks of this language on the page, in their order.
pub(crate) fn blocks(language: &str) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/rls.md")).unwrap();
    let fence = format!("```{language}\n");
    let blocks = page.split(&fence).skip(1);
    blocks
        .map(|rest| rest.split_once("```").unwrap().0.to_owned())
        .collect()
}

#[test]
fn the_pages_policy_answers_and_its_cases_hold() {
    let [policy] = <[String; 1]>::try_from(blocks("toml")).unwrap();
    let [cases] = <[String; 1]>::try_from(blocks("json")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("policy.toml"), &policy).unwrap();
    std::fs::write(folder.path().join("cases.jsonl"), cases).unwrap();
    let output = palisade()
        .current_dir(folder.path())
        .args(["test", "cases.jsonl", "--config", "policy.toml"])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("3 events in 1 files, 0 differ"), "{said}");
    let mut service = Service::embedded(&policy);
    let login = of(&[("path", "/login"), ("remote_address", "203.0.113.5")]);
    let codes: Vec<Code> = (0..3)
        .map(|_| service.code(std::slice::from_ref(&login)))
        .collect();
    assert_eq!(codes, [Code::Ok, Code::Ok, Code::OverLimit]);
}
