//! TLS on every listener, as docs/tls.md shows it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

#[path = "common/certificates.rs"]
mod certificates;
mod common;
#[path = "common/upstream.rs"]
mod upstream;
#[path = "tls/webhook.rs"]
mod webhook;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use certificates::{blocks, certificates, sh};
use common::{Options, PATIENCE, Server};
use tempfile::TempDir;
use upstream::Upstream;

fn served(config: &str, args: &[&str]) -> Server {
    let home = tempfile::tempdir().unwrap();
    certificates(home.path());
    start(home, config, args)
}

fn start(home: TempDir, config: &str, args: &[&str]) -> Server {
    Server::at(
        home,
        &Options {
            config: Some(config),
            args,
            ..Options::default()
        },
    )
}

/// A command of the page, against this service.
fn as_shown(server: &Server, script: &str) -> (bool, String) {
    let binary = Path::new(env!("CARGO_BIN_EXE_palisade"));
    let script = script
        .replace(
            "localhost:8080",
            &format!("localhost:{}", server.listen.port()),
        )
        .replace(
            "localhost:9090",
            &format!("localhost:{}", server.admin.port()),
        )
        .replace("palisade status", &format!("{} status", binary.display()))
        .replace("curl ", "curl -sS ");
    sh(server.home.path(), &script)
}

fn curl(server: &Server, address: SocketAddr, path: &str, args: &str) -> (bool, String) {
    let port = address.port();
    let script = format!(
        "curl -sS -o /dev/null -w '%{{http_code}} %{{http_version}}' --cacert ca.pem {args} https://localhost:{port}{path}"
    );
    sh(server.home.path(), &script)
}

#[test]
fn tls_the_page_is_what_happens() {
    let server = served(&blocks("toml")[0], &[]);
    assert!(server.banner.contains("https://"), "{}", server.banner);
    let (asked, said) = as_shown(&server, &blocks("sh")[1]);
    assert!(asked, "{said}");
    assert!(said.contains(r#""decision":"allow""#), "{said}");
}

/// What `palisade status` says where it gets no answer.
fn unanswered(home: &Path, args: &[&str]) -> String {
    let status = common::palisade()
        .current_dir(home)
        .arg("status")
        .args(args)
        .output()
        .unwrap();
    assert_eq!(status.status.code(), Some(3));
    String::from_utf8(status.stderr).unwrap()
}

#[test]
fn n13_who_asks_in_the_wrong_way_is_told_what_was_met() {
    let secure = served(&blocks("toml")[0], &[]);
    let plain = Server::start();
    let home = secure.home.path();
    let (at, port) = (secure.admin.to_string(), secure.admin.port());
    let said = unanswered(home, &["--admin", &at]);
    assert!(said.contains("if it speaks TLS"), "{said}");
    assert!(!said.contains("start the server"), "{said}");

    let url = format!("https://{}", plain.admin);
    let said = unanswered(home, &["--admin", &url]);
    assert!(said.contains("it speaks no TLS"), "{said}");

    let url = format!("https://localhost:{port}");
    let said = unanswered(home, &["--admin", &url]);
    assert!(said.contains("invalid peer certificate"), "{said}");
    assert!(said.contains("`--ca`"), "{said}");
    // The certificate is for localhost and 127.0.0.1.
    let elsewhere = served(&blocks("toml")[0], &["--admin", "127.0.0.2:0"]);
    let url = format!("https://{}", elsewhere.admin);
    let said = unanswered(elsewhere.home.path(), &["--admin", &url, "--ca", "ca.pem"]);
    assert!(said.contains("the certificate is for"), "{said}");

    let config = &blocks("toml")[1];
    let asks_back = served(config, &[]);
    let url = format!("https://localhost:{}", asks_back.admin.port());
    let authority = asks_back.home.path().join("ca.pem");
    let said = unanswered(
        home,
        &["--admin", &url, "--ca", authority.to_str().unwrap()],
    );
    assert!(said.contains("`--cert`"), "{said}");

    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = nobody.local_addr().unwrap().to_string();
    drop(nobody);
    let said = unanswered(home, &["--admin", &at]);
    assert!(
        said.contains("refused") && said.contains("start the server"),
        "{said}"
    );
}

#[test]
fn tls_is_spoken_on_every_listener_in_both_versions_of_http() {
    let app = Upstream::start();
    let args = ["--upstream", &app.url(), "--proxy", "127.0.0.1:0"];
    let server = served(&blocks("toml")[0], &args);
    for (address, path) in [
        (server.listen, "/forward-auth"),
        (server.proxy.unwrap(), "/"),
        (server.admin, "/health/live"),
    ] {
        for (version, answered) in [("--http1.1", "200 1.1"), ("--http2", "200 2")] {
            let args = format!("{version} -H 'X-Forwarded-Uri: /'");
            assert_eq!(curl(&server, address, path, &args), (true, answered.into()));
        }
        let (old, _) = curl(&server, address, path, "--tls-max 1.1");
        assert!(!old, "TLS 1.1 is not spoken");
        let plain = common::Client::connect(address).try_send("GET", path, &[], b"");
        assert!(plain.is_err(), "plain text is not answered");
    }
    let port = server.proxy.unwrap().port();
    let script = format!("curl -sS --cacert ca.pem https://localhost:{port}/");
    let (_, seen) = sh(server.home.path(), &script);
    let seen: serde_json::Value = serde_json::from_str(&seen).unwrap();
    assert_eq!(seen["headers"]["x-forwarded-proto"], "https");
}

#[test]
fn tls_callers_without_a_certificate_of_the_authority_are_refused() {
    let app = Upstream::start();
    let args = ["--upstream", &app.url(), "--proxy", "127.0.0.1:0"];
    let server = served(&blocks("toml")[1], &args);
    let (asked, said) = as_shown(&server, &blocks("sh")[2]);
    assert!(asked && said.contains(r#""decision":"allow""#), "{said}");
    // One that signed itself is as good as none.
    let forged = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes \
                  -days 1 -subj /CN=caller -keyout forged.key -out forged.pem";
    assert!(sh(server.home.path(), forged).0);
    for (address, path) in [(server.listen, "/v1/check"), (server.admin, "/health/live")] {
        for args in ["", "--cert forged.pem --key forged.key"] {
            let (admitted, said) = curl(&server, address, path, args);
            assert!(!admitted, "{said}");
        }
    }
    let (anybody, _) = curl(&server, server.proxy.unwrap(), "/", "");
    assert!(anybody, "the proxy's clients have none");
    let scrape = format!(
        "curl -sS --cacert ca.pem --cert caller.pem --key caller.key https://localhost:{}/metrics",
        server.admin.port()
    );
    let (_, metrics) = sh(server.home.path(), &scrape);
    for (listener, refused) in [("listen", 2), ("admin", 2), ("proxy", 0)] {
        let counted = format!(
            "rate_limiter_refused_callers_total{{listener=\"{listener}\",lacks=\"certificate\"}} {refused}\n"
        );
        assert!(metrics.contains(&counted), "{counted} not in {metrics}");
    }
}

/// The serial number of the certificate that is shown now.
fn serial(server: &Server) -> String {
    let script = format!(
        "openssl s_client -connect localhost:{} </dev/null 2>/dev/null | openssl x509 -noout -serial",
        server.listen.port()
    );
    sh(server.home.path(), &script).1
}

#[test]
fn tls_renewed_files_are_used_without_a_restart_and_broken_ones_are_not() {
    let server = served(&blocks("toml")[0], &[]);
    let home = server.home.path().to_owned();
    let first = serial(&server);
    assert!(first.starts_with("serial="), "{first}");
    std::fs::write(home.join("service.pem"), "not a certificate").unwrap();
    // Long enough for a look at the files.
    std::thread::sleep(Duration::from_secs(6));
    assert_eq!(serial(&server), first, "the one in use stays");
    certificates(&home);
    let renewed = (0..PATIENCE.as_millis() / 200).any(|_| {
        std::thread::sleep(Duration::from_millis(200));
        let now = serial(&server);
        now.starts_with("serial=") && now != first
    });
    assert!(renewed);
}

#[test]
fn tls_a_handshake_that_trickles_or_never_starts_is_cut_off() {
    let config = format!(
        "{}\n[server]\nheader_timeout = \"300ms\"\n",
        blocks("toml")[0]
    );
    let server = served(&config, &[]);
    for address in [server.listen, server.admin] {
        for begun in [&b""[..], b"\x16\x03\x01"] {
            let mut slow = TcpStream::connect(address).unwrap();
            slow.set_read_timeout(Some(PATIENCE)).unwrap();
            slow.write_all(begun).unwrap();
            assert!(matches!(slow.read(&mut [0; 64]), Ok(0) | Err(_)));
        }
    }
}

#[test]
fn tls_the_proxy_verifies_an_https_application() {
    let app = served(&blocks("toml")[0], &[]);
    let url = format!("https://localhost:{}", app.admin.port());
    let authority = app.home.path().join("ca.pem");
    let trusting = format!("[proxy]\nupstream_ca = \"{}\"\n", authority.display());
    let args = ["--upstream", url.as_str(), "--proxy", "127.0.0.1:0"];
    let ask = |config: &str, args: &[&str]| {
        let proxy = start(tempfile::tempdir().unwrap(), config, args);
        let mut client = common::Client::connect(proxy.proxy.unwrap());
        client.send("GET", "/health/live", &[], b"")
    };
    let passed = ask(&trusting, &args);
    assert_eq!(passed.status, 200, "{}", passed.text());
    assert_eq!(passed.json()["status"], "live");
    assert_eq!(ask("", &args).status, 502, "an authority that nobody knows");
    // The certificate is for localhost and 127.0.0.1.
    let other = url.replace("localhost", "127.0.0.2");
    let args = ["--upstream", other.as_str(), "--proxy", "127.0.0.1:0"];
    assert_eq!(ask(&trusting, &args).status, 502, "another name");
}

fn refused(config: &str, args: &[&str]) -> String {
    let home = tempfile::tempdir().unwrap();
    certificates(home.path());
    std::fs::write(home.path().join("palisade.toml"), config).unwrap();
    let output = common::palisade()
        .current_dir(home.path())
        .args(["serve", "--config", "palisade.toml"])
        .args(args)
        .env("TOKEN", "a-callers-token-of-decent-length")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn tls_off_loopback_needs_a_token_and_secrecy_or_certificates() {
    const OPEN: [&str; 2] = ["--listen=0.0.0.0:0", "--admin=127.0.0.1:0"];
    let token = "[server]\ncaller_token = \"env:TOKEN\"\n";
    let said = refused(token, &OPEN);
    assert!(said.contains("`tls.cert`"), "{said}");
    let said = refused(&blocks("toml")[0], &OPEN);
    assert!(said.contains("`server.caller_token`"), "{said}");
    for config in [
        format!("{token}{}", blocks("toml")[0]),
        format!("{token}[tls]\ninsecure = true\n"),
        blocks("toml")[1].clone(),
    ] {
        let home = tempfile::tempdir().unwrap();
        certificates(home.path());
        std::fs::write(home.path().join("palisade.toml"), config).unwrap();
        let mut child = common::palisade()
            .current_dir(home.path())
            .args(["serve", "--config", "palisade.toml"])
            .args(OPEN)
            .env("TOKEN", "a-callers-token-of-decent-length")
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let mut lines = std::io::BufReader::new(child.stdout.take().unwrap());
        while !said.ends_with("ready\n") {
            let read = std::io::BufRead::read_line(&mut lines, &mut said).unwrap();
            assert_ne!(read, 0, "{said}");
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn tls_files_that_cannot_be_used_are_named_and_not_shown() {
    for (config, named) in [
        ("[tls]\ncert = \"service.pem\"\n", "`tls.key`"),
        ("[tls]\nclient_ca = \"ca.pem\"\n", "`tls.cert`"),
        (
            "[tls]\ncert = \"service.pem\"\nkey = \"ca.key\"\n",
            "do not belong together",
        ),
        (
            "[tls]\ncert = \"service.key\"\nkey = \"service.key\"\n",
            "`tls.cert`",
        ),
        (
            "[tls]\ncert = \"nowhere.pem\"\nkey = \"service.key\"\n",
            "nowhere.pem",
        ),
        ("[proxy]\ntls_key = \"service.key\"\n", "`proxy.tls_cert`"),
    ] {
        let said = refused(config, &["--listen=127.0.0.1:0", "--admin=127.0.0.1:0"]);
        assert!(said.contains(named), "{config}: {said}");
        assert!(!said.contains("PRIVATE KEY"));
    }
}
