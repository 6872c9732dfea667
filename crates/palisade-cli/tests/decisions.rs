//! The decision API of a running service.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod common;

use common::{Client, Server, sign_in};
use serde_json::{Value, json};

#[test]
fn l_ip_the_eleventh_sign_in_of_a_minute_is_denied_with_429_as_data() {
    let server = Server::start();
    let mut client = server.connect();
    let mut ask = || client.send("POST", "/v1/check", &[], sign_in("203.0.113.7").as_bytes());
    for used in 1..=10 {
        let answer = ask().json();
        assert_eq!(answer["decision"], "allow");
        assert_eq!(
            answer["headers"]["X-RateLimit-Remaining"],
            (10 - used).to_string()
        );
    }
    let reply = ask();
    assert_eq!(reply.status, 200, "the decision is data");
    let answer = reply.json();
    assert_eq!(answer["decision"], "deny");
    assert_eq!(answer["status"], 429);
    assert_eq!(answer["error"], "rate_limit_exceeded");
    assert_eq!(answer["rule"], "L-IP");
    assert_eq!(answer["headers"]["Retry-After"], "60");
    assert_eq!(answer["body"]["code"], "throttling.rate_limit_exceeded");
    let other = server.post("/v1/check", &sign_in("203.0.113.8")).json();
    assert_eq!(other["decision"], "allow", "another address has its own");
}

#[test]
fn peek_takes_nothing_and_refund_gives_back_to_who_configured_it() {
    let server = Server::configured("[server]\nrefund_by_facts = true\n");
    let facts = sign_in("198.51.100.9");
    let remaining = |answer: &Value| answer["limits"][0]["remaining"].clone();
    for _ in 0..3 {
        server.post("/v1/peek", &facts);
    }
    assert_eq!(remaining(&server.post("/v1/check", &facts).json()), 9);
    assert_eq!(remaining(&server.post("/v1/check", &facts).json()), 8);
    let refund = server.post("/v1/refund", &facts).json();
    assert_eq!(refund["refunded"], true);
    assert_eq!(remaining(&server.post("/v1/check", &facts).json()), 8);
}

#[test]
fn l_give_back_a_receipt_is_refunded_once_and_facts_alone_are_refused() {
    let server = Server::start();
    let facts = sign_in("198.51.100.9");
    let mut wanted: Value = serde_json::from_str(&facts).unwrap();
    wanted["receipt"] = json!(true);
    let check = |facts: &str| server.post("/v1/check", facts).json();
    assert!(
        check(&facts).get("receipt").is_none(),
        "it was not asked for"
    );
    let answer = check(&wanted.to_string());
    assert_eq!(answer["limits"][0]["remaining"], 8);
    let refund = |body: &Value| server.post("/v1/refund", &body.to_string());

    let receipt = json!({"receipt": answer["receipt"], "request_id": "r-9"});
    let first = refund(&receipt);
    assert_eq!(first.header("x-request-id"), Some("r-9"));
    assert_eq!(first.json()["refunded"], true);
    assert_eq!(first.json()["limits"][0]["remaining"], 9);
    assert_eq!(refund(&receipt).json()["refunded"], false, "once");
    assert_eq!(check(&facts)["limits"][0]["remaining"], 8);

    let mut both = receipt.clone();
    both["ip"] = json!("198.51.100.9");
    let facts: Value = serde_json::from_str(&facts).unwrap();
    for wrong in [
        facts,
        both,
        json!({"receipt": "canary"}),
        json!({}),
        json!({"receipt": 7}),
    ] {
        let refused = refund(&wrong);
        assert_eq!(
            (refused.status, &refused.json()["field"]),
            (400, &json!("receipt"))
        );
        assert!(!refused.text().contains("canary"));
    }
    let asked = server.post("/v1/check", &receipt.to_string());
    assert_eq!(
        (asked.status, &asked.json()["field"]),
        (400, &json!("receipt"))
    );
}

#[test]
fn t_jobs_are_checked_alone_and_in_a_batch_without_an_address() {
    let limits = "[[limit]]\nname = \"jobs\"\nby = [\"org\"]\nrate = \"3/min\"\n";
    let server = Server::configured(limits);
    let job = json!({"op": "job.enqueue", "org": "acme"});
    let one = server.post("/v1/check", &job.to_string()).json();
    assert_eq!(one["decision"], "allow", "{one}");
    let back = json!({"receipt": one["receipt"]}).to_string();
    assert_eq!(server.post("/v1/refund", &back).json()["refunded"], true);
    assert_eq!(
        server.post("/v1/check", &job.to_string()).json()["limits"][0]["remaining"],
        2
    );
    let batch = json!({"checks": [job, job, job, {"ip": "::1", "method": "GET", "path": "/"}]});
    let answers = server.post("/v1/batch", &batch.to_string()).json();
    let statuses: Vec<_> = (0..4)
        .map(|n| answers["answers"][n]["status"].clone())
        .collect();
    assert_eq!(statuses, [200, 200, 429, 200]);
    for (path, body, field) in [
        ("/v1/check", json!({"op": "job.enqueue"}), "org"),
        ("/v1/check", json!({"op": "enqueue", "org": "acme"}), "op"),
        (
            "/v1/batch",
            json!({"checks": [{"op": "job.enqueue"}]}),
            "checks[0].org",
        ),
    ] {
        let refused = server.post(path, &body.to_string());
        assert_eq!(
            (refused.status, &refused.json()["field"]),
            (400, &json!(field))
        );
    }
}

#[test]
fn l_layers_an_address_is_charged_once_by_two_calls() {
    let server = Server::start();
    let facts = |layers: &str| {
        let mut facts: Value = serde_json::from_str(&sign_in("198.51.100.10")).unwrap();
        facts["layers"] = json!(layers);
        facts["org"] = json!("acme");
        facts.to_string()
    };
    for used in 1..=10 {
        let edge = server.post("/v1/check", &facts("edge")).json();
        assert_eq!(edge["decision"], "allow", "{used}");
        let identity = server.post("/v1/check", &facts("identity")).json();
        assert_eq!(identity["decision"], "allow", "{used}");
    }
    let edge = server.post("/v1/check", &facts("edge")).json();
    assert_eq!(
        (&edge["status"], &edge["rule"]),
        (&json!(429), &json!("L-IP"))
    );
    let identity = server.post("/v1/check", &facts("identity")).json();
    assert_eq!(identity["decision"], "allow");
}

#[test]
fn request_ids_are_echoed_and_made_when_absent() {
    let server = Server::start();
    let mut client = server.connect();
    let facts = sign_in("198.51.100.1");
    let given = client.send(
        "POST",
        "/v1/check",
        &[("X-Request-Id", "r-17")],
        facts.as_bytes(),
    );
    assert_eq!(given.header("x-request-id"), Some("r-17"));
    assert_eq!(given.json()["request_id"], "r-17");

    let made = client.send("POST", "/v1/check", &[], facts.as_bytes());
    let id = made.header("x-request-id").unwrap().to_owned();
    assert_eq!(id.len(), 32);
    assert_eq!(made.json()["request_id"], id);

    let fact = r#"{"ip":"198.51.100.1","method":"GET","path":"/","request_id":"from-facts"}"#;
    let reply = client.send(
        "POST",
        "/v1/check",
        &[("X-Request-Id", "x")],
        fact.as_bytes(),
    );
    assert_eq!(reply.header("x-request-id"), Some("from-facts"));
}

#[test]
fn a_batch_is_answered_in_order_and_charged_like_single_checks() {
    let server = Server::start();
    let facts: Value = serde_json::from_str(&sign_in("203.0.113.40")).unwrap();
    let batch = json!({ "checks": vec![facts; 12] }).to_string();
    let answers = server.post("/v1/batch", &batch).json();
    let decisions: Vec<&str> = answers["answers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|answer| answer["decision"].as_str().unwrap())
        .collect();
    assert_eq!(decisions[..10], ["allow"; 10]);
    assert_eq!(decisions[10..], ["deny"; 2]);
}

#[test]
fn a_batch_with_one_bad_check_charges_nothing() {
    let server = Server::start();
    let good: Value = serde_json::from_str(&sign_in("203.0.113.41")).unwrap();
    let batch = json!({ "checks": [good, {"ip": "canary", "method": "GET", "path": "/"}] });
    let refused = server.post("/v1/batch", &batch.to_string());
    assert_eq!(refused.status, 400);
    assert_eq!(refused.json()["field"], "checks[1].ip");
    assert!(!refused.text().contains("canary"));
    let peek = server.post("/v1/peek", &sign_in("203.0.113.41")).json();
    assert_eq!(peek["limits"][0]["remaining"], 10);
}

#[test]
fn a_batch_takes_a_thousand_checks_and_no_more() {
    let server = Server::start();
    let check = json!({"ip": "203.0.113.42", "method": "GET", "path": "/a/rather/long/path/to/a/thing",
        "user_agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/123.0.0.0"});
    let full = json!({ "checks": vec![&check; 1000] }).to_string();
    assert!(
        full.len() > 64 * 1024,
        "a full batch is larger than one body"
    );
    let answers = server.post("/v1/batch", &full).json();
    assert_eq!(answers["answers"].as_array().unwrap().len(), 1000);
    let over = json!({ "checks": vec![&check; 1001] }).to_string();
    let refused = server.post("/v1/batch", &over);
    assert_eq!(
        (refused.status, refused.json()["field"].clone()),
        (400, json!("checks"))
    );
    assert_eq!(server.post("/v1/batch", r#"{"checks":[]}"#).status, 400);
}

fn login(account: &str, ip: &str) -> String {
    json!({"ip": ip, "account": account, "user_agent": "Mozilla/5.0 Chrome/123.0",
        "device": {"fingerprint": format!("fp-{account}"), "confidence": "medium"}})
    .to_string()
}

#[test]
fn g_threshold_repeated_failures_of_a_login_are_blocked() {
    let server = Server::start();
    let facts = login("a1", "203.0.113.60");
    let failure = || server.post("/v1/guard/login/failure", &facts).json();
    assert_eq!(failure()["decision"], "allow");
    let second = failure();
    assert_eq!(second["decision"], "soft_block");
    assert_eq!(second["level"], "L1");
    assert_eq!(second["status"], 429);
    let check = server.post("/v1/guard/login/check", &facts);
    assert_eq!(check.status, 200);
    assert_eq!(check.json()["decision"], "soft_block");
    let otp = server.post("/v1/guard/otp/check", &facts).json();
    assert_eq!(otp["decision"], "allow", "flows are apart");
}

#[test]
fn g_once_a_retry_with_the_facts_id_changes_nothing_and_a_header_is_not_enough() {
    let server = Server::start();
    let mut client = server.connect();
    let mut facts: Value = serde_json::from_str(&login("a2", "203.0.113.61")).unwrap();
    facts["request_id"] = json!("once");
    let mut fail = |body: &Value, headers: &[(&str, &str)]| {
        let reply = client.send(
            "POST",
            "/v1/guard/login/failure",
            headers,
            body.to_string().as_bytes(),
        );
        reply.json()["decision"].clone()
    };
    for _ in 0..4 {
        assert_eq!(fail(&facts, &[]), "allow");
    }
    let mut plain = facts.clone();
    plain.as_object_mut().unwrap().remove("request_id");
    assert_eq!(fail(&plain, &[("X-Request-Id", "same")]), "soft_block");
    assert_ne!(fail(&plain, &[("X-Request-Id", "same")]), "allow");
}

#[test]
fn g_pending_every_check_has_an_id_that_its_outcome_may_carry() {
    let server = Server::start();
    let facts: Value = serde_json::from_str(&login("a3", "203.0.113.62")).unwrap();
    let ask = |op: &str, id: Option<&Value>| {
        let mut facts = facts.clone();
        if let Some(id) = id {
            facts["request_id"] = id.clone();
        }
        let path = format!("/v1/guard/login/{op}");
        server.post(&path, &facts.to_string()).json()
    };
    let first = ask("check", None);
    let second = ask("check", None);
    assert_eq!(second["decision"], "allow");
    assert_ne!(first["request_id"], second["request_id"]);
    let third = ask("check", None);
    assert_eq!(
        (&third["decision"], &third["rule"]),
        (&json!("soft_block"), &json!("G-PENDING"))
    );
    ask("success", Some(&first["request_id"]));
    ask("success", Some(&second["request_id"]));
    assert_eq!(ask("check", None)["decision"], "allow");
}

#[test]
fn guard_facts_are_refused_by_field() {
    let server = Server::start();
    for (path, body, field) in [
        (
            "/v1/guard/login/check",
            r#"{"ip":"203.0.113.1"}"#,
            "account",
        ),
        ("/v1/guard/otp/failure", r#"{"account":"a"}"#, "ip"),
        ("/v1/guard/api/hit", r#"{"ip":"canary"}"#, "ip"),
        (
            "/v1/guard/login/check",
            r#"{"ip":"203.0.113.1","account":"a","device":{"trusted":true}}"#,
            "device.trusted",
        ),
        ("/v1/guard/sessions", r#"{}"#, "account"),
        ("/v1/guard/sessions", r#"{"account":""}"#, "account"),
    ] {
        let reply = server.post(path, body);
        assert_eq!(reply.status, 400, "{path} {body}");
        assert_eq!(reply.json()["field"], field, "{path} {body}");
        assert!(!reply.text().contains("canary"));
    }
    let hit = server.post("/v1/guard/api/hit", r#"{"ip":"203.0.113.1"}"#);
    assert_eq!(hit.json()["decision"], "allow");
}

#[test]
fn sessions_are_issued_and_revoked() {
    let server = Server::start();
    let account = r#"{"account":"owner"}"#;
    let first = server.post("/v1/guard/sessions", account).json();
    let second = server.post("/v1/guard/sessions", account).json();
    assert_ne!(first["session_id"], second["session_id"]);
    assert!(first["session_id"].as_str().unwrap().len() >= 32);
    let delete = |body: &str| {
        let mut client = server.connect();
        client.send("DELETE", "/v1/guard/sessions", &[], body.as_bytes())
    };
    let one = json!({"account": "owner", "session_id": first["session_id"]}).to_string();
    assert_eq!(delete(&one).json()["revoked"], 1);
    assert_eq!(delete(&one).json()["revoked"], 0);
    assert_eq!(delete(account).json()["revoked"], 1, "the one that is left");
}

#[test]
fn keep_alive_and_pipelined_requests_are_answered_in_order() {
    let server = Server::start();
    let mut client = Client::connect(server.listen);
    let body = sign_in("203.0.113.70");
    let one = |id: &str| {
        format!(
            "POST /v1/check HTTP/1.1\r\nHost: t\r\nX-Request-Id: {id}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    client.write((one("p-1") + &one("p-2")).as_bytes()).unwrap();
    for id in ["p-1", "p-2"] {
        let reply = client.read_reply().unwrap();
        assert_eq!(reply.header("x-request-id"), Some(id));
    }
}
