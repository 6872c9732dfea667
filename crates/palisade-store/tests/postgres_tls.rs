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

/// A certificate of its own for the loopback address.
fn certify(folder: &Path) -> [String; 2] {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    let [certificate, key] = ["server.crt", "server.key"].map(|name| folder.join(name));
    let made = Command::new("openssl")
        .args([
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
        ])
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

#[tokio::test(flavor = "multi_thread")]
async fn tls_is_used_and_an_untrusted_certificate_is_refused() {
    rustls::crypto::ring::default_provider()
        .install_default()
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let [certificate, key] = certify(folder.path());
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let settings = [
        "ssl=on".to_owned(),
        format!("ssl_cert_file={certificate}"),
        format!("ssl_key_file={key}"),
        "listen_addresses=127.0.0.1".to_owned(),
        format!("port={port}"),
    ];
    let server = PostgresServer::start(&settings.each_ref().map(String::as_str)).await;
    let url = format!("postgres://palisade@127.0.0.1:{port}/postgres?sslmode=require");
    let mut config = PostgresConfig::parse(&url).unwrap();
    config.schema = SchemaPolicy::Migrate;
    config.deadline = Duration::from_secs(20);
    config.connect_timeout = config.deadline;

    config.ca_file = Some(certificate.into());
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
