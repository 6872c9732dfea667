//! Why a call of Envoy is over its limits: for operators, over HTTP and on the command line.

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use serde_json::{Value, json};

use crate::common::{Client, palisade};
use crate::page::blocks;
use crate::service::{KEY, Service, alone, of, on_every_store};

const ADMIN: &str = "[admin]\ntoken = \"env:KEY\"\n";

fn explain(service: &Service, subject: &Value) -> (u16, Value) {
    let bearer = format!("Bearer {}", KEY.1);
    let headers = [("Authorization", bearer.as_str())];
    let body = subject.to_string();
    let mut client = Client::connect(service.server.admin);
    let reply = client.send("POST", "/admin/explain", &headers, body.as_bytes());
    (reply.status, reply.json())
}

/// The findings on these descriptors, in words.
fn words(service: &Service, descriptors: &Value, hits: u32) -> Vec<String> {
    let call = json!({"domain": "edge", "descriptors": descriptors, "hits": hits});
    let (status, body) = explain(service, &json!({"rls": call}));
    assert_eq!(status, 200, "{body}");
    let findings = body["findings"].as_array().unwrap().iter();
    findings
        .map(|finding| finding["words"].as_str().unwrap().to_owned())
        .collect()
}

fn entry(key: &str, value: &str) -> Value {
    json!([{"key": key, "value": value}])
}

#[test]
fn explain_names_each_limit_of_a_call_what_is_used_and_which_one_denies() {
    let policy = format!("{ADMIN}\n{}", blocks("toml")[0]);
    on_every_store(&policy, |service| {
        let both = [
            of(&[("path", "/login"), ("remote_address", "canary")]),
            of(&[("remote_address", "canary")]),
        ];
        for code in [Code::Ok, Code::Ok, Code::OverLimit] {
            assert_eq!(service.code(&both), code);
        }
        let login = json!([{"key": "path", "value": "/login"}, {"key": "remote_address", "value": "canary"}]);
        let call =
            json!({"domain": "edge", "descriptors": [entry("remote_address", "canary"), login]});
        for _ in 0..2 {
            let (status, body) = explain(service, &json!({"rls": call}));
            assert_eq!((status, &body["decision"]), (200, &json!("deny")), "{body}");
            let [denies, admits] = [&body["findings"][0], &body["findings"][1]];
            assert_eq!(denies["rule"], "R-DOMAIN");
            assert!(denies["retry_after"].as_u64().is_some_and(|s| s <= 60));
            let figures = |finding: &Value| {
                let bucket = &finding["bucket"];
                let reset = bucket["reset"].as_u64().unwrap();
                assert!((1..=60).contains(&reset), "{bucket}");
                ["descriptor", "name", "used", "limit", "remaining"].map(|key| bucket[key].clone())
            };
            assert_eq!(json!(figures(denies)), json!([2, "login", 2, 2, 0]));
            assert_eq!(json!(figures(admits)), json!([1, "each-address", 2, 5, 3]));
            assert!(!body.to_string().contains("canary"), "{body}");
        }
    });
}

#[test]
fn explain_has_words_for_everything_a_limit_may_say() {
    let policy = r#"
        [[limit]]
        name = "few"
        domain = "edge"
        descriptor = [{ key = "ip" }]
        rate = "3/h"
        [[limit]]
        name = "seen"
        domain = "edge"
        descriptor = [{ key = "beta" }]
        rate = "1/h"
        shadow = true
        [[limit]]
        name = "never"
        domain = "edge"
        descriptor = [{ key = "closed" }]
        rate = "0/s"
        [[limit]]
        name = "always"
        domain = "edge"
        descriptor = [{ key = "friend" }]
        unlimited = true
    "#;
    on_every_store(&format!("{ADMIN}\n{policy}"), |service| {
        service.ask(&[of(&[("ip", "a")]), of(&[("beta", "a")])]);
        let all = ["ip", "beta", "closed", "friend", "other"].map(|key| entry(key, "a"));
        let said = words(service, &json!(all), 1);
        let without_seconds = |text: &String| text.split("; all of it").next().unwrap().to_owned();
        let said: Vec<String> = said.iter().map(without_seconds).collect();
        assert_eq!(
            said,
            [
                "a limit of its Envoy domain admits nothing: descriptor 3, `never`",
                "descriptor 1: `few` has 2 of 3 left",
                "descriptor 2: `seen` is used up, 1 of 1, and only reports",
                "descriptor 4: `always` admits everything",
                "descriptor 5: no limit counts it",
            ]
        );
        let several = words(service, &json!([entry("ip", "a")]), 3);
        assert!(
            several[0].starts_with("too many hits of this descriptor in its Envoy domain: descriptor 1, `few` has 2 of 3 left"),
            "{several:?}"
        );
        let dear = words(service, &json!([entry("ip", "a")]), 4);
        assert_eq!(
            dear,
            [
                "the request costs more than its limit allows: descriptor 1 asks for more hits than `few` ever admits, 3"
            ]
        );
    });
}

#[test]
fn explain_refuses_what_is_no_call_and_repeats_nothing_of_it() {
    let service = Service::embedded(&alone(ADMIN));
    for wrong in [
        json!({"rls": {"domain": "", "descriptors": [entry("canary", "a")]}}),
        json!({"rls": {"domain": "canary", "descriptors": []}}),
        json!({"rls": {"domain": "canary", "descriptors": "canary"}}),
        json!({"rls": {"canary": 1}}),
        json!({"rls": "canary"}),
    ] {
        let (status, body) = explain(&service, &wrong);
        assert_eq!(status, 400, "{wrong}");
        assert!(!body.to_string().contains("canary"), "{body}");
    }
}

#[test]
fn the_page_shows_what_explain_says_on_the_command_line() {
    let policy = format!("{ADMIN}\n{}", blocks("toml")[0]);
    let mut service = Service::embedded(&alone(&policy));
    let login = [of(&[("path", "/login"), ("remote_address", "203.0.113.5")])];
    for _ in 0..3 {
        service.ask(&login);
    }
    let shown = blocks("text").swap_remove(0);
    let (command, expected) = shown.split_once('\n').unwrap();
    let words = command.strip_prefix("$ palisade ").unwrap();
    let output = palisade()
        .args(words.split_whitespace())
        .args(["--admin", &service.server.admin.to_string()])
        .env("PALISADE_ADMIN_TOKEN", KEY.1)
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    // A second may have passed since it was used.
    let untimed = |text: &str| text.replace(" 59 s", " 60 s").replace(" 58 s", " 60 s");
    assert_eq!(untimed(&said), expected);
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn a_descriptor_on_the_command_line_is_entries_or_json() {
    let service = Service::embedded(&format!("{ADMIN}\n{}", blocks("toml")[0]));
    let run = |args: &[&str]| {
        let output = palisade()
            .args(["explain", "--domain", "edge"])
            .args(args)
            .args(["--admin", &service.server.admin.to_string()])
            .env("PALISADE_ADMIN_TOKEN", KEY.1)
            .output()
            .unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).unwrap())
    };
    let json = r#"[{"key":"remote_address","value":"a,b=c"}]"#;
    for descriptor in ["remote_address=a", json] {
        let (code, said) = run(&["--descriptor", descriptor]);
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("`each-address` has 5 of 5 left"), "{said}");
    }
    let (code, said) = run(&["--descriptor", "canary"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(
        !said.contains("canary") && said.contains("KEY=VALUE"),
        "{said}"
    );
    assert_eq!(run(&[]).0, Some(2), "a domain without a descriptor");
}
