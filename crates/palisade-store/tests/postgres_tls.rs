//! TLS to a real server: used when asked for, and only with a certificate that is
//! trusted.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

#[path = "common/postgres_server.rs"]
mod postgres_server;

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use palisade_store::postgres::{PostgresConfig, PostgresStore, SchemaPolicy, StartError};
use palisade_store::{StoreError, Vitals};
use postgres_server::{PostgresServer, change_owner};

/// Makes a certificate for the loopback address.
fn certify(folder: &Path) -> [String; 2] {
    certify_by(folder, &["rsa:2048"])
}

/// Like [`certify`], with a key of another kind, or another digest.
fn certify_by(folder: &Path, key_and_digest: &[&str]) -> [String; 2] {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    let [certificate, key] = ["server.crt", "server.key"].map(|name| folder.join(name));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-nodes", "-days", "2", "-newkey"])
        .args(key_and_digest)
        .args(["-subj", "/CN=palisade test"])
        .args(["-addext", "subjectAltName=IP:127.0.0.1"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .stderr(Stdio::null())
        .status();
    assert!(made.is_ok_and(|made| made.success()), "install `openssl`");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    change_owner(&key);
    [certificate, key].map(|path| path.display().to_string())
}

/// A server with this certificate and key, and its port.
async fn encrypted([certificate, key]: [&str; 2], access: Option<&Path>) -> (PostgresServer, u16) {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let mut settings = vec![
        "ssl=on".to_owned(),
        format!("ssl_cert_file={certificate}"),
        format!("ssl_key_file={key}"),
        "listen_addresses=127.0.0.1".to_owned(),
        format!("port={port}"),
    ];
    settings.extend(access.map(|access| format!("hba_file={}", access.display())));
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    (PostgresServer::start(&settings).await, port)
}

fn patient(url: &str, certificate: &str) -> PostgresConfig {
    let mut config = PostgresConfig::parse(url).unwrap();
    config.schema = SchemaPolicy::Migrate;
    config.deadline = Duration::from_secs(20);
    config.connect_timeout = config.deadline;
    config.ca_file = Some(certificate.into());
    config
}

/// A password is bound to the server's certificate, whatever that is signed with: an address
/// that requires the binding connects, and one with another password does not.
#[tokio::test(flavor = "multi_thread")]
async fn a_password_is_bound_to_the_certificate() {
    const KEYS: [&[&str]; 3] = [
        &["rsa:2048", "-sha256"],
        &["ec", "-pkeyopt", "ec_paramgen_curve:secp384r1", "-sha384"],
        &["rsa:2048", "-sha512"],
    ];
    for key_and_digest in KEYS {
        let folder = tempfile::tempdir().unwrap();
        let [certificate, key] = certify_by(folder.path(), key_and_digest);
        let access = folder.path().join("pg_hba.conf");
        let lines = "local all all trust\nhostssl all bound 127.0.0.1/32 scram-sha-256\n";
        fs::write(&access, lines).unwrap();
        let (server, port) = encrypted([&certificate, &key], Some(&access)).await;
        let role = "CREATE ROLE bound LOGIN SUPERUSER PASSWORD 'right'";
        server.sql("postgres", role).await;
        let url = |password: &str| {
            format!(
                "postgres://bound:{password}@127.0.0.1:{port}/postgres\
                 ?sslmode=require&channel_binding=require"
            )
        };
        let store = PostgresStore::connect(&patient(&url("right"), &certificate)).await;
        store.unwrap().probe().await.unwrap();
        let refused = PostgresStore::connect(&patient(&url("wrong"), &certificate)).await;
        assert!(matches!(refused, Err(StartError::Store(_))));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_is_used_and_an_untrusted_certificate_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let [certificate, key] = certify(folder.path());
    let (server, port) = encrypted([&certificate, &key], None).await;
    let url = format!("postgres://palisade@127.0.0.1:{port}/postgres?sslmode=require");
    let mut config = patient(&url, &certificate);
    let store = PostgresStore::connect(&config).await.unwrap();
    store.probe().await.unwrap();
    let encrypted = "SELECT count(*) > 0 AND bool_and(ssl) FROM pg_stat_ssl
                     JOIN pg_stat_activity USING (pid) WHERE application_name = 'palisade'";
    assert_eq!(server.sql("postgres", encrypted).await, ["t"]);

    let other = tempfile::tempdir().unwrap();
    let [stranger, _] = certify(other.path());
    config.ca_file = Some(stranger.into());
    let refused = PostgresStore::connect(&config).await.err();
    assert!(
        matches!(refused, Some(StartError::Store(StoreError::Unreachable(_)))),
        "{refused:?}"
    );
    config.ca_file = Some(folder.path().join("none"));
    let refused = PostgresStore::connect(&config).await.err();
    assert!(matches!(refused, Some(StartError::Tls(_))), "{refused:?}");
}
