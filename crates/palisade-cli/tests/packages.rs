//! The packages that operators install: what is in them, that they install, upgrade and leave,
//! and that what they hold is valid for those who read it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::{Client, Server, address_of, palisade, sign_in, signal, wait};
use serde_json::Value;

const BINARY: &str = env!("CARGO_BIN_EXE_palisade");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// Runs a program to its end; what it printed.
fn run(command: &mut Command) -> String {
    let output = command
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let failed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}\n{told}{failed}");
    told
}

fn package(into: &Path, version: &str) -> PathBuf {
    let script = root().join("scripts/package-deb");
    let told = run(Command::new(script)
        .args([BINARY.as_ref(), into.as_os_str()])
        .env("DEB_COMPRESSION", "none")
        .env("DEB_FEATURES", "any")
        .env("DEB_VERSION", version));
    PathBuf::from(told.trim())
}

/// A machine's root with dpkg's own records and nothing else. Scripts of packages run outside
/// of it and are told where it is.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new() -> Self {
        let machine = Self(tempfile::tempdir().unwrap());
        for folder in ["var/lib/dpkg/info", "var/lib/dpkg/updates", "etc"] {
            fs::create_dir_all(machine.path(folder)).unwrap();
        }
        fs::write(machine.path("var/lib/dpkg/status"), "").unwrap();
        machine
    }

    fn path(&self, inside: &str) -> PathBuf {
        self.0.path().join(inside)
    }

    fn dpkg(&self, args: &[&str]) -> String {
        let mut command = Command::new("dpkg");
        command
            .arg(format!("--root={}", self.0.path().display()))
            .args([
                "--force-depends",
                "--force-script-chrootless",
                "--force-confold",
            ])
            .args(args);
        run(&mut command)
    }

    /// Starts what is installed, with the configuration that is, on ports of its own. Only the
    /// places that the configuration names are put inside of the root.
    fn serve(&self) -> Server {
        let config = fs::read_to_string(self.path("etc/palisade/palisade.toml")).unwrap();
        for place in ["/var/lib/palisade/data", "/var/log/palisade/audit.jsonl"] {
            assert!(config.contains(place), "{config}");
        }
        // What systemd makes, by the unit's `StateDirectory` and `LogsDirectory`.
        for folder in ["var/lib/palisade", "var/log/palisade"] {
            fs::create_dir_all(self.path(folder)).unwrap();
        }
        let store = self.path("var/lib/palisade/data");
        let mut command = Command::new(self.path("usr/bin/palisade"));
        command
            .env_clear()
            .env(
                "PALISADE_STORE__URL",
                format!("embedded:{}", store.display()),
            )
            .env(
                "PALISADE_AUDIT__FILE",
                self.path("var/log/palisade/audit.jsonl"),
            )
            .args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .arg("--config")
            .arg(self.path("etc/palisade/palisade.toml"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        Server::run(command, tempfile::tempdir().unwrap())
    }
}

#[test]
fn the_debian_package_installs_serves_is_upgraded_keeps_its_data_and_leaves() {
    let out = tempfile::tempdir().unwrap();
    let first = package(out.path(), "0.1.0");
    let machine = Machine::new();
    machine.dpkg(&["--install", first.to_str().unwrap()]);
    for file in [
        "usr/share/man/man1/palisade.1.gz",
        "usr/share/man/man1/palisade-serve.1.gz",
        "usr/share/man/man1/palisade-doctor.1.gz",
        "usr/share/bash-completion/completions/palisade",
        "usr/share/zsh/vendor-completions/_palisade",
        "usr/share/fish/vendor_completions.d/palisade.fish",
        "usr/share/doc/palisade/copyright",
        "usr/share/palisade/prometheus/alerts.yml",
        "usr/share/doc/palisade/examples/palisade.socket",
    ] {
        assert!(machine.path(file).is_file(), "{file}");
    }
    let users = fs::read_to_string(machine.path("etc/passwd")).unwrap();
    assert!(users.contains("palisade:x:"), "{users}");

    // The policy it brings is a valid one, and the binary is the one that was packaged.
    let config = machine.path("etc/palisade/palisade.toml");
    let installed = machine.path("usr/bin/palisade");
    run(Command::new(&installed).arg("check").arg(&config));
    let version = run(Command::new(&installed).arg("--version"));
    assert!(version.starts_with("palisade "), "{version}");
    let enabled = "etc/systemd/system/multi-user.target.wants/palisade.service";
    assert!(
        machine.path(enabled).is_symlink(),
        "it starts with the machine"
    );

    // What the service has kept, and what an operator has written.
    let server = machine.serve();
    let statuses: Vec<_> = (0..11)
        .map(|_| server.post("/v1/check", &sign_in("203.0.113.5")).json())
        .map(|answer| answer["status"].clone())
        .collect();
    assert!(statuses[..10].iter().all(|status| status == 200));
    assert_eq!(statuses[10], 429);
    server.terminate();
    assert_eq!(server.wait().0, Some(0));
    let state = machine.path("var/lib/palisade/data");
    let secret = fs::read(state.join("secret")).unwrap();
    assert!(machine.path("var/log/palisade/audit.jsonl").is_file());
    let own = "# ours\n[store]\nurl = \"memory:\"\n";
    fs::write(&config, own).unwrap();
    let second = package(out.path(), "0.1.1");
    machine.dpkg(&["--install", second.to_str().unwrap()]);
    assert!(machine.dpkg(&["--list", "palisade"]).contains("0.1.1"));
    assert_eq!(fs::read(state.join("secret")).unwrap(), secret);
    assert_eq!(fs::read_to_string(&config).unwrap(), own);

    // Not one that an operator has disabled.
    fs::remove_file(machine.path(enabled)).unwrap();
    let third = package(out.path(), "0.1.2");
    machine.dpkg(&["--install", third.to_str().unwrap()]);
    assert!(!machine.path(enabled).is_symlink(), "it stays disabled");

    machine.dpkg(&["--remove", "palisade"]);
    assert!(!installed.exists());
    assert!(state.join("secret").exists(), "removing keeps the state");
    assert!(config.exists(), "and the configuration");
    machine.dpkg(&["--purge", "palisade"]);
    assert!(
        !machine.path("var/lib/palisade").exists(),
        "purging does not"
    );
    assert!(!config.exists());
}

#[test]
fn a_binary_says_which_features_it_has_and_a_package_wants_them_all() {
    let features = [
        ("mongodb", cfg!(feature = "mongodb")),
        ("otlp", cfg!(feature = "otlp")),
    ];
    let told = run(Command::new(BINARY).arg("--version"));
    let about = told.split('(').next().unwrap();
    let (with, without) = about.split_once("without").unwrap_or((about, ""));
    for (name, is_built_in) in features {
        assert_eq!(with.contains(name), is_built_in, "{told}");
        assert_eq!(without.contains(name), !is_built_in, "{told}");
    }
    let out = tempfile::tempdir().unwrap();
    let plain = out.path().join("plain");
    fs::write(
        &plain,
        "#!/bin/sh\necho palisade 1.0\necho without mongodb, otlp\n",
    )
    .unwrap();
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o755)).unwrap();
    let refused = Command::new(root().join("scripts/package-deb"))
        .args([plain.as_os_str(), out.path().as_os_str()])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{told}");
    assert!(told.contains("--features mongodb,otlp"), "{told}");
}

#[test]
fn the_systemd_units_are_valid_and_the_service_is_hardened() {
    let machine = tempfile::tempdir().unwrap();
    let units = machine.path().join("usr/lib/systemd/system");
    fs::create_dir_all(&units).unwrap();
    fs::create_dir_all(machine.path().join("usr/bin")).unwrap();
    fs::create_dir_all(machine.path().join("bin")).unwrap();
    for entry in fs::read_dir("/usr/lib/systemd/system").unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "target") {
            let _ = fs::copy(&path, units.join(path.file_name().unwrap()));
        }
    }
    for needed in ["-.mount", "system.slice", "-.slice"] {
        let _ = fs::copy(
            Path::new("/usr/lib/systemd/system").join(needed),
            units.join(needed),
        );
    }
    fs::copy(BINARY, machine.path().join("usr/bin/palisade")).unwrap();
    fs::copy("/bin/kill", machine.path().join("bin/kill")).unwrap();
    let ours = ["palisade.service", "palisade.socket"];
    for unit in ours {
        let from = root().join("deploy/systemd").join(unit);
        fs::copy(from, units.join(unit)).unwrap();
    }
    let at = format!("--root={}", machine.path().display());
    let verify = Command::new("systemd-analyze")
        .args(["verify", &at, "--man=no", "--recursive-errors=no"])
        .args(ours)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&verify.stderr);
    let is_named = |unit: &str| told.contains(&format!("{unit}:"));
    assert!(
        verify.status.success() && !ours.into_iter().any(is_named),
        "{told}"
    );

    // Ten times systemd's exposure level: 0 is nothing left open, 100 everything.
    let security = Command::new("systemd-analyze")
        .args([
            "security",
            "--offline=true",
            &at,
            "--threshold=15",
            "--no-pager",
        ])
        .arg("palisade.service")
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&security.stdout);
    assert!(security.status.success(), "{told}");
    assert!(told.contains("Overall exposure level"), "{told}");
}

/// The folder of the socket file that the page about Envoy names, and the socket's address that
/// the configuration has unless told otherwise.
#[test]
fn the_systemd_units_fit_what_the_pages_and_the_configuration_say() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let service = read("deploy/systemd/palisade.service");
    let page = read("docs/envoy.md");
    let file = page.split_once("grpc = \"unix:").unwrap().1;
    let file = Path::new(file.split_once('"').unwrap().0);
    let folder = file.parent().unwrap().strip_prefix("/run").unwrap();
    let made = format!("\nRuntimeDirectory={}\n", folder.display());
    assert!(service.contains(&made), "{made}");
    let socket = read("deploy/systemd/palisade.socket");
    let at = socket.split_once("\nListenStream=").unwrap().1;
    let at = at.lines().next().unwrap();
    let told = run(palisade().args(["serve", "--help"]));
    assert!(told.contains(at), "{told}");
}

/// What the image is made of: the binary of the tests with its libraries, or the static one
/// that `PALISADE_STATIC` names, which takes minutes to build.
fn contained() -> PathBuf {
    std::env::var_os("PALISADE_STATIC").map_or_else(|| BINARY.into(), PathBuf::from)
}

/// Images in a place of their own.
struct Images(tempfile::TempDir);

impl Images {
    fn new() -> Self {
        let images = Self(tempfile::tempdir().unwrap());
        let at = images.0.path().display();
        let settings = format!(
            "[storage]\ndriver = \"vfs\"\ngraphroot = \"{at}/graph\"\nrunroot = \"{at}/run\"\n"
        );
        fs::write(images.0.path().join("storage.conf"), settings).unwrap();
        images
    }

    fn run(&self, program: impl AsRef<std::ffi::OsStr>, args: &[&str]) -> String {
        let settings = self.0.path().join("storage.conf");
        let mut command = Command::new(program);
        let told = run(command.args(args).env("CONTAINERS_STORAGE_CONF", settings));
        told.trim().to_owned()
    }
}

/// Runs a command of an image in its root, as its user.
fn in_image(at: &str, user: &str, command: &[String], args: &[&str]) -> Command {
    let mut chroot = Command::new("chroot");
    chroot
        .arg(format!("--userspec={user}"))
        .args(["--groups=", at])
        .args(command)
        .args(args)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(Stdio::null());
    chroot
}

#[test]
fn a_container_has_nothing_but_the_service_serves_and_says_how_it_is() {
    let images = Images::new();
    let script = root().join("scripts/package-container");
    images.run(script, &["palisade", contained().to_str().unwrap()]);
    let about = images.run("buildah", &["inspect", "--type", "image", "palisade"]);
    let about: Value = serde_json::from_str(&about).unwrap();
    let config = &about["Docker"]["config"];
    let words = |value: &Value| -> Vec<String> { serde_json::from_value(value.clone()).unwrap() };
    let start = [words(&config["Entrypoint"]), words(&config["Cmd"])].concat();
    let (how, check) = (
        &config["Healthcheck"]["Test"][0],
        &config["Healthcheck"]["Test"],
    );
    assert_eq!(how, "CMD", "there is no shell");
    let user = config["User"].as_str().unwrap();
    assert_eq!(user, "65532:65532");

    let container = images.run("buildah", &["from", "palisade"]);
    let at = images.run("buildah", &["mount", &container]);
    assert!(!Path::new(&at).join("bin/sh").exists());
    let anywhere = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let mut child = in_image(&at, user, &start, &anywhere)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let banner = banner_of(&mut child);
    let listen = address_of(&banner, "decision API").unwrap();
    let admin = address_of(&banner, "admin").unwrap();
    let body = br#"{"ip":"203.0.113.5","method":"POST","path":"/auth/token"}"#;
    let mut client = Client::connect(listen);
    let statuses: Vec<u16> = (0..11)
        .map(|_| client.send("POST", "/v1/check", &[], body).json())
        .map(|answer| u16::try_from(answer["status"].as_u64().unwrap()).unwrap())
        .collect();
    assert_eq!(statuses[..10], [200; 10]);
    assert_eq!(statuses[10], 429);
    let healthy = || {
        let admin = admin.to_string();
        let mut check = in_image(&at, user, &words(check)[1..], &["--admin", &admin]);
        check.output().unwrap().status.code()
    };
    assert_eq!(healthy(), Some(0));
    let secret = Path::new(&at).join("data/secret");
    assert!(secret.exists(), "{banner}");
    signal(child.id(), "TERM");
    assert_eq!(wait(&mut child), Some(0));
    assert_eq!(healthy(), Some(3), "nobody answers");
}

fn banner_of(child: &mut Child) -> String {
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut banner = String::new();
    while !banner.contains("\nready\n") {
        let read = lines.read_line(&mut banner).unwrap();
        assert_ne!(read, 0, "the service ended at its start:\n{banner}");
    }
    // A pipe that nobody empties would hold the service up.
    std::thread::spawn(move || lines.lines().for_each(drop));
    banner
}

/// Every crate in the order in which they depend on each other, as a registry would take them.
#[test]
fn library_crates_are_ready_to_be_published() {
    let out = tempfile::tempdir().unwrap();
    run(Command::new(env!("CARGO"))
        .args([
            "package",
            "--workspace",
            "--no-verify",
            "--allow-dirty",
            "--offline",
            "--quiet",
        ])
        .arg("--target-dir")
        .arg(out.path())
        .current_dir(root()));
    for name in [
        "palisade-core",
        "palisade-policy",
        "palisade-store",
        "palisade",
    ] {
        let packed = format!("package/{name}-{}.crate", env!("CARGO_PKG_VERSION"));
        assert!(out.path().join(&packed).is_file(), "{packed}");
        let manifest = root().join(format!("crates/{name}/Cargo.toml"));
        let manifest = fs::read_to_string(manifest).unwrap();
        for key in [
            "description",
            "license",
            "repository",
            "readme",
            "keywords",
            "categories",
        ] {
            assert!(manifest.contains(key), "{name} has no `{key}`");
        }
        assert!(manifest.contains("[package.metadata.docs.rs]"), "{name}");
    }
}
