//! The manifests of deploy/ fit their schemas, each other and the service.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking and says why"
)]

mod common;
#[path = "common/manifests.rs"]
mod manifests;
#[path = "../../palisade-store/tests/common/redis_server.rs"]
mod redis_server;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use common::palisade;
use manifests::{environment, policy, python, read, root, secret};
use redis_server::RedisServer;
use serde_json::{Value, json};

/// What the check says of the manifests and pages below `at`.
fn judged(at: &Path) -> (bool, String) {
    let script = root().join("scripts/kubernetes.py");
    let output = python().arg(script).arg(at).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let failed = String::from_utf8_lossy(&output.stderr);
    (output.status.success(), told + &failed)
}

#[test]
fn manifests_fit_their_schemas_each_other_and_the_secrets_of_the_pages() {
    let (fits, told) = judged(&root());
    assert!(fits, "{told}");
    for kind in [
        "Deployment",
        "Service",
        "PodDisruptionBudget",
        "HorizontalPodAutoscaler",
        "NetworkPolicy",
        "ServiceMonitor",
        "Job",
        "AuthorizationPolicy",
    ] {
        assert!(told.contains(kind), "{kind}: {told}");
    }
    let deployment = read("kubernetes/base/deployment.yaml").remove(0);
    let image = &deployment["spec"]["template"]["spec"]["containers"][0]["image"];
    assert_eq!(
        image,
        &json!(concat!("palisade:", env!("CARGO_PKG_VERSION")))
    );
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
}

#[test]
fn manifests_that_do_not_fit_are_found() {
    let wrong = [
        (
            "istio/palisade.yaml",
            "app.kubernetes.io/name: palisade",
            "app: palisade",
        ),
        (
            "istio/palisade.toml",
            "/run/palisade/rls.sock",
            "/tmp/rls.sock",
        ),
        (
            "kubernetes/base/service.yaml",
            "targetPort: grpc",
            "targetPort: admin",
        ),
        (
            "kubernetes/base/networkpolicy.yaml",
            "        - port: grpc\n",
            "",
        ),
        (
            "kubernetes/base/servicemonitor.yaml",
            "key: caller",
            "key: scraper",
        ),
        (
            "kubernetes/base/deployment.yaml",
            "containerPort: 8081",
            "containerPort: 8082",
        ),
        (
            "envoy-gateway/palisade.yaml",
            "palisade-caller: \"true\"",
            "app: envoy",
        ),
        ("envoy-gateway/palisade.yaml", "Bearer %ENV", "Basic %ENV"),
    ];
    for (file, shown, broken) in wrong {
        let home = tempfile::tempdir().unwrap();
        for folder in ["deploy", "docs"] {
            copy(&root().join(folder), &home.path().join(folder));
        }
        let path = home.path().join("deploy").join(file);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(shown), "{file} has no {shown}");
        fs::write(&path, text.replace(shown, broken)).unwrap();
        let (fits, told) = judged(home.path());
        assert!(
            !fits && told.contains("do not fit"),
            "{file}, {broken}: {told}"
        );
    }
}

#[test]
fn x11_a_pod_takes_connections_while_the_cluster_sends_them_and_has_the_time_to_end() {
    let deployment = read("kubernetes/base/deployment.yaml").remove(0);
    let grace = &deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"];
    // The default of `drain_timeout`, and what audit events get.
    let (timeout, flush) = (10, 5);
    for variant in ["kubernetes/redis", "kubernetes/postgres", "istio"] {
        let path = root().join(format!("deploy/{variant}/palisade.toml"));
        let text = fs::read_to_string(path).unwrap();
        let mut lines = text.lines();
        let delay = lines.find_map(|line| line.strip_prefix("drain_delay = \""));
        let seconds = delay.and_then(|delay| delay.strip_suffix("s\""));
        let seconds: u64 = seconds.expect(variant).parse().unwrap();
        assert!(
            seconds >= 5,
            "{variant}: as long as a change takes to arrive"
        );
        assert!(
            grace.as_u64().unwrap() > seconds + timeout + flush,
            "{variant}"
        );
    }
}

#[test]
fn policies_of_the_variants_are_accepted() {
    let home = tempfile::tempdir().unwrap();
    manifests::certificate(home.path());
    for (variant, url) in [
        ("kubernetes/redis", "redis://redis:6379"),
        (
            "kubernetes/postgres",
            "postgres://palisade@postgres/palisade",
        ),
        ("istio", "redis://redis:6379"),
    ] {
        let path = home.path().join("palisade.toml");
        fs::write(&path, policy(variant, home.path())).unwrap();
        let output = palisade()
            .args(["check", "--strict"])
            .arg(&path)
            .envs(environment(url))
            .output()
            .unwrap();
        let failed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{variant}: {failed}");
    }
}

/// Asks as Prometheus does by the ServiceMonitor's endpoint, with this token.
fn scrape(endpoint: &Value, port: u16, secrets: &Path, token: &str) -> Output {
    let name = endpoint["tlsConfig"]["serverName"].as_str().unwrap();
    let authority = endpoint["tlsConfig"]["ca"]["secret"]["key"]
        .as_str()
        .unwrap();
    let scheme = endpoint["scheme"].as_str().unwrap();
    let path = endpoint["path"].as_str().unwrap();
    let kind = endpoint["authorization"]["type"].as_str().unwrap();
    Command::new("curl")
        .args(["-s", "--fail-with-body", "--cacert"])
        .arg(secrets.join(authority))
        .args(["--connect-to", &format!("{name}:443:127.0.0.1:{port}")])
        .args(["-H", &format!("Authorization: {kind} {token}")])
        .arg(format!("{scheme}://{name}{path}"))
        .output()
        .unwrap()
}

#[test]
fn a_scrape_as_the_manifests_say_is_answered_by_a_server_as_they_configure_it() {
    let redis = RedisServer::start();
    let (server, secrets) = manifests::start("kubernetes/redis", &redis.url(), "0.0.0.0:0", "");
    let monitor = read("kubernetes/base/servicemonitor.yaml").remove(0);
    let endpoint = &monitor["spec"]["endpoints"][0];
    assert_eq!(endpoint["port"], "admin");
    let key = &endpoint["authorization"]["credentials"]["key"];
    let port = server.admin.port();
    let answer = scrape(
        endpoint,
        port,
        secrets.path(),
        &secret(key.as_str().unwrap()),
    );
    let told = String::from_utf8_lossy(&answer.stdout);
    assert!(answer.status.success(), "{:?}: {told}", answer.status);
    assert!(told.contains("\nrate_limiter_enabled 1\n"), "{told}");
    let stranger = scrape(endpoint, port, secrets.path(), &secret("stranger"));
    assert!(!stranger.status.success(), "everybody may scrape");
}

/// What the schemas of their makers say against resources that are not Kubernetes' own.
fn problems(file: &Path) -> Value {
    let modules = root().join("target/tools/kubernetes-models");
    assert!(modules.exists(), "`scripts/test` installs the schemas");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/envoy/resources.cjs");
    let output = Command::new("node")
        .arg(script)
        .arg(modules)
        .arg(file)
        .output()
        .unwrap();
    let failed = String::from_utf8_lossy(&output.stderr).into_owned();
    let told: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{failed}"));
    assert_eq!(told["resources"], 1);
    told["problems"].clone()
}

#[test]
fn the_service_monitor_fits_the_operators_schema() {
    let file = root().join("deploy/kubernetes/base/servicemonitor.yaml");
    assert_eq!(problems(&file), json!([]));
    let home = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(file).unwrap();
    for (shown, broken) in [
        ("interval: 15s", "interval: soon"),
        ("scheme: https", "scheme: 1"),
    ] {
        let wrong = home.path().join("wrong.yaml");
        fs::write(&wrong, text.replace(shown, broken)).unwrap();
        assert_eq!(problems(&wrong).as_array().unwrap().len(), 1, "{broken}");
    }
}
