//! The page in a real Chromium, driven by a script beside its sources; and that what is
//! embedded is what its sources give.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use super::node::{installed, node, on_path, run};
use super::*;

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../palisade-server/dashboard")
}

/// A copy of the page's sources with everything that builds and drives it.
pub(super) struct Workplace {
    package: PathBuf,
    programs: Option<PathBuf>,
}

impl Workplace {
    pub(super) fn command(&self, program: &str) -> Command {
        let mut command = on_path(program, self.programs.as_deref());
        command.current_dir(&self.package);
        command
    }
}

pub(super) fn workplace() -> &'static Workplace {
    static MADE: OnceLock<Workplace> = OnceLock::new();
    MADE.get_or_init(|| {
        let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dashboard");
        let package = home.join("package");
        fs::create_dir_all(&package).unwrap();
        copy(&sources(), &package);
        let workplace = Workplace {
            programs: node(&home),
            package,
        };
        let wanted = fs::read_to_string(sources().join("package-lock.json")).unwrap();
        installed(&home.join("modules.installed"), &wanted, || {
            eprintln!("installing into {} with npm", workplace.package.display());
            // What the lock file names, and nothing else. (`npm ci` would also want what
            // only other systems need, which a mirror may not have.)
            let install = ["install", "--no-audit", "--no-fund", "--ignore-scripts"];
            run("npm install", workplace.command("npm").args(install));
            let used = fs::read_to_string(workplace.package.join("package-lock.json"));
            let (used, wanted) = (locked(&used.unwrap()), locked(&wanted));
            assert_eq!(used, wanted, "the lock file is not up to date");
        });
        workplace
    })
}

/// What a lock file holds fast on every system. (Which packages of other systems npm adds to it
/// depends on what the registry that it asks has of them.)
fn locked(text: &str) -> serde_json::Value {
    let mut lock: serde_json::Value = serde_json::from_str(text).unwrap();
    let packages = lock["packages"].as_object_mut().unwrap();
    packages.retain(|_, package| package["optional"] != true);
    lock
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (name, kind) = (entry.file_name(), entry.file_type().unwrap());
        if name == "node_modules" || name == "dist" {
            continue;
        }
        let target = to.join(&name);
        if kind.is_dir() {
            let _ = fs::remove_dir_all(&target);
            fs::create_dir_all(&target).unwrap();
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(each) = folders.pop() {
        for entry in fs::read_dir(each).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            } else {
                let path = entry.path();
                let name = path.strip_prefix(folder).unwrap().display().to_string();
                found.push((name, fs::read(path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

#[test]
fn the_embedded_page_is_what_its_sources_give_and_small() {
    let workplace = workplace();
    run(
        "npm run build",
        workplace.command("npm").args(["run", "build"]),
    );
    let (built, kept) = (
        files(&workplace.package.join("dist")),
        files(&sources().join("dist")),
    );
    let names = |all: &[(String, Vec<u8>)]| -> Vec<String> {
        all.iter().map(|(name, _)| name.clone()).collect()
    };
    assert_eq!(names(&built), names(&kept));
    for ((name, built), (_, kept)) in built.iter().zip(&kept) {
        assert!(
            built == kept,
            "{name} differs: `npm run build` in crates/palisade-server/dashboard"
        );
    }
    let mut bytes = 0;
    for (name, _) in &kept {
        let file = sources().join("dist").join(name);
        let packed = Command::new("gzip")
            .args(["-9", "-c"])
            .arg(file)
            .output()
            .unwrap();
        assert!(packed.status.success());
        bytes += packed.stdout.len();
    }
    assert!(bytes < 150 * 1024, "{bytes} bytes compressed");
}

/// Where pictures go: below the target directory, or among the documentation's.
pub(super) fn pictures() -> PathBuf {
    let folder = match std::env::var_os("UPDATE_PICTURES") {
        Some(_) => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/img"),
        None => Path::new(env!("CARGO_TARGET_TMPDIR")).join("dashboard/pictures"),
    };
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Plays one story in a browser; it fails with what the story says.
fn play(story: &str, server: &Server) {
    run(story, &mut story_at(story, server.listen, server.admin));
}

fn story_at(story: &str, listen: SocketAddr, admin: SocketAddr) -> Command {
    let mut command = workplace().command("node");
    command
        .args(["browser/stories.mjs", story])
        .env("DASHBOARD_URL", format!("http://{admin}/"))
        .env("DECIDE_URL", format!("http://{listen}"))
        .env("OPERATOR_TOKEN", TOKEN)
        .env("VIEWER_TOKEN", VIEWER)
        .env("PICTURES", pictures());
    command
}

/// Sends checks until it is told to stop.
fn traffic(server: &Server, ended: &AtomicBool) {
    let mut client = server.connect();
    let mut n = 0_u32;
    while !ended.load(Ordering::Relaxed) {
        n += 1;
        let user = format!("u{}", n % 17);
        let path = if n.is_multiple_of(5) {
            "/reports/x"
        } else {
            "/orders"
        };
        let body = json!({"ip": format!("198.51.100.{}", n % 50), "method": "GET", "path": path, "user": user});
        client.send("POST", "/v1/check", &[], body.to_string().as_bytes());
        std::thread::sleep(std::time::Duration::from_millis(4));
    }
}

/// Plays a story while traffic runs.
fn play_under_traffic(story: &str, server: &Server) {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| traffic(server, &ended));
        let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| play(story, server)));
        ended.store(true, Ordering::Relaxed);
        if let Err(failure) = played {
            std::panic::resume_unwind(failure);
        }
    });
}

#[test]
fn figures_move_while_traffic_runs_without_errors_on_every_width_and_theme() {
    play_under_traffic("overview", &start());
}

#[test]
fn an_attack_is_seen_stopped_explained_and_lifted() {
    play_under_traffic("attack", &start());
}

#[test]
fn b_fail_reservations_are_seen_and_released_on_the_dashboard() {
    play("budgets", &start());
}

#[test]
fn wrong_credentials_and_forged_requests_are_refused_and_a_viewer_cannot_act() {
    play("roles", &start());
}

#[test]
fn l_candidate_the_panel_shows_differences_while_traffic_runs() {
    let (service, policy) = POLICY.split_once("[[route]]").unwrap();
    let policy = format!("[[route]]{policy}");
    let next =
        format!("{policy}\n[[limit]]\nname = \"two-for-each\"\nby = [\"ip\"]\nrate = \"2/min\"\n");
    let home = tempfile::tempdir().unwrap();
    let with_key = |text: &str| text.replace("KEY_HASH", &key_hash());
    fs::write(home.path().join("next.toml"), with_key(&next)).unwrap();
    let live = format!("{service}[candidate]\nfile = \"next.toml\"\n\n{policy}");
    let server = Server::at(
        home,
        &Options {
            config: Some(&with_key(&live)),
            env: &CREDENTIALS,
            ..Options::default()
        },
    );
    play_under_traffic("candidate", &server);
}

#[test]
fn after_a_restart_of_the_process_the_page_says_that_history_starts_anew() {
    let first = start();
    let (listen, admin) = (first.listen, first.admin);
    let folder = tempfile::tempdir().unwrap();
    let ready = folder.path().join("ready");
    std::thread::scope(|scope| {
        let told = scope.spawn(|| {
            run(
                "restart",
                story_at("restart", listen, admin).env("READY", &ready),
            );
        });
        while !ready.exists() && !told.is_finished() {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        first.terminate();
        let (_, home) = first.wait();
        let again = Server::at(
            home,
            &Options {
                args: &[
                    "--listen",
                    &listen.to_string(),
                    "--admin",
                    &admin.to_string(),
                ],
                config: Some(&policy()),
                env: &CREDENTIALS,
            },
        );
        assert_eq!(again.admin, admin);
        if let Err(failure) = told.join() {
            std::panic::resume_unwind(failure);
        }
    });
}

#[test]
fn it_works_with_ten_thousand_blocks_and_a_thousand_limits() {
    // As many as a policy may have, those of the defaults among them.
    let first = start();
    let frame = Page::sign_in(&first, TOKEN).get("/dashboard/now");
    let given = frame["policy"]["limits"].as_u64().unwrap();
    let limits: String = (given..1000)
        .map(|n| {
            format!("[[limit]]\nname = \"many-{n}\"\nby = [\"ip\"]\nclass = \"reports\"\nrate = \"{}/min\"\n\n", n + 5)
        })
        .collect();
    let server = start_with(&format!("{}\n{limits}", policy()));
    std::thread::scope(|scope| {
        for part in 0..4_u32 {
            let server = &server;
            scope.spawn(move || {
                let mut client = server.connect();
                for n in (part * 2500)..((part + 1) * 2500) {
                    block(&mut client, n);
                }
            });
        }
    });
    let (seen, _) = Page::sign_in(&server, TOKEN).blocks(1000);
    assert!(seen.len() >= 10_000, "{} blocks", seen.len());
    play("many", &server);
}

/// Blocks an account for five minutes, from a network of its own.
fn block(client: &mut Client, n: u32) {
    let [_, a, b, c] = n.to_be_bytes();
    let body = json!({"ip": format!("10.{a}.{b}.{c}"), "account": format!("many-{n}"),
        "device": {"fingerprint": format!("device-{n}"), "confidence": "high"}});
    let body = body.to_string();
    for _ in 0..2 {
        client.send("POST", "/v1/guard/otp/failure", &[], body.as_bytes());
    }
}
