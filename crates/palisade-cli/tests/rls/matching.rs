//! Which limit answers, where several could: over the wire, and as `palisade policy` tells it.

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;

use crate::common::palisade;
use crate::service::{Service, alone, of, on_every_store, request, shown};

const POLICY: &str = r#"
    [[limit]]
    name = "api"
    domain = "edge"
    descriptor = [{ key = "path", value = "/api/*" }]
    rate = "5/h"
    [[limit]]
    name = "users"
    domain = "edge"
    descriptor = [{ key = "path", value = "/api/users/*" }]
    rate = "4/h"
    [[limit]]
    name = "login"
    domain = "edge"
    descriptor = [{ key = "path", value = "/api/Login" }]
    rate = "3/h"
"#;

/// The limit that answers and what it has left.
fn ask(service: &mut Service, path: &str) -> String {
    let answer = service.ask(&[of(&[("path", path)])]);
    let (_, name, left) = shown(&answer)[0].clone();
    format!("{name} {left}")
}

#[test]
fn r_value_the_longest_prefix_answers_and_counts_each_value_on_its_own() {
    on_every_store(POLICY, |service| {
        assert_eq!(ask(service, "/api/users/1"), "users 3");
        assert_eq!(ask(service, "/api/users/2"), "users 3");
        assert_eq!(ask(service, "/api/users/1"), "users 2");
        assert_eq!(ask(service, "/api/user"), "api 4");
        assert_eq!(ask(service, "/api/users/"), "users 3");
        assert_eq!(ask(service, "/api/"), "api 4");
    });
}

#[test]
fn r_depth_letter_case_counts_in_domain_key_and_value() {
    on_every_store(POLICY, |service| {
        assert_eq!(ask(service, "/api/Login"), "login 2");
        assert_eq!(ask(service, "/api/login"), "api 4");
        assert_eq!(ask(service, "/API/Login"), " 0");
        let key = service.ask(&[of(&[("Path", "/api/Login")])]);
        assert_eq!(shown(&key), [(Code::Ok, String::new(), 0)]);
        let one = [of(&[("path", "/api/Login")])];
        let domain = service.call(request("Edge", &one)).unwrap();
        assert_eq!(shown(&domain), [(Code::Ok, String::new(), 0)]);
    });
}

#[test]
fn policy_tells_limits_apart_that_differ_by_their_values_only() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.toml");
    let open = "[[limit]]\nname = \"any\"\ndomain = \"edge\"\nrate = \"9/h\"\n\
        descriptor = [{ key = \"path\", value = \"*\" }, { key = \"ip\" }]\n";
    std::fs::write(&file, alone(&format!("{POLICY}{open}"))).unwrap();
    let output = palisade().arg("policy").arg("--config").arg(&file).output();
    let output = output.unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    for words in [
        "domain edge: path=/api/*",
        "domain edge: path=/api/users/*",
        "domain edge: path=/api/Login",
        "domain edge: path, ip",
    ] {
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn replay_decides_envoys_calls() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("policy.toml", &alone(POLICY));
    let line = |second: u32| {
        format!(
            "{{\"at\":\"2026-01-01T00:00:0{second}Z\",\"op\":\"rls\",\"domain\":\"edge\",\
             \"descriptors\":[[{{\"key\":\"path\",\"value\":\"/api/Login\"}}]]}}\n"
        )
    };
    write("calls.jsonl", &(0..5).map(line).collect::<String>());
    let output = palisade()
        .current_dir(folder.path())
        .args(["replay", "--json", "calls.jsonl", "--config", "policy.toml"])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let said: serde_json::Value = serde_json::from_str(said.trim()).unwrap();
    let summary = &said["summary"];
    assert_eq!(summary["events"], 5, "{said}");
    assert_eq!(summary["refused_by"]["R-DOMAIN login"], 2, "{said}");
}
