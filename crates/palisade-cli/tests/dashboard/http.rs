//! Sessions, roles and what the page is told, without a browser.

use std::io::{BufRead, Write};
use std::time::Duration;

use super::*;

#[test]
fn the_page_is_served_to_everybody_and_nothing_else_is() {
    let server = start();
    let page = server.admin_get("/");
    assert_eq!(page.status, 200);
    assert!(page.text().starts_with("<!doctype html>"));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none';"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "no-referrer"),
        ("cache-control", "no-cache"),
    ] {
        assert_eq!(page.header(name), Some(value));
    }
    assert!(!page.text().contains("://"), "nothing from elsewhere");
    let tag = page.header("etag").unwrap().to_owned();
    let again = [("if-none-match", tag.as_str())];
    let again = Client::connect(server.admin).send("GET", "/", &again, b"");
    assert_eq!((again.status, again.body.len()), (304, 0));
    for path in ["/assets/app.js", "/assets/app.css", "/assets/icon.svg"] {
        assert_eq!(server.admin_get(path).status, 200, "{path}");
    }
    for path in [
        "/dashboard/history",
        "/dashboard/now",
        "/dashboard/events",
        "/admin/blocks",
        "/assets/../Cargo.toml",
        "/nowhere",
    ] {
        assert_eq!(server.admin_get(path).status, 401, "{path}");
    }
}

#[test]
fn without_a_credential_configured_there_is_no_door() {
    let server = Server::start();
    assert_eq!(server.admin_get("/").status, 401);
    assert_eq!(post_token(&server, "").status, 401);
}

#[test]
fn a_wrong_credential_is_refused_and_guessing_is_limited() {
    let server = start();
    for _ in 0..10 {
        let reply = post_token(&server, "canary-guess");
        assert_eq!(reply.status, 401);
        assert!(!reply.text().contains("canary"));
        assert!(reply.header("set-cookie").is_none());
    }
    let reply = post_token(&server, "another-guess");
    assert_eq!(reply.status, 429, "ten guesses within a minute");
    assert_eq!(reply.header("retry-after"), Some("60"));
    assert_eq!(
        post_token(&server, TOKEN).status,
        200,
        "who has a token that cannot be guessed is not kept out"
    );
}

#[test]
fn a_session_changes_things_only_for_its_own_page_and_ends() {
    let server = start();
    let page = Page::sign_in(&server, TOKEN);
    let who = page.get("/dashboard/session");
    assert_eq!(who, json!({"role": "operator", "csrf": page.csrf}));
    let reset = json!({"reason": "test", "subjects": [{"user": "u1"}]});
    let path = "/admin/rate-limit/reset";
    assert_eq!(page.ask("POST", path, &reset).status, 200);
    let forged = Page {
        csrf: "0".repeat(64),
        cookie: page.cookie.clone(),
        server: &server,
    };
    assert_eq!(forged.ask("POST", path, &reset).status, 403);
    let headers = [("cookie", page.cookie.as_str())];
    let bare = |method, path| Client::connect(server.admin).send(method, path, &headers, b"{}");
    assert_eq!(bare("POST", path).status, 403, "no token at all");
    assert_eq!(bare("POST", "/dashboard/sign-out").status, 403);
    let elsewhere = [("sec-fetch-site", "cross-site")];
    let body = json!({ "token": TOKEN }).to_string();
    let path = "/dashboard/session";
    let foreign = Client::connect(server.admin).send("POST", path, &elsewhere, body.as_bytes());
    assert_eq!(foreign.status, 403, "another site cannot sign anybody in");
    assert_eq!(
        page.ask("POST", "/dashboard/sign-out", &json!({})).status,
        204
    );
    assert_eq!(bare("GET", "/dashboard/now").status, 401);
    assert_eq!(page.get("/dashboard/session")["role"], "nobody");
}

#[test]
fn a_viewer_looks_and_changes_nothing() {
    let server = start();
    let page = Page::sign_in(&server, VIEWER);
    assert_eq!(page.get("/dashboard/session")["role"], "viewer");
    page.get("/dashboard/now");
    page.get("/dashboard/history?span=day");
    page.get("/admin/blocks?limit=10");
    assert_eq!(
        page.look_up(&json!({"ip": "203.0.113.77"}))["decision"],
        "allow"
    );
    let key = palisade_core::policy::hash_api_key(API_KEY);
    let entry = json!({"type": "ip", "identifier": "203.0.113.77", "reason": "r"});
    for (method, path, body) in [
        (
            "DELETE",
            "/admin/blocks".to_owned(),
            json!({"account": "a", "reason": "r"}),
        ),
        (
            "POST",
            "/admin/rate-limit/reset".to_owned(),
            json!({"reason": "r", "subjects": [{"user": "u"}]}),
        ),
        ("POST", "/admin/rate-limit/allowlist".to_owned(), entry),
        (
            "PUT",
            format!("/admin/rate-limit/quota/{key}/tier"),
            json!({"tier": "starter"}),
        ),
        ("POST", "/admin/cache/invalidate".to_owned(), json!({})),
    ] {
        let reply = page.ask(method, &path, &body);
        assert_eq!(reply.status, 403, "{method} {path}");
        let bearer = format!("Bearer {VIEWER}");
        let headers = [("authorization", bearer.as_str())];
        let body = body.to_string();
        let reply = Client::connect(server.admin).send(method, &path, &headers, body.as_bytes());
        assert_eq!(reply.status, 403, "the same without a browser");
    }
    assert_eq!(
        page.ask("POST", "/dashboard/sign-out", &json!({})).status,
        204
    );
}

/// Reads server-sent events until one satisfies the condition.
fn follow(server: &Server, cookie: &str, until: impl Fn(&Value) -> bool) -> Value {
    let mut client = Client::connect(server.admin);
    let request =
        format!("GET /dashboard/events HTTP/1.1\r\nhost: admin\r\ncookie: {cookie}\r\n\r\n");
    client
        .stream
        .get_mut()
        .write_all(request.as_bytes())
        .unwrap();
    client
        .stream
        .get_mut()
        .set_read_timeout(Some(common::PATIENCE))
        .unwrap();
    let mut line = String::new();
    for _ in 0..10_000 {
        line.clear();
        let read = client.stream.read_line(&mut line).unwrap();
        assert_ne!(read, 0, "the stream ended");
        if let Some(json) = line.strip_prefix("data: ") {
            let frame: Value = serde_json::from_str(json).unwrap();
            if until(&frame) {
                return frame;
            }
        }
    }
    panic!("it never came");
}

/// All decisions of the last hour.
fn decisions(page: &Page<'_>) -> u64 {
    let hour = page.get("/dashboard/history?span=hour");
    let outcomes = hour["outcomes"].as_array().unwrap().iter();
    let counts = outcomes.flat_map(|outcome| outcome[1].as_array().unwrap());
    counts.map(|count| count.as_u64().unwrap()).sum()
}

#[test]
fn frames_come_live_and_histories_are_kept() {
    let server = start();
    let page = Page::sign_in(&server, TOKEN);
    let counted = |frame: &Value| frame["outlook"]["newest"]["surfaces"] != json!([]);
    let body = json!({"ip": "203.0.113.77", "method": "GET", "path": "/reports/canary", "user": "canary-user"});
    let traffic = std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            for _ in 0..100 {
                server.post("/v1/check", &body.to_string());
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let frame = follow(&server, &page.cookie, counted);
        sending.join().unwrap();
        frame
    });
    let text = traffic.to_string();
    assert!(
        CANARIES.iter().all(|canary| !text.contains(canary)),
        "{text}"
    );
    assert_eq!(traffic["health"]["store"]["state"], "up");
    assert_eq!(traffic["viewers"], 1);
    assert_eq!(traffic["guard"][0], json!(["login", "enforce"]));
    let refused = |frame: &Value| frame["outlook"]["limits"] != json!([]);
    let frame = follow(&server, &page.cookie, refused);
    assert_eq!(frame["outlook"]["limits"][0]["name"], "reports-per-user");
    assert_eq!(frame["outlook"]["subjects"][0]["kind"], "user");
    // The second under way is not in it yet.
    for _ in 0..common::PATIENCE.as_millis() / 50 {
        if decisions(&page) == 100 {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(decisions(&page), 100);
    assert_eq!(
        page.ask("GET", "/dashboard/history?span=canary", &Value::Null)
            .status,
        400
    );
}

#[test]
fn viewers_are_bounded_and_a_stop_does_not_wait_for_them() {
    let server = start();
    let page = Page::sign_in(&server, TOKEN);
    let request = format!(
        "GET /dashboard/events HTTP/1.1\r\nhost: admin\r\ncookie: {}\r\n\r\n",
        page.cookie
    );
    let mut viewers = Vec::new();
    let status = |client: &mut Client| {
        client
            .stream
            .get_mut()
            .write_all(request.as_bytes())
            .unwrap();
        let mut line = String::new();
        client.stream.read_line(&mut line).unwrap();
        line
    };
    for _ in 0..64 {
        let mut client = Client::connect(server.admin);
        assert!(status(&mut client).contains(" 200 "));
        viewers.push(client);
    }
    let mut another = Client::connect(server.admin);
    assert!(status(&mut another).contains(" 429 "));
    server.terminate();
    assert_eq!(server.wait().0, Some(0));
}

#[test]
fn a_blocked_account_is_found_explained_and_lifted() {
    let server = start();
    let page = Page::sign_in(&server, TOKEN);
    let account = "canary-account";
    while may_log_in(&server, account) {
        fail(&server, account);
    }
    let found = page.look_up(&json!({"account": account}));
    assert_ne!(found["decision"], "allow");
    let finding = &found["findings"][0];
    assert!(
        finding["words"]
            .as_str()
            .unwrap()
            .contains("the block on account-login ends at")
    );
    assert!(finding["rule"].as_str().unwrap().starts_with("G-"));
    assert!(
        finding["help"]
            .as_str()
            .unwrap()
            .starts_with("palisade blocks lift")
    );
    assert!(found["free_in"].as_u64().unwrap() > 0);
    let score = &found["scores"][0];
    assert!(score["score"].as_u64().unwrap() > 0);
    assert!(score["falls_at"].as_str() <= score["gone_at"].as_str());
    let timeline = found["timeline"].as_array().unwrap();
    assert!(!timeline.is_empty());
    assert_eq!(timeline[0]["event"], "guard.block");
    let lift = json!({"account": account, "score": true, "reason": "support case"});
    assert_eq!(page.ask("DELETE", "/admin/blocks", &lift).status, 200);
    assert!(may_log_in(&server, account));
    let found = page.look_up(&json!({"account": account}));
    assert_eq!(
        (&found["decision"], &found["findings"]),
        (&json!("allow"), &json!([]))
    );
    assert_eq!(found["scores"], json!([]));
}

#[test]
fn buckets_quotas_and_tiers_of_a_subject_are_shown_and_changed() {
    let server = start();
    let page = Page::sign_in(&server, TOKEN);
    let body =
        json!({"ip": "203.0.113.77", "method": "GET", "path": "/reports/x", "user": "canary-user"});
    for _ in 0..4 {
        server.post("/v1/check", &body.to_string());
    }
    let user = json!({"user": "canary-user"});
    let found = page.look_up(&user);
    let bucket = &found["buckets"]
        .as_array()
        .unwrap()
        .iter()
        .find(|b| b["name"] == "reports-per-user")
        .unwrap()
        .clone();
    assert_eq!((&bucket["used"], &bucket["limit"]), (&json!(3), &json!(3)));
    assert!(bucket["retry_after"].as_u64().unwrap() <= 60);
    assert_eq!(found["decision"], "deny");
    assert_eq!(found["findings"][0]["rule"], "L-USER");
    let reset = json!({"reason": "support case", "subjects": [user]});
    assert_eq!(
        page.ask("POST", "/admin/rate-limit/reset", &reset).status,
        200
    );
    assert_eq!(page.look_up(&user)["decision"], "allow");
    let entry = json!({"type": "user_id", "identifier": "u2", "reason": "r", "expires_at": "2099-01-01T00:00:00Z"});
    assert_eq!(
        page.ask("POST", "/admin/rate-limit/allowlist", &entry)
            .status,
        200
    );
    assert_eq!(page.look_up(&json!({"user": "u2"}))["allowlisted"], true);
    let key = page.look_up(&json!({"api_key": API_KEY}));
    assert_eq!(key["quota"]["tier"], "free");
    let path = format!(
        "/admin/rate-limit/quota/{}/tier",
        key["quota"]["key"].as_str().unwrap()
    );
    let tier = json!({"tier": "starter", "reason": "upgrade"});
    assert_eq!(page.ask("PUT", &path, &tier).status, 200);
    assert_eq!(
        page.look_up(&json!({"api_key": API_KEY}))["quota"]["tier"],
        "starter"
    );
    for wrong in [
        json!({}),
        json!({"ip": "canary"}),
        json!({"username": "canary"}),
        json!({"canary": 1}),
    ] {
        assert_eq!(
            page.ask("POST", "/admin/lookup", &wrong).status,
            400,
            "{wrong}"
        );
    }
    server.terminate();
    let (_, home) = server.wait();
    let audit = std::fs::read_to_string(home.path().join("palisade-data/audit.jsonl")).unwrap();
    for event in [
        "rate_limit_reset",
        "rate_limit_allowlist_added",
        "quota_tier_changed",
    ] {
        assert_eq!(audit.matches(event).count(), 1, "{event}");
    }
    assert!(audit.contains("\"reason\":\"upgrade\""));
    assert!(CANARIES.iter().all(|canary| !audit.contains(canary)));
}

#[test]
fn running_blocks_are_listed_in_pages_that_miss_none() {
    let server = start();
    let mut client = server.connect();
    for n in 0..300 {
        for _ in 0..3 {
            let body = json!({"ip": "198.51.100.7", "account": format!("a{n}"),
                "device": {"fingerprint": format!("d{n}"), "known": true}});
            client.send(
                "POST",
                "/v1/guard/otp/failure",
                &[],
                body.to_string().as_bytes(),
            );
        }
    }
    let page = Page::sign_in(&server, TOKEN);
    let (seen, pages) = page.blocks(50);
    let whole = page.get("/admin/blocks");
    assert_eq!(seen.len(), whole["blocks"].as_array().unwrap().len());
    assert!(
        seen.len() >= 300 && pages >= 5,
        "{} on {pages} pages",
        seen.len()
    );
    assert_eq!(
        page.ask("GET", "/admin/blocks?after=canary", &Value::Null)
            .status,
        400
    );
}

#[test]
fn the_examples_of_the_documentation_do_what_it_says() {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/dashboard.md");
    let text = std::fs::read_to_string(page).unwrap();
    let block = |language: &str| {
        let after = text.split_once(&format!("```{language}\n")).unwrap().1;
        after.split_once("```").unwrap().0.to_owned()
    };
    let server = start_with(&block("toml"));
    for (token, role) in [(TOKEN, "operator"), (VIEWER, "viewer")] {
        assert_eq!(post_token(&server, token).json()["role"], role);
    }
    let script = block("sh").replace("localhost:9090", &server.admin.to_string());
    let mut shell = std::process::Command::new("sh");
    let output = shell
        .args(["-c", &script])
        .env("ADMIN_TOKEN", TOKEN)
        .output();
    let found: Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
    assert_eq!(found["decision"], "allow");
}
