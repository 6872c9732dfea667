//! Resources for Envoy Gateway and Istio: their schemas, and Envoy's own judgement of what
//! they put into its configuration.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::manifests;
use crate::proxy::{Envoy, binary};
use crate::redis_server::{RedisServer, free_port};
use crate::upstream::Upstream;

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

/// A limit that the descriptors of the resources meet.
const LIMIT: &str = r#"
[[limit]]
name = "per-address"
domain = "edge"
descriptor = [{ key = "remote_address" }]
rate = "5/min"
"#;

/// The resource's cluster, with the Service and its authority where they are here.
fn cluster_at(port: u16, secrets: &Path) -> Value {
    let found = read(&[root().join("deploy/envoy-gateway/palisade.yaml")]);
    let mut cluster = found["clusters"][0].clone();
    let end = &mut cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"];
    end["address"]["socket_address"] = json!({"address": "127.0.0.1", "port_value": port});
    let tls = &mut cluster["transport_socket"]["typed_config"]["common_tls_context"];
    let authority = &mut tls["validation_context"]["trusted_ca"]["filename"];
    assert_eq!(authority, "/etc/palisade/ca.crt");
    *authority = json!(secrets.join("ca.crt"));
    cluster
}

/// A whole configuration of Envoy with the resources for Envoy Gateway and an application.
fn gateway(cluster: &Value, app: &Upstream) -> Value {
    let found = read(&[root().join("deploy/envoy-gateway/palisade.yaml")]);
    let mut config = around(&found["filters"][0], &found["rate_limits"], cluster);
    let listener = &mut config["static_resources"]["listeners"][0];
    let manager = &mut listener["filter_chains"][0]["filters"][0]["typed_config"];
    manager["use_remote_address"] = json!(true);
    let host = &mut manager["route_config"]["virtual_hosts"][0];
    host["routes"] = json!([{"match": {"prefix": "/"}, "route": {"cluster": "application"}}]);
    let address = json!({"address": "127.0.0.1", "port_value": app.address.port()});
    let application = json!({"name": "application", "type": "STATIC", "load_assignment": {
        "cluster_name": "application", "endpoints": [{"lb_endpoints": [
            {"endpoint": {"address": {"socket_address": address}}}]}]}});
    let clusters = config["static_resources"]["clusters"].as_array_mut();
    clusters.unwrap().push(application);
    let admin = json!({"address": "127.0.0.1", "port_value": 0});
    config["admin"] = json!({"address": {"socket_address": admin}});
    config
}

/// Five of seven pass: Envoy shows what the manifests' configuration asks for, and with another
/// token nothing passes.
#[test]
fn envoy_as_the_resources_say_is_answered_by_a_server_as_the_manifests_configure_it() {
    let (redis, app, port) = (RedisServer::start(), Upstream::start(), free_port());
    let (_server, secrets) = manifests::start(
        "kubernetes/redis",
        &redis.url(),
        &format!("0.0.0.0:{port}"),
        &(LIMIT.to_owned() + "[store]\ntimeout = \"2s\"\n"),
    );
    let mut config = gateway(&cluster_at(port, secrets.path()), &app);
    let pass = |config: &Value, token: &str| {
        let envoy = Envoy::start_with(&config.to_string(), &[("PALISADE_CALLER", token)]);
        envoy.statuses(7, "/")
    };
    let filters = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";
    let filter = config.pointer_mut(&format!("{filters}/http_filters/0/typed_config"));
    // A busy machine has more time than a gateway would give it.
    filter.unwrap()["timeout"] = json!("5s");
    let statuses = pass(&config, &manifests::secret("caller"));
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429]);
    assert_eq!(pass(&config, &manifests::secret("stranger")), [503; 7]);
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
