//! `palisade init` writes files that `palisade check --strict` accepts, and `palisade policy`
//! shows what they mean.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod common;

use std::path::Path;

use common::{Server, palisade, signal};
use serde_json::Value;

fn run(folder: &Path, args: &[&str], env: &[(&str, &str)]) -> (i32, String) {
    let output = palisade()
        .current_dir(folder)
        .args(args)
        .envs(env.iter().copied())
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    (
        output.status.code().unwrap(),
        String::from_utf8(said).unwrap(),
    )
}

#[test]
fn every_file_that_init_writes_passes_a_strict_check() {
    let uses = [
        None,
        Some("nginx"),
        Some("envoy"),
        Some("proxy"),
        Some("login"),
        Some("library"),
    ];
    for purpose in uses {
        let folder = tempfile::tempdir().unwrap();
        let mut args = vec!["init"];
        args.extend(purpose.iter().flat_map(|purpose| ["--for", purpose]));
        let (code, said) = run(folder.path(), &args, &[]);
        assert_eq!(code, 0, "{said}");
        assert!(said.contains("next:\n  palisade "), "{said}");
        let (code, checked) = run(folder.path(), &["check", "--strict", "policy.toml"], &[]);
        assert_eq!(code, 0, "{purpose:?}: {checked}");
        let (code, again) = run(folder.path(), &args, &[]);
        assert_eq!(code, 2, "{again}");
        assert!(again.contains("is there already"), "{again}");
    }
}

#[test]
fn the_login_file_starts_in_shadow_and_keeps_the_owners_lane() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), &["init", "--for", "login"], &[]);
    let (_, shown) = run(folder.path(), &["policy", "--config", "policy.toml"], &[]);
    assert!(
        shown.contains("login in shadow, one-time codes in shadow"),
        "{shown}"
    );
    assert!(shown.contains("guard.owner_lane"), "{shown}");
}

const POLICY: &str = r#"[[limit]]
name = "ip-auth"
by = ["ip"]
class = "auth"
rate = "5/min"

[guard.login.budget]
threshold = 15

[[tenant]]
id = "acme"
limits = { org-burst = "7/min" }
"#;

#[test]
fn the_policy_in_force_names_the_origin_of_each_figure() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("policy.toml"), POLICY).unwrap();
    let args = ["policy", "--config", "policy.toml", "--tenant", "acme"];
    let env = [("PALISADE_LIMIT__IP_READ__RATE", "3/min")];
    let (code, shown) = run(folder.path(), &args, &env);
    assert_eq!(code, 0, "{shown}");
    let line = |start: &str| {
        let found = shown.lines().find(|line| line.starts_with(start));
        found
            .unwrap_or_else(|| panic!("{start}: {shown}"))
            .to_owned()
    };
    assert!(line("ip-auth ").ends_with("policy.toml:5"), "{shown}");
    assert!(
        line("ip-read ").contains("3/min")
            && line("ip-read ").ends_with("PALISADE_LIMIT__IP_READ__RATE"),
        "{shown}"
    );
    assert!(line("ip-write ").ends_with("default"), "{shown}");
    assert!(
        line("org-burst ").contains("7/min") && line("org-burst ").ends_with("tenant"),
        "{shown}"
    );
    assert!(
        line("guard.login.budget.threshold ").ends_with("policy.toml:8"),
        "{shown}"
    );
    let (_, json) = run(folder.path(), &[&args[..], &["--json"]].concat(), &env);
    let json: Value = serde_json::from_str(&json).unwrap();
    let figures = json["figures"].as_array().unwrap();
    assert!(figures.len() > 200, "{}", figures.len());
    let store = figures
        .iter()
        .find(|figure| figure["key"] == "server.listen")
        .unwrap();
    assert_eq!(
        (&store["value"], &store["from"]),
        (&"\"127.0.0.1:8080\"".into(), &"default".into())
    );
}

#[test]
fn a_path_shows_the_class_limits_and_buckets_that_it_meets() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["policy", "--path", "/auth/token/", "--method", "post"];
    let (code, shown) = run(folder.path(), &args, &[]);
    assert_eq!(code, 0, "{shown}");
    insta::assert_snapshot!(shown);
    let (code, refused) = run(folder.path(), &["policy", "--path", "/a%2Fb"], &[]);
    assert_eq!(code, 2, "{refused}");
}

#[test]
fn a_hangup_reloads_the_file_and_ends_nothing() {
    let limit = |rate: &str| {
        format!(
            "[policy]\nreload = false\n[[limit]]\nname = \"ip-auth\"\nby = [\"ip\"]\nclass = \"auth\"\nrate = \"{rate}\"\n"
        )
    };
    let server = Server::configured(&limit("5/min"));
    let revision = || server.admin_get("/health/dependencies").json()["policy"]["revision"].clone();
    assert_eq!(revision(), 1);
    std::fs::write(server.home.path().join("palisade.toml"), limit("6/min")).unwrap();
    signal(server.pid(), "HUP");
    for _ in 0..1_000 {
        if revision() == 2 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("not reloaded");
}

#[test]
fn the_start_shows_the_policy_in_force() {
    let server = Server::configured("[guard.otp.thresholds]\nsoft = 6\n");
    let printed = &server.banner;
    assert!(printed.contains("each address  10/min auth, "), "{printed}");
    assert!(
        printed.contains("guard         login enforced"),
        "{printed}"
    );
}
