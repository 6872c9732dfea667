//! Servers that are configured as the manifests of deploy/ configure them.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::common::{Options, Server};

pub(crate) fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().unwrap()
}

/// The Python that reads manifests; `scripts/test` installs what it needs.
pub(crate) fn python() -> Command {
    let installed = root().join("target/tools/kubernetes/bin/python");
    Command::new(match installed.exists() {
        true => installed,
        false => PathBuf::from("python3"),
    })
}

/// The documents of a manifest.
pub(crate) fn read(path: &str) -> Vec<Value> {
    let program =
        "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))";
    let output = python()
        .args(["-c", program])
        .arg(root().join("deploy").join(path))
        .output()
        .unwrap();
    let failed = String::from_utf8_lossy(&output.stderr).into_owned();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{path}: {failed}"))
}

/// What the secret `palisade` holds under a key: nobody's token is another's.
pub(crate) fn secret(key: &str) -> String {
    format!("{key}-0123456789abcdef0123456789abcdef")
}

/// The secret `palisade-tls`: a certificate for the names that docs/operations.md asks for, as
/// its own authority.
pub(crate) fn certificate(home: &Path) {
    let page = fs::read_to_string(root().join("docs/operations.md")).unwrap();
    let (_, names) = page.split_once("one for the names").expect("the names");
    let names: Vec<&str> = names.split('`').skip(1).step_by(2).take(2).collect();
    let names = format!("subjectAltName=DNS:{}", names.join(",DNS:"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"])
        .args(["-pkeyopt", "ec_paramgen_curve:prime256v1"])
        .args(["-subj", "/CN=palisade", "-addext", &names])
        .args(["-keyout", "tls.key", "-out", "tls.crt"])
        .current_dir(home)
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    fs::copy(home.join("tls.crt"), home.join("ca.crt")).unwrap();
}

/// The policy file of a variant, with its certificate in `home`.
pub(crate) fn policy(variant: &str, home: &Path) -> String {
    let path = root().join(format!("deploy/{variant}/palisade.toml"));
    let text = fs::read_to_string(path).unwrap();
    let shown = "/etc/palisade-tls";
    assert!(text.contains(shown));
    text.replace(shown, home.to_str().unwrap())
}

/// The variables of the Deployment, from the secret.
pub(crate) fn environment(store: &str) -> Vec<(String, String)> {
    let deployment = read("kubernetes/base/deployment.yaml").remove(0);
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let variables = container["env"].as_array().unwrap().iter();
    variables
        .map(|variable| {
            let key = variable["valueFrom"]["secretKeyRef"]["key"]
                .as_str()
                .unwrap();
            let value = match key {
                "store" => store.to_owned(),
                other => secret(other),
            };
            (variable["name"].as_str().unwrap().to_owned(), value)
        })
        .collect()
}

/// A server as the variant starts it, on ports of its own; `more` is put behind its policy.
/// The certificate's folder comes with it.
pub(crate) fn start(variant: &str, store: &str, grpc: &str, more: &str) -> (Server, TempDir) {
    let secrets = tempfile::tempdir().unwrap();
    certificate(secrets.path());
    let config = policy(variant, secrets.path()) + more;
    let env = environment(store);
    let env: Vec<(&str, &str)> = env.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let args = [
        "--listen",
        "0.0.0.0:0",
        "--admin",
        "0.0.0.0:0",
        "--grpc",
        grpc,
    ];
    let server = Server::with(&Options {
        args: &args,
        config: Some(&config),
        env: &env,
    });
    (server, secrets)
}
