//! `palisade doctor --login`: how the application's answers are read.

use serde_json::Value;

use crate::common::{Options, Server, palisade};
use crate::scripted::{Asked, Scripted};
use crate::{FORM, ONLY_THE_GUARD, post};

const TOKEN: &str = "an-operator-token-of-decent-length";

/// A form's login, told by the cookie of its session, or by the status alone.
fn config(told_by: &str) -> String {
    format!(
        "{ONLY_THE_GUARD}\n[admin]\ntoken = \"env:ADMIN_TOKEN\"\n[[route]]\npath = \"/login\"\n\
         method = \"POST\"\noutcome = \"status\"\nusername = \"form:email\"\n{told_by}\n"
    )
}

/// What the doctor says of the login.
fn examined(server: &Server, config: &str) -> (String, String) {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("policy.toml");
    std::fs::write(&file, config).unwrap();
    let output = palisade()
        .args(["doctor", "--json", "--login", "/login", "--config"])
        .arg(&file)
        .args(["--proxy", &server.proxy.unwrap().to_string()])
        .args(["--admin", &server.admin.to_string()])
        .env("PALISADE_ADMIN_TOKEN", TOKEN)
        .env("ADMIN_TOKEN", TOKEN)
        .output()
        .unwrap();
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut findings = said["findings"].as_array().unwrap().iter();
    let login = findings.find(|one| one["about"] == "login").unwrap();
    let text = |name: &str| login[name].as_str().unwrap().to_owned();
    (text("weight"), text("message"))
}

fn before(app: &Scripted, config: &str) -> Server {
    Server::with(&Options {
        config: Some(config),
        args: &["--upstream", &app.url, "--proxy", "127.0.0.1:0"],
        env: &[("ADMIN_TOKEN", TOKEN)],
    })
}

fn answering(how: fn(&Asked) -> Option<String>, told_by: &str) -> (String, String) {
    let app = Scripted::answering(how);
    let config = config(told_by);
    examined(&before(&app, &config), &config)
}

#[test]
fn n1_doctor_says_how_an_attempt_that_cannot_succeed_was_read() {
    let cookie = "success_cookie = \"session\"";
    let (weight, message) = answering(
        |_| Some("HTTP/1.1 401 X\r\nContent-Length: 0\r\n\r\n".into()),
        cookie,
    );
    assert_eq!(weight, "ok", "{message}");
    assert!(message.contains("401 and read as a failure"), "{message}");
    let (weight, message) = answering(
        |_| {
            Some("HTTP/1.1 302 X\r\nLocation: /\r\nSet-Cookie: session=1\r\nContent-Length: 0\r\n\r\n".into())
        },
        cookie,
    );
    assert_eq!(weight, "error", "{message}");
    assert!(message.contains("read as a success"), "{message}");
    let (weight, message) = answering(
        |_| Some("HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n".into()),
        cookie,
    );
    assert_eq!(weight, "warning", "{message}");
    assert!(message.contains("neither"), "{message}");
}

#[test]
fn n1_logins_that_all_succeed_are_shown() {
    let app = Scripted::start();
    let server = before(&app, &config("success_cookie = \"session\""));
    let shown = || {
        let text = server.admin_get("/metrics").text().to_owned();
        text.contains("rate_limiter_guard_only_successes{flow=\"login\"} 1\n")
    };
    for n in 0..50 {
        assert!(!shown(), "{n}");
        let body = format!("email=u{n}&answer=302");
        let ip = format!("203.0.113.{n}");
        assert_eq!(post(&server, &ip, "/login", &[FORM], &body).status, 302);
    }
    assert!(shown());
    post(
        &server,
        "203.0.113.99",
        "/login",
        &[FORM],
        "email=u&answer=401",
    );
    assert!(!shown());
}
