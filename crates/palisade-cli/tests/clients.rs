//! The client packages pass their own tests, which start real services and put real
//! frameworks in front of them. What they need is installed below the target directory.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test fails by panicking and says why"
)]

#[path = "common/node.rs"]
mod node;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use node::{environment, installed, node, on_path, run};

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
        let left_behind = [
            "node_modules",
            "dist",
            "build",
            "__pycache__",
            "page",
            "vendor",
        ];
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

fn with_service(command: &mut Command) -> &mut Command {
    command
        .env("PALISADE_BIN", env!("CARGO_BIN_EXE_palisade"))
        .env("PALISADE_DOCS", root().join("docs"))
        .env("PALISADE_CONFORMANCE", root().join("clients/conformance"))
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

/// Debian: `apt-get install golang-go golang-github-go-chi-chi-dev
/// golang-github-gin-gonic-gin-dev`.
#[test]
fn the_go_package_has_no_races_and_passes_its_tests() {
    let package = workplace("go").join("package");
    let go = |args: &[&str]| {
        let mut command = Command::new("go");
        let what = format!("go {}", args.join(" "));
        run(
            &what,
            with_service(command.args(args).current_dir(&package)),
        );
    };
    let unformatted = Command::new("gofmt")
        .args(["-l", "."])
        .current_dir(&package)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&unformatted.stdout), "");
    go(&["vet", "./..."]);
    go(&["test", "-race", "-count=1", "./..."]);
}

/// Debian: `apt-get install php-cli phpunit php-nyholm-psr7 php-illuminate-http
/// php-illuminate-routing php-illuminate-events`.
#[test]
fn the_php_package_passes_its_tests() {
    let package = workplace("php").join("package");
    let mut command = Command::new("phpunit");
    run("phpunit", with_service(command.current_dir(&package)));
}

/// The first shell block of a page, run in a folder that holds nothing but the package.
fn installs(language: &str, home: &Path, before: &str, then: &str) {
    let page = fs::read_to_string(root().join(format!("docs/{language}.md"))).unwrap();
    let block = page.split("```sh\n").nth(1).unwrap();
    let block = block.split("```").next().unwrap();
    assert!(block.contains(&format!("./clients/{language}")), "{block}");
    let package = home.join("clients").join(language);
    copy(&root().join("clients").join(language), &package);
    let script = format!("{before}\n{block}\n{then}");
    let programs = node(home);
    let mut shell = on_path("sh", None);
    if let Some(programs) = programs {
        let path = std::env::var("PATH").unwrap();
        shell.env("PATH", format!("{}:{path}", programs.display()));
    }
    run(&script, shell.args(["-e", "-c", &script]).current_dir(home));
}

#[test]
fn the_python_package_is_installed_as_the_page_says() {
    let home = tempfile::tempdir().unwrap();
    let before = "python3 -m venv venv; export PATH=\"$PWD/venv/bin:$PATH\"";
    let then = "python -c 'import palisade_client.fastapi, uvicorn, multipart'";
    installs("python", home.path(), before, then);
}

#[test]
fn the_typescript_package_is_installed_as_the_page_says() {
    let home = tempfile::tempdir().unwrap();
    let then = "node --input-type=module -e 'import { limited } from \"palisade-client/fetch\"; limited.name'\n\
                node -e 'require(\"palisade-client/fetch\").limited.name'";
    installs("typescript", home.path(), ":", then);
}

#[test]
fn the_go_package_is_installed_as_the_page_says() {
    let home = tempfile::tempdir().unwrap();
    let then = "printf 'package main\nimport palisade \"example.com/palisade/clients/go\"\n\
                func main() { println(palisade.Allow) }\n' > main.go\n\
                go run .";
    installs("go", home.path(), "export GOFLAGS= GOPROXY=off", then);
}

#[test]
fn the_php_package_is_installed_as_the_page_says() {
    let home = tempfile::tempdir().unwrap();
    // Nothing is taken from the registry: a machine without one must not wait for it.
    let before = "mkdir composer; export COMPOSER_HOME=$PWD/composer COMPOSER_ALLOW_SUPERUSER=1\n\
                  echo '{\"repositories\":{\"packagist.org\":false}}' > composer/config.json";
    let then = "php -r 'require \"vendor/autoload.php\"; \
                new Palisade\\Client\\Palisade(\"http://127.0.0.1:8080\");'";
    installs("php", home.path(), before, then);
}
