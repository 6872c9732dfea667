//! Every `palisade …` on a page, read by the program itself.

use std::fs;
use std::path::PathBuf;

use crate::shell::{Shell, root};

/// Runs the program with `--help` behind whatever it was given: wrong commands, flags and values
/// are refused before the help is printed. A flag that a sentence names without its value gets
/// one.
const READER: &str = r#"#!/bin/sh
for last; do :; done
case "$last" in
  --*) "$REAL" "$@" --help >/dev/null 2>&1 && exit; set -- "$@" 127.0.0.1:1 ;;
esac
exec "$REAL" "$@" --help >/dev/null
"#;

fn pages() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = ["README.md", "ARCHITECTURE.md", "SECURITY.md"]
        .map(|name| root().join(name))
        .into();
    let clients = ["go", "php", "python", "typescript"].map(|each| format!("clients/{each}"));
    for folder in ["docs", "spec"]
        .map(str::to_owned)
        .into_iter()
        .chain(clients)
    {
        let entries = fs::read_dir(root().join(folder)).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        found.extend(paths.filter(|path| path.extension().is_some_and(|end| end == "md")));
    }
    found.sort();
    found
}

/// Whether a line or a piece of inline code starts with the program, and then which part of it
/// is the command: what stands before, a prompt for example, is not.
fn command(code: &str) -> Option<String> {
    let mut rest = code.trim().trim_start_matches("$ ");
    while let Some((word, after)) = rest.split_once(' ') {
        let is_variable = word.contains('=') && !word.contains(['"', '\'', '(']);
        if !is_variable {
            let named = after.split_whitespace().next().unwrap_or_default();
            let is_command = word.rsplit('/').next() == Some("palisade")
                && named.starts_with(|c: char| c.is_ascii_lowercase());
            return is_command.then(|| format!("palisade {after}"));
        }
        rest = after;
    }
    None
}

/// Inline code, also over the end of a line.
fn spans(text: &str) -> Vec<String> {
    let prose: Vec<&str> = text.split("```").step_by(2).collect();
    let paragraphs = prose.iter().flat_map(|part| part.split("\n\n"));
    paragraphs
        .flat_map(|paragraph| paragraph.split('`').skip(1).step_by(2))
        .map(|code| code.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect()
}

/// Every command of a page.
fn commands(text: &str) -> Vec<String> {
    let joined = text.replace("\\\n", " ");
    let lines = joined.lines().map(str::to_owned);
    let candidates = lines.chain(spans(text));
    candidates.filter_map(|code| command(&code)).collect()
}

/// What the program says against a command, if anything.
fn refused(shell: &Shell, command: &str) -> Option<String> {
    let command = command.trim_end_matches('&');
    let script = format!("{{ {command}\n}} 2>&1 || echo refused");
    let printed = shell.run(&script);
    printed.contains("refused").then_some(printed)
}

fn reader() -> Shell {
    let shell = Shell::new().with("REAL", env!("CARGO_BIN_EXE_palisade"));
    let at = shell.home.path().join("bin/palisade");
    fs::remove_file(&at).unwrap();
    fs::write(&at, READER).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&at, mode).unwrap();
    shell
}

#[test]
fn every_command_of_every_page_is_one_that_the_program_has() {
    let shell = reader();
    let (mut all, mut wrong) = (0, Vec::new());
    for page in pages() {
        for command in commands(&fs::read_to_string(&page).unwrap()) {
            all += 1;
            if let Some(why) = refused(&shell, &command) {
                wrong.push(format!("{}: {command}: {why}", page.display()));
            }
        }
    }
    assert!(all > 90, "the commands were not found: {all}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_command_that_the_program_lacks_is_found() {
    let shell = reader();
    let text = "`palisade serv` and `palisade serve\n--config x --nothing`\n\n\
                ```console\n$ A=b target/debug/palisade quota burn | cat\n```\n\
                `palisade COMMAND`, `palisade-client`, `a palisade serve`\n";
    let found = commands(text);
    assert_eq!(
        found,
        [
            "palisade quota burn | cat",
            "palisade serv",
            "palisade serve --config x --nothing",
        ]
    );
    for command in &found {
        let alone = command.replace(" | cat", "");
        assert!(refused(&shell, &alone).is_some(), "{command}");
    }
    let right = [
        "palisade serve &",
        "palisade bench --target",
        "palisade export x > y",
    ];
    for command in right {
        assert_eq!(refused(&shell, command), None, "{command}");
    }
}

/// Each subcommand is in the tables of docs/commands.md.
#[test]
fn every_subcommand_is_on_the_page_about_commands() {
    let page = fs::read_to_string(root().join("docs/commands.md")).unwrap();
    let told = Shell::new().run("palisade --help");
    let (_, listed) = told.split_once("Commands:\n").unwrap();
    let names: Vec<&str> = listed
        .lines()
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix("  "))
        .filter_map(|line| line.split(' ').next())
        .filter(|name| !name.is_empty())
        .filter(|name| *name != "help")
        .collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        let row = format!("| `palisade {name}");
        assert!(page.contains(&row), "`palisade {name}` is not on the page");
    }
}

/// Scripts that a page tells to run, as `scripts/name`.
fn scripts(text: &str) -> Vec<String> {
    let behind = text.split("scripts/").skip(1);
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    behind
        .map(|rest| rest.split(|c| !is_name(c)).next().unwrap_or_default())
        .map(|name| name.trim_end_matches('.').to_owned())
        .filter(|name| !name.is_empty())
        .collect()
}

#[test]
fn every_script_that_a_page_names_is_there() {
    let mut all = 0;
    for page in pages() {
        if page.starts_with(root().join("clients")) {
            continue;
        }
        for name in scripts(&fs::read_to_string(&page).unwrap()) {
            let path = root().join("scripts").join(&name);
            assert!(path.is_file(), "{}: scripts/{name}", page.display());
            all += 1;
        }
    }
    assert!(all > 8, "the scripts were not found: {all}");
}
