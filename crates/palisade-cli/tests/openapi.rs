//! The served document and the running service agree: a property-based tester reads
//! the one and asks the other, with requests that fit and requests that do not.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod common;
#[path = "openapi/page.rs"]
mod page;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Client, Options, Server};

const TOKEN: &str = "an-operators-token-of-decent-length";
/// A failure of one seed reproduces: the same seed sends the same requests.
const SEED: &str = "17";
const EXAMPLES_PER_OPERATION: &str = "15";
/// What must hold for every answer.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
                      response_headers_conformance,response_schema_conformance,\
                      negative_data_rejection,unsupported_method";

fn started() -> Server {
    Server::with(&Options {
        config: Some("[admin]\ntoken = \"env:ADMIN_TOKEN\"\n"),
        env: &[("ADMIN_TOKEN", TOKEN)],
        ..Options::default()
    })
}

/// Where `scripts/test` installs it.
fn schemathesis() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let installed = root.join("target/tools/schemathesis/bin/schemathesis");
    if installed.exists() {
        installed
    } else {
        PathBuf::from("schemathesis")
    }
}

/// Asks every operation whose path matches.
fn hold(server: &Server, address: SocketAddr, paths: &str) {
    let bearer = format!("Bearer {TOKEN}");
    let headers = [("authorization", bearer.as_str())];
    let document = Client::connect(server.admin).send("GET", "/openapi.json", &headers, b"");
    assert_eq!(document.status, 200);
    let work = tempfile::tempdir().unwrap();
    std::fs::write(work.path().join("openapi.json"), &document.body).unwrap();
    let mut command = Command::new(schemathesis());
    command
        .current_dir(work.path())
        .args(["run", "openapi.json", "--no-color"])
        .args(["--url", &format!("http://{address}")])
        .args(["--include-path-regex", paths])
        .args(["--checks", CHECKS, "--seed", SEED])
        .args(["--max-examples", EXAMPLES_PER_OPERATION])
        .args(["--phases", "examples,coverage,fuzzing"])
        .args(["--suppress-health-check", "all", "--warnings", "off"])
        .args(["--generation-database", "none", "--request-timeout", "30"]);
    if address == server.admin {
        command.args(["--header", &format!("Authorization: {bearer}")]);
    }
    let output = command.output().unwrap_or_else(|error| {
        panic!("schemathesis cannot be started ({error}): `scripts/test` installs it")
    });
    let said = String::from_utf8_lossy(&output.stdout);
    let failed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{failed}");
}

#[test]
fn openapi_the_decision_api_answers_as_its_document_says() {
    let server = started();
    hold(&server, server.listen, "^/(v1/|forward-auth)");
}

#[test]
fn openapi_administration_answers_as_its_document_says() {
    let server = started();
    hold(&server, server.admin, "^/(admin|debug|health|metrics)");
}

/// Wrong credentials are limited in number, so that this is not one of the [`CHECKS`].
#[test]
fn openapi_every_operation_of_administration_asks_for_a_credential() {
    let server = started();
    let bearer = format!("Bearer {TOKEN}");
    let headers = [("authorization", bearer.as_str())];
    let document = Client::connect(server.admin).send("GET", "/openapi.json", &headers, b"");
    let document = document.json();
    let paths = document["paths"].as_object().unwrap();
    let paths = paths.iter().filter(|(path, _)| path.starts_with("/admin/"));
    for (path, operations) in paths {
        for method in operations.as_object().unwrap().keys() {
            let method = method.to_uppercase();
            let reply = Client::connect(server.admin).send(&method, path, &[], b"");
            assert_eq!(reply.status, 401, "{method} {path}");
        }
    }
}
