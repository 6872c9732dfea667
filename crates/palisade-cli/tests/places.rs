//! Countries and networks in the real service: found by address on its surfaces, and followed while
//! their files change.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod common;
#[path = "../../palisade-policy/tests/common/mmdb.rs"]
mod mmdb;

use std::path::Path;

use common::{Options, Server, eventually, palisade};
use mmdb::Mmdb;

const POLICY: &str = r#"
[places]
country = "country.mmdb"

[[limit]]
name = "each-country"
by = ["country"]
rate = "1000/min"

[[limit]]
name = "no-entry"
by = ["ip"]
country = ["KP"]
rate = "1/day"
"#;

fn countries(code: &str) -> Vec<u8> {
    Mmdb::of_countries(&[("203.0.113.0/24", code)])
}

/// Puts a file into its place by renaming, as updaters do.
fn put(folder: &Path, bytes: &[u8]) {
    std::fs::write(folder.join("next"), bytes).unwrap();
    std::fs::rename(folder.join("next"), folder.join("country.mmdb")).unwrap();
}

/// Number of three requests from an address that pass.
fn admitted(server: &Server, ip: &str) -> usize {
    let facts = format!(r#"{{"ip":"{ip}","method":"GET","path":"/x"}}"#);
    let decide = || server.post("/v1/check", &facts).json()["decision"].clone();
    (0..3).filter(|_| decide() == "allow").count()
}

#[test]
fn p_by_a_database_is_followed_and_a_damaged_one_is_told() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().to_owned();
    put(&folder, &countries("KP"));
    let server = Server::at(
        home,
        &Options {
            config: Some(POLICY),
            ..Options::default()
        },
    );
    assert_eq!(admitted(&server, "203.0.113.1"), 1);
    assert_eq!(admitted(&server, "198.51.100.1"), 3);

    let places = || server.admin_get("/health/dependencies").json()["places"][0].clone();
    assert_eq!(places()["state"], "up");
    put(&folder, &countries("ES"));
    eventually("the new database is taken over", || {
        places()["replaced"] == 1
    });
    assert_eq!(admitted(&server, "203.0.113.2"), 3);

    put(&folder, &countries("KP")[..100]);
    eventually("the damaged one is told", || places()["state"] == "stale");
    assert_eq!(places()["last_error"], "damaged");
    assert_eq!(admitted(&server, "203.0.113.3"), 3, "the one before stays");
    let metrics = server.admin_get("/metrics");
    for line in [
        "rate_limiter_places_stale{database=\"country\"} 1\n",
        "rate_limiter_country_requests_total{country=\"KP\",decision=\"deny\"} 2\n",
        "rate_limiter_country_requests_total{country=\"unknown\",decision=\"allow\"} 3\n",
    ] {
        assert!(metrics.text().contains(line), "{line}{}", metrics.text());
    }
}

#[test]
fn p_by_check_and_serve_refuse_a_file_that_cannot_be_used() {
    let home = tempfile::tempdir().unwrap();
    put(home.path(), b"no database");
    std::fs::write(home.path().join("policy.toml"), POLICY).unwrap();
    for arguments in [
        ["check", "policy.toml"].as_slice(),
        &["serve", "--config", "policy.toml"],
    ] {
        let mut command = palisade();
        let output = command.current_dir(home.path()).args(arguments).output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(!output.status.success(), "{arguments:?}: {said}");
        let message = "policy.toml:3:11: error: `places.country` cannot be used: the file is no \
                       whole database";
        assert!(said.contains(message), "{arguments:?}: {said}");
    }
}
