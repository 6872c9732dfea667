//! `palisade import`: another project's configuration as a policy that decides like it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod common;
#[path = "imports/differential.rs"]
mod differential;
#[path = "imports/limitador.rs"]
mod limitador_itself;
#[path = "imports/nginx.rs"]
mod nginx;
#[path = "../../palisade/tests/path_readers/nginx.rs"]
mod nginx_server;
#[path = "imports/page.rs"]
mod page;
#[path = "imports/reference.rs"]
mod reference;
#[path = "imports/replayed.rs"]
mod replayed;
#[path = "imports/sources.rs"]
mod sources;

use std::path::{Path, PathBuf};
use std::process::Output;

use common::palisade;

pub(crate) fn fixture(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/imports/fixtures");
    folder.join(name).to_str().unwrap().to_owned()
}

pub(crate) fn run(args: &[&str]) -> Output {
    palisade().args(args).output().unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// A file in a folder of its own, named as in the messages.
pub(crate) struct Scratch(tempfile::TempDir);

impl Scratch {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn file(&self, name: &str, content: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Imports, and the policy and cases that were made.
    pub(crate) fn import(&self, args: &[&str]) -> (String, String) {
        let made = self.try_import(args);
        made.unwrap_or_else(|said| panic!("{said}"))
    }

    /// The same; what was said if it is refused.
    pub(crate) fn try_import(&self, args: &[&str]) -> Result<(String, String), String> {
        let (policy, cases) = (self.path("policy.toml"), self.path("cases.jsonl"));
        for old in [&policy, &cases] {
            let _ = std::fs::remove_file(old);
        }
        let to = [
            "--out",
            common::text(&policy),
            "--cases",
            common::text(&cases),
        ];
        let output = run(&[&["import"], args, &to].concat());
        if output.status.code() != Some(0) {
            return Err(text(&output.stderr).to_owned());
        }
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        Ok((read(&policy), read(&cases)))
    }

    /// The cases that were made hold on the policy that was made.
    pub(crate) fn cases_hold(&self) {
        let (policy, cases) = (self.path("policy.toml"), self.path("cases.jsonl"));
        let paths = [common::text(&cases), "--config", common::text(&policy)];
        let output = run(&[&["test"], &paths[..]].concat());
        let said = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(0), "{said:?}");
    }
}
