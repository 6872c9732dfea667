//! Starting, what stands in its way, and ending.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod common;
#[path = "start_and_stop/passed.rs"]
mod passed;

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use common::{Client, Options, Server, palisade, sign_in, text};

#[test]
fn the_start_says_where_it_listens_where_its_data_is_and_what_to_try() {
    let server = Server::start();
    let banner = server
        .banner
        .replace(&server.listen.to_string(), "LISTEN")
        .replace(&server.admin.to_string(), "ADMIN")
        .replace(env!("CARGO_PKG_VERSION"), "VERSION");
    insta::assert_snapshot!(banner);
}

#[test]
fn the_line_to_try_shows_a_429_after_ten_calls() {
    let server = Server::start();
    let line = server.banner.lines().find(|line| line.contains("curl"));
    let output = std::process::Command::new("sh")
        .args(["-c", line.unwrap()])
        .output()
        .unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    let expected = "\"status\":200\n".repeat(10) + "\"status\":429\n";
    assert_eq!(
        shown,
        expected,
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Runs `serve` where it must refuse; the exit code and what it says.
fn refused(args: &[&str], config: Option<&str>) -> (Option<i32>, String) {
    let home = tempfile::tempdir().unwrap();
    let mut command = palisade();
    command.current_dir(home.path()).args([
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
    ]);
    if let Some(config) = config {
        std::fs::write(home.path().join("palisade.toml"), config).unwrap();
        command.args(["--config", "palisade.toml"]);
    }
    let output = command.args(args).output().unwrap();
    assert!(output.stdout.is_empty(), "it must not announce itself");
    (
        output.status.code(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

#[test]
fn an_invalid_policy_stops_the_start_with_its_place() {
    let (code, said) = refused(
        &[],
        Some("[server]\nlisten = \"127.0.0.1:0\"\nlissten = 1\n"),
    );
    assert_eq!(code, Some(2));
    assert!(said.contains("palisade.toml:3:1"), "{said}");
    assert!(said.contains("hint"), "{said}");
}

#[test]
fn off_loopback_without_a_caller_token_refuses_to_start() {
    for address in ["--listen=0.0.0.0:0", "--admin=0.0.0.0:0", "--listen=[::]:0"] {
        let home = tempfile::tempdir().unwrap();
        let output = palisade()
            .current_dir(home.path())
            .args(["serve", address])
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("caller_token"), "{said}");
    }
}

#[test]
fn off_loopback_with_a_caller_token_starts() {
    let token = "a-token-of-at-least-thirty-two-bytes";
    let server = Server::with(&Options {
        config: Some("[server]\ncaller_token = \"env:CALLER\"\n[tls]\ninsecure = true\n"),
        env: &[("CALLER", token)],
        args: &["--store", "memory:", "--listen", "0.0.0.0:0"],
    });
    assert!(server.listen.ip().is_unspecified(), "{}", server.listen);
    let near = (std::net::Ipv4Addr::LOCALHOST, server.listen.port());
    let mut client = Client::connect(near.into());
    let facts = sign_in("203.0.113.1");
    let mut status = |headers: &[(&str, &str)]| {
        let reply = client.send("POST", "/v1/check", headers, facts.as_bytes());
        reply.status
    };
    assert_eq!(status(&[]), 401);
    assert_eq!(status(&[("X-Palisade-Caller", token)]), 200);
}

#[test]
fn a_data_directory_that_cannot_be_made_is_named() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("a-file");
    std::fs::write(&file, "").unwrap();
    let store = format!("embedded:{}/data", text(&file));
    let (code, said) = refused(&["--store", &store], None);
    assert_eq!(code, Some(3));
    assert!(said.contains("a-file/data"), "{said}");
    assert!(said.contains("hint"), "{said}");
}

#[test]
fn a_shared_store_needs_a_shared_secret() {
    let (code, said) = refused(&["--store", "redis://127.0.0.1:1"], None);
    assert_eq!(code, Some(2));
    assert!(said.contains("export PALISADE_KEY="), "{said}");
}

#[test]
fn an_address_that_is_taken_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let home = tempfile::tempdir().unwrap();
    let output = palisade()
        .current_dir(home.path())
        .args(["serve", "--listen", &address, "--admin", "127.0.0.1:0"])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(
        said.contains(&address) && said.contains("--listen"),
        "{said}"
    );
}

#[test]
fn a_second_service_does_not_share_the_port_of_the_first() {
    let first = Server::start();
    let (code, said) = {
        let home = tempfile::tempdir().unwrap();
        let output = palisade()
            .current_dir(home.path())
            .args(["serve", "--listen", &first.listen.to_string()])
            .args(["--admin", "127.0.0.1:0"])
            .output()
            .unwrap();
        (output.status.code(), output.stderr)
    };
    assert_eq!(code, Some(3), "{}", String::from_utf8_lossy(&said));
}

#[test]
fn the_secret_is_kept_for_its_owner_only_and_survives_a_restart() {
    use std::os::unix::fs::PermissionsExt;
    let server = Server::start();
    server.terminate();
    let (code, home) = server.wait();
    assert_eq!(code, Some(0));
    let path = home.path().join("palisade-data/secret");
    let secret = std::fs::read(&path).unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let again = Server::at(home, &Options::default());
    assert_eq!(
        std::fs::read(again.home.path().join("palisade-data/secret")).unwrap(),
        secret
    );
}

#[test]
fn health_and_metrics_are_served_without_a_credential() {
    let server = Server::start();
    assert_eq!(server.admin_get("/health/live").json()["status"], "live");
    let ready = server.admin_get("/health/ready");
    assert_eq!(
        (ready.status, ready.json()["status"].clone()),
        (200, "ready".into())
    );
    let dependencies = server.admin_get("/health/dependencies").json();
    assert_eq!(dependencies["degradation_level"], 0);
    assert_eq!(dependencies["store"]["state"], "up");
    let metrics = server.admin_get("/metrics");
    assert!(metrics.text().contains("rate_limiter_degradation_level 0"));
    // Without a credential nobody learns what else there is.
    assert_eq!(server.admin_get("/nothing").status, 401);
}

#[test]
fn a_stop_under_load_loses_no_answer() {
    let server = Server::with(&Options {
        args: &["--store", "memory:"],
        ..Options::default()
    });
    let listen = server.listen;
    let stopping = Arc::new(AtomicBool::new(false));
    let answered = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> = (0..8)
        .map(|number| {
            let (stopping, answered) = (Arc::clone(&stopping), Arc::clone(&answered));
            std::thread::spawn(move || {
                let mut client = Client::connect(listen);
                let facts = sign_in(&format!("203.0.113.{number}"));
                loop {
                    let reply = client
                        .try_send("POST", "/v1/check", &[], facts.as_bytes())
                        .expect("every request that was sent is answered");
                    assert_eq!(reply.status, 200);
                    assert!(reply.json()["decision"].is_string(), "and whole");
                    answered.fetch_add(1, Ordering::SeqCst);
                    if reply.header("connection") == Some("close") {
                        assert!(stopping.load(Ordering::SeqCst));
                        return;
                    }
                }
            })
        })
        .collect();
    while answered.load(Ordering::SeqCst) < 200 {
        std::thread::sleep(Duration::from_millis(5));
    }
    stopping.store(true, Ordering::SeqCst);
    server.terminate();
    for client in clients {
        client.join().unwrap();
    }
    assert_eq!(server.wait().0, Some(0));
    assert!(Client::try_connect(listen).is_err());
}

#[test]
fn x11_connections_are_taken_for_the_drain_delay_while_the_node_is_not_ready() {
    let server = Server::configured("[server]\ndrain_delay = \"5min\"\n");
    server.terminate();
    common::eventually("it is not ready", || {
        server.admin_get("/health/ready").status == 503
    });
    let mut client = server.connect();
    for _ in 0..3 {
        let body = sign_in("203.0.113.1");
        let reply = client.send("POST", "/v1/check", &[], body.as_bytes());
        assert_eq!(reply.status, 200);
        assert_eq!(reply.header("connection"), None, "it may ask again");
    }
    assert_eq!(server.admin_get("/health/live").status, 200);
    // Who cannot wait says so again.
    server.terminate();
    assert_eq!(server.wait().0, Some(0));
}

#[test]
fn x11_who_stops_it_at_a_terminal_does_not_wait() {
    let server = Server::configured("[server]\ndrain_delay = \"5min\"\n");
    common::signal(server.pid(), "INT");
    assert_eq!(server.wait().0, Some(0));
}

#[test]
fn a_request_under_way_is_answered_and_an_idle_connection_is_closed() {
    let server = Server::start();
    let listen = server.listen;
    let body = sign_in("203.0.113.1");
    let mut under_way = Client::connect(listen);
    let (first, last) = body.split_at(10);
    let head = format!(
        "POST /v1/check HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    under_way.write(head.as_bytes()).unwrap();
    // From here on it is under way, however busy the machine is.
    assert_eq!(under_way.read_head().unwrap().0, 100);
    under_way.write(first.as_bytes()).unwrap();
    let mut idle = Client::connect(listen);
    idle.send("POST", "/v1/check", &[], body.as_bytes());
    server.terminate();
    assert!(idle.read_reply().is_err(), "closed without a request");
    under_way.write(last.as_bytes()).unwrap();
    assert_eq!(under_way.read_reply().unwrap().status, 200);
    assert_eq!(server.wait().0, Some(0));
}

#[test]
fn a_connection_that_never_ends_is_cut_off_when_the_drain_time_is_over() {
    let server =
        Server::configured("[server]\ndrain_timeout = \"300ms\"\nheader_timeout = \"60s\"\n");
    let mut stuck = server.connect();
    stuck
        .write(b"POST /v1/check HTTP/1.1\r\nHost: t\r\nContent-Length: 50\r\n\r\n{")
        .unwrap();
    // The worker must have seen it before the end begins.
    server.post("/v1/check", &sign_in("203.0.113.1"));
    server.terminate();
    assert_eq!(server.wait().0, Some(0));
}

#[test]
fn a_changed_policy_file_takes_effect_without_a_restart_and_a_broken_one_does_not() {
    let limit = |rate: &str| {
        format!(
            "[[limit]]\nname = \"ip-auth\"\nby = [\"ip\"]\nclass = \"auth\"\nrate = \"{rate}\"\n"
        )
    };
    let server = Server::configured(&limit("10/min"));
    let policy = server.home.path().join("palisade.toml");
    let shown = || {
        let answer = server.post("/v1/peek", &sign_in("203.0.113.1")).json();
        let limits = answer["limits"].as_array().unwrap().clone();
        let found = limits.iter().find(|limit| limit["name"] == "ip-auth");
        found.unwrap()["limit"].clone()
    };
    assert_eq!(shown(), 10);
    std::fs::write(&policy, limit("3/min")).unwrap();
    common::eventually("the new policy is in force", || shown() == 3);
    let told = || server.admin_get("/health/dependencies").json()["policy"].clone();
    let before = told();
    std::fs::write(&policy, "this is no policy").unwrap();
    common::eventually("the broken file is refused", || {
        told()["refresh_failures"].as_u64() > before["refresh_failures"].as_u64()
    });
    assert_eq!(told()["revision"], before["revision"]);
    assert_eq!(shown(), 3, "the old one stays");
}

/// A service whose log goes to a file.
fn logged(config: &str) -> Server {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("palisade.toml"), config).unwrap();
    let log = std::fs::File::create(home.path().join("log")).unwrap();
    let mut command = palisade();
    command
        .current_dir(home.path())
        .args(["serve", "--config", "palisade.toml"])
        .args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
        .env("PALISADE_LOG__LEVEL", "warn")
        .stdout(std::process::Stdio::piped())
        .stderr(log);
    Server::run(command, home)
}

#[test]
fn risky_settings_are_told_at_the_start_and_at_every_reload() {
    let believes_all = "[server]\ntrusted_proxies = [\"0.0.0.0/0\"]\n";
    let server = logged(believes_all);
    let log = || std::fs::read_to_string(server.home.path().join("log")).unwrap();
    let told = |words: &str| log().matches(words).count();
    let risks = |count: u32| {
        let line = format!("rate_limiter_risky_settings {count}\n");
        server.admin_get("/metrics").text().contains(&line)
    };
    assert!(risks(1));
    assert_eq!(told("believes every peer"), 1, "{}", log());

    let policy = server.home.path().join("palisade.toml");
    let lax = format!("{believes_all}[guard.otp.thresholds]\nsoft = 6\n");
    std::fs::write(&policy, lax).unwrap();
    common::eventually("the new risk is shown", || risks(2));
    assert_eq!(told("believes every peer"), 2, "{}", log());
    assert_eq!(told("palisade.toml:4"), 1, "{}", log());

    std::fs::write(&policy, "").unwrap();
    common::eventually("no risk is left", || risks(0));
}

#[test]
fn denials_are_audited_without_addresses_and_written_before_the_end() {
    let server = Server::configured("[audit]\nfile = \"audit.jsonl\"\n");
    for _ in 0..11 {
        server.post("/v1/check", &sign_in("203.0.113.77"));
    }
    server.terminate();
    let (code, home) = server.wait();
    assert_eq!(code, Some(0));
    let audit = std::fs::read_to_string(home.path().join("audit.jsonl")).unwrap();
    assert_eq!(
        audit.matches("\"rate_limit_exceeded\"").count(),
        1,
        "{audit}"
    );
    assert!(!audit.contains("203.0.113.77"));
}

#[test]
fn without_a_data_directory_or_a_chosen_place_the_audit_is_printed() {
    let server = Server::with(&Options {
        args: &["--store", "memory:"],
        ..Options::default()
    });
    assert!(
        server.banner.contains("standard output"),
        "{}",
        server.banner
    );
    for _ in 0..11 {
        server.post("/v1/check", &sign_in("203.0.113.7"));
    }
    let printed = std::sync::Arc::clone(&server.printed);
    server.terminate();
    assert_eq!(server.wait().0, Some(0));
    let until = || printed.lock().unwrap().contains("rate_limit_exceeded");
    for _ in 0..common::PATIENCE.as_millis() / 20 {
        if until() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let printed = printed.lock().unwrap();
    assert!(
        printed.contains("\"event\":\"rate_limit_exceeded\""),
        "{printed}"
    );
    assert!(!printed.contains("203.0.113.7"));
}

#[test]
fn q_durable_a_block_survives_a_restart() {
    let facts = r#"{"ip":"203.0.113.5","account":"a1","device":{"fingerprint":"d1","confidence":"medium"}}"#;
    let server = Server::start();
    for _ in 0..3 {
        server.post("/v1/guard/login/failure", facts);
    }
    let before = server.post("/v1/guard/login/check", facts).json();
    assert_eq!(before["decision"], "hard_block");
    server.terminate();
    let (_, home) = server.wait();
    let again = Server::at(home, &Options::default());
    let after = again.post("/v1/guard/login/check", facts).json();
    assert_eq!(after["decision"], "hard_block");
}

#[test]
fn l_durable_a_limit_that_is_used_up_stays_so_over_a_restart() {
    for accuracy in ["exact", "leased"] {
        let config = format!(
            "[policy]\ndefaults = false\n[[limit]]\nname = \"few\"\nby = [\"ip\"]\nrate = \"3/min\"\n\
             accuracy = \"{accuracy}\"\n"
        );
        let options = Options {
            config: Some(&config),
            ..Options::default()
        };
        let decision = |server: &Server| {
            let answer = server.post("/v1/check", &sign_in("203.0.113.1")).json();
            answer["decision"].clone()
        };
        let first = Server::with(&options);
        let asked: Vec<_> = (0..4).map(|_| decision(&first)).collect();
        assert_eq!(asked, ["allow", "allow", "allow", "deny"], "{accuracy}");
        first.terminate();
        let (code, home) = first.wait();
        assert_eq!(code, Some(0));
        let again = Server::at(home, &options);
        assert_eq!(decision(&again), "deny", "{accuracy}");
    }
}

#[test]
fn a_data_directory_has_one_owner() {
    let server = Server::start();
    let data = server.home.path().join("palisade-data");
    let (code, said) = refused(&["--store", &format!("embedded:{}", text(&data))], None);
    assert_eq!(code, Some(3));
    assert!(said.contains("palisade-data"), "{said}");
    assert!(said.contains("in use"), "{said}");
}
