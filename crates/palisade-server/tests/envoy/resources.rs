//! Resources for Envoy Gateway and Istio: their schemas, and Envoy's own judgement of what
//! they put into its configuration.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::proxy::binary;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What the schemas say, and the parts that Envoy reads.
fn read(files: &[PathBuf]) -> Value {
    let modules = root().join("target/tools/kubernetes-models");
    assert!(modules.exists(), "`scripts/test` installs the schemas");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/envoy/resources.cjs");
    let output = Command::new("node")
        .arg(script)
        .arg(modules)
        .args(files)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{said}"))
}

/// A whole configuration around a filter, its descriptors and its cluster.
fn around(filter: &Value, limits: &Value, cluster: &Value) -> Value {
    let typed = "type.googleapis.com/envoy.extensions.filters";
    let router = json!({"name": "envoy.filters.http.router",
        "typed_config": {"@type": format!("{typed}.http.router.v3.Router")}});
    let manager = json!({
        "@type": format!("{typed}.network.http_connection_manager.v3.HttpConnectionManager"),
        "stat_prefix": "edge",
        "http_filters": [filter, router],
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "rate_limits": limits,
            "routes": [{"match": {"prefix": "/"}, "direct_response": {"status": 200}}]}]},
    });
    json!({"static_resources": {
        "clusters": [cluster],
        "listeners": [{"name": "edge",
            "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
            "filter_chains": [{"filters": [
                {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}]}],
    }})
}

/// Whether Envoy takes it, and what it says.
fn judged(config: &Value) -> (bool, String) {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("envoy.json");
    std::fs::write(&file, config.to_string()).unwrap();
    let output = Command::new(binary())
        .args(["--mode", "validate", "-c", file.to_str().unwrap()])
        .output()
        .expect("Envoy; `scripts/test` installs it");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.success(), said)
}

/// Certificates are where the resources mount them; here they are nowhere.
fn without_tls(cluster: &Value) -> Value {
    let mut cluster = cluster.clone();
    cluster.as_object_mut().unwrap().remove("transport_socket");
    cluster
}

#[test]
fn the_resources_for_envoy_gateway_fit_their_schemas_and_envoy() {
    let found = read(&[root().join("deploy/envoy-gateway/palisade.yaml")]);
    assert_eq!(found["problems"], json!([]));
    assert_eq!(found["resources"], 2);
    let cluster = without_tls(&found["clusters"][0]);
    let config = around(&found["filters"][0], &found["rate_limits"], &cluster);
    let (taken, said) = judged(&config);
    assert!(taken, "{said}");
    // The part that was left out is judged too: only its files are missing.
    let config = around(
        &found["filters"][0],
        &found["rate_limits"],
        &found["clusters"][0],
    );
    let (_, said) = judged(&config);
    assert!(said.contains("/etc/palisade/"), "{said}");
}

#[test]
fn the_resources_for_istio_fit_their_schemas_and_envoy() {
    let found = read(&[root().join("deploy/istio/palisade.yaml")]);
    assert_eq!(found["problems"], json!([]));
    assert_eq!(found["resources"], 4);
    let service = &found["filters"][0]["typed_config"]["rate_limit_service"];
    let name = &service["grpc_service"]["envoy_grpc"]["cluster_name"];
    let cluster = json!({"name": name, "type": "STATIC"});
    let config = around(&found["filters"][0], &found["rate_limits"], &cluster);
    let (taken, said) = judged(&config);
    assert!(taken, "{said}");
}

#[test]
fn a_resource_that_does_not_fit_is_found() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("wrong.yaml");
    let good = std::fs::read_to_string(root().join("deploy/istio/palisade.yaml")).unwrap();
    std::fs::write(&file, good.replace("INSERT_BEFORE", "INSERT_SIDEWAYS")).unwrap();
    let found = read(&[file]);
    assert_eq!(found["problems"].as_array().unwrap().len(), 1, "{found}");
    let mut filter = found["filters"][0].clone();
    filter["typed_config"]["failure_mode"] = json!(true);
    let cluster = json!({"name": "x", "type": "STATIC"});
    assert!(!judged(&around(&filter, &found["rate_limits"], &cluster)).0);
}
