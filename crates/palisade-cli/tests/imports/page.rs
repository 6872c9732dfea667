//! docs/import.md does what it says.

use std::path::Path;

use super::Scratch;

/// The blocks of a language on the page.
fn blocks(language: &str) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/import.md")).unwrap();
    let fence = format!("```{language}\n");
    let after = page.split(&fence).skip(1);
    after
        .map(|rest| rest.split_once("```").unwrap().0.to_owned())
        .collect()
}

/// The arguments of the line of a shell block that imports, without what the test adds.
fn arguments(block: &str) -> Vec<&str> {
    let line = block
        .lines()
        .find(|line| line.contains(" import "))
        .unwrap();
    let words = line.split_whitespace().skip(2);
    words.take_while(|word| *word != "--out").collect()
}

/// Imports as the page says, from a file of this content.
fn import(scratch: &Scratch, block: &str, content: &str) -> String {
    let mut words = arguments(block);
    let file = scratch.file(words[1], content);
    words[1] = &file;
    scratch.import(&words).0
}

/// What a policy says, without what the import says about it.
fn said(policy: &str) -> Vec<&str> {
    let about = ["# Made by", "# What differs"];
    let (limits, _) = policy.split_once("# Differences").unwrap_or((policy, ""));
    limits
        .lines()
        .filter(|line| !line.is_empty() && !about.iter().any(|start| line.starts_with(start)))
        .collect()
}

#[test]
fn the_examples_of_the_page_become_what_it_says() {
    let (shell, yaml) = (blocks("sh"), blocks("yaml"));
    let scratch = Scratch::new();
    let policy = import(&scratch, &shell[0], &yaml[0]);
    assert_eq!(said(&policy), said(&blocks("toml")[0]));
    let policy = import(&scratch, &shell[1], &yaml[1]);
    let expected = "descriptor = [{ key = \"req.method\", value = \"GET\" }, { key = \"user_id\" }]\nrate = \"10/60s\"\n";
    assert!(policy.contains(expected), "{policy}");
    let policy = import(&scratch, &shell[2], &blocks("nginx")[0]);
    assert!(
        policy.contains("rate = \"10/s\"\nalgorithm = \"token-bucket\"\nburst = 21\n"),
        "{policy}"
    );
    scratch.cases_hold();
}
