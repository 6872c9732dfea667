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

/// As Flask-WTF and Django have it: without the token of the page and its cookie no password is
/// looked at, and a wrong one is answered with a new session.
fn with_token(asked: &Asked) -> Option<String> {
    const PAGE: &str = "<form method=post><input type=hidden name=csrf value=\"a+b&amp;c\">\
        <input name=email><input name=pass type=password></form>";
    if asked.head.starts_with("get ") {
        let length = PAGE.len();
        return Some(format!(
            "HTTP/1.1 200 OK\r\nSet-Cookie: session=old; Path=/\r\nContent-Length: {length}\r\n\r\n{PAGE}"
        ));
    }
    let is_token = asked.field("csrf").as_deref() == Some("a%2Bb%26c");
    let is_own = is_token && asked.head.contains("\ncookie: session=old");
    Some(match is_own && asked.field("pass").is_some() {
        true => "HTTP/1.1 302 X\r\nLocation: /login\r\nSet-Cookie: session=new\r\nContent-Length: 0\r\n\r\n".into(),
        false => "HTTP/1.1 400 X\r\nContent-Length: 22\r\n\r\nThe token is missing.\n".into(),
    })
}

#[test]
fn n1_doctor_fills_in_the_form_of_the_login_page() {
    let (weight, message) = answering(with_token, "success_cookie = \"session\"");
    assert_eq!(weight, "error", "{message}");
    assert!(message.contains("302 and read as a success"), "{message}");
}

#[test]
fn n1_doctor_doubts_a_failure_that_no_wrong_password_need_have_caused() {
    let told_by = "success_cookie = \"session\"";
    let forged: fn(&Asked) -> Option<String> =
        |_| Some("HTTP/1.1 403 X\r\nContent-Length: 24\r\n\r\nCSRF verification failed".into());
    let moved: fn(&Asked) -> Option<String> =
        |_| Some("HTTP/1.1 301 X\r\nLocation: /login/\r\nContent-Length: 0\r\n\r\n".into());
    let missing: fn(&Asked) -> Option<String> =
        |_| Some("HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n".into());
    let unprocessable: fn(&Asked) -> Option<String> =
        |_| Some("HTTP/1.1 422 X\r\nContent-Length: 0\r\n\r\n".into());
    for (how, expected, why) in [
        (forged, "warning", "wants a CSRF token"),
        (moved, "warning", "at another address"),
        (
            missing,
            "warning",
            "is not what a wrong password is answered with",
        ),
        (
            unprocessable,
            "note",
            "may not be what a wrong password is answered with",
        ),
    ] {
        let (weight, message) = answering(how, told_by);
        assert_eq!(weight, expected, "{message}");
        assert!(
            message.contains("read as a failure") && message.contains(why),
            "{message}"
        );
    }
}

#[test]
fn n1_doctor_sends_nothing_to_a_login_whose_document_it_does_not_know() {
    let app = Scripted::start();
    let config = config("").replace("form:email", "json:variables.email");
    let (weight, message) = examined(&before(&app, &config), &config);
    assert_eq!((&*weight, app.asked()), ("note", 0), "{message}");
    assert!(message.contains("GraphQL"), "{message}");
}

#[test]
fn n1_doctor_asks_for_the_host_that_a_route_is_about() {
    let app = Scripted::answering(|asked| {
        let status = match asked.head.contains("\nhost: shop.example\n") {
            true => 401,
            false => 404,
        };
        Some(format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n"))
    });
    let config = config("success_cookie = \"session\"\nhost = \"shop.example\"");
    let (weight, message) = examined(&before(&app, &config), &config);
    assert_eq!(weight, "ok", "{message}");
    assert!(message.contains("401 and read as a failure"), "{message}");
}

#[test]
fn n1_doctor_says_that_a_proxy_which_only_asks_shows_no_outcome() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start();
    let said = |config: &str, more: &[&str]| {
        let file = home.path().join("policy.toml");
        std::fs::write(&file, config).unwrap();
        let output = palisade()
            .args(["doctor", "--login", "/login", "--config"])
            .arg(&file)
            .args(["--admin", &server.admin.to_string()])
            .args(more)
            .env("ADMIN_TOKEN", TOKEN)
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let without_route = said("", &[]);
    assert!(
        without_route.contains("report logins from the application"),
        "{without_route}"
    );
    let config = config("success_cookie = \"session\"");
    let without_proxy = said(&config, &[]);
    assert!(
        without_proxy.contains("nobody else sees how a login ends"),
        "{without_proxy}"
    );
    let nobody = said(&config, &["--proxy", "127.0.0.1:1"]);
    assert!(nobody.contains("pass its address with --proxy"), "{nobody}");
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
