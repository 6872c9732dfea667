//! Challenges in front of an application, by clients without a browser (C-PAGE).

use palisade_core::challenge::{Puzzle, Solution};
use serde_json::{Value, json};

use super::scripted::{Scripted, site};
use super::*;

const POLICY: &str = r#"
[policy]
defaults = false

[challenge]
difficulty = 1000
pass_uses = 2

[[limit]]
name = "everything"
by = []
rate = "100_000/s"
algorithm = "token-bucket"

[[limit]]
name = "reports"
by = ["ip"]
class = "reports"
rate = "2/h"
on_exceed = "challenge"
challenge_extra = 3

[[route]]
path = "/*"
class = "any"

[[route]]
path = "/reports/*"
class = "reports"

[[route]]
path = "/login"
method = "POST"
class = "any"
outcome = "status"
username = "form:email"
success_status = [303]
success_cookie = "session"
"#;

const HTML: (&str, &str) = ("Accept", "text/html,*/*;q=0.8");
const JSON: (&str, &str) = ("Content-Type", "application/json");
const IP: &str = "203.0.113.7";
const ANSWER: &str = "/.palisade/challenge";

fn start(app: &Scripted) -> Server {
    started(POLICY, &app.url)
}

fn get(server: &Server, ip: &str, path: &str, headers: &[(&str, &str)]) -> Reply {
    let mut all = vec![BROWSER, ("X-Forwarded-For", ip)];
    all.extend_from_slice(headers);
    Client::connect(server.proxy.unwrap()).send("GET", path, &all, b"")
}

/// The offer in the JSON of the third request for reports.
fn offer(server: &Server, ip: &str) -> Value {
    for _ in 0..2 {
        assert_eq!(get(server, ip, "/reports/a", &[]).status, 200);
    }
    let refused = get(server, ip, "/reports/a", &[]);
    assert_eq!(refused.status, 429);
    assert_eq!(refused.json()["error"], "challenge_required");
    refused.json()["challenge"].clone()
}

fn solve(offer: &Value) -> Solution {
    let puzzle: Puzzle = serde_json::from_value(offer["parameters"].clone()).unwrap();
    puzzle.solve().unwrap()
}

fn encoded(solution: &Solution) -> String {
    use base64::Engine;
    let json = serde_json::to_vec(solution).unwrap();
    base64::engine::general_purpose::STANDARD.encode(json)
}

/// Hands a solution in at the address of the offer.
fn hand_in(server: &Server, ip: &str, offer: &Value, solution: &Solution) -> Reply {
    let body = json!({"solution": encoded(solution)}).to_string();
    post(server, ip, offer["url"].as_str().unwrap(), &[JSON], &body)
}

fn pass_of(reply: &Reply, flow: &str) -> String {
    assert_eq!(reply.json()["passed"], true, "{}", reply.text());
    cookie(reply, &format!("palisade-{flow}")).unwrap()
}

#[test]
fn c_page_a_client_without_a_browser_is_told_what_to_solve_and_gets_through() {
    let app = Scripted::answering(site);
    let server = start(&app);
    let offer = offer(&server, IP);
    assert_eq!(offer["kind"], "proof-of-work");
    let passed = hand_in(&server, IP, &offer, &solve(&offer));
    assert_eq!(passed.json()["path"], "/reports/a");
    assert_eq!(passed.header("cache-control"), Some("no-store"));
    let pass = pass_of(&passed, "request");
    for _ in 0..2 {
        let reply = get(
            &server,
            IP,
            "/reports/a",
            &[("Cookie", &format!("sid=1; {pass}"))],
        );
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert!(
            reply.text().contains("<p>cookie: sid=1</p>"),
            "{}",
            reply.text()
        );
    }
    let used = get(&server, IP, "/reports/a", &[("Cookie", &pass)]);
    assert_eq!(used.status, 429, "a pass has two uses here");
}

#[test]
fn c_page_a_solution_is_good_once_and_for_its_caller_only() {
    let app = Scripted::answering(site);
    let server = start(&app);
    let offer = offer(&server, IP);
    let solution = solve(&offer);
    let reason = |reply: &Reply| reply.json()["reason"].as_str().map(str::to_owned);
    let mut wrong = solution.clone();
    wrong.number += 1;
    let refused = hand_in(&server, IP, &offer, &wrong);
    assert_eq!(reason(&refused).as_deref(), Some("wrong"));
    assert!(refused.header("set-cookie").is_none());
    assert_eq!(
        refused.json()["challenge"]["kind"],
        "proof-of-work",
        "another one"
    );
    let elsewhere = hand_in(&server, "198.51.100.1", &offer, &solution);
    assert_eq!(reason(&elsewhere).as_deref(), Some("foreign"));
    let pass = pass_of(&hand_in(&server, IP, &offer, &solution), "request");
    let again = hand_in(&server, IP, &offer, &solution);
    assert_eq!(reason(&again).as_deref(), Some("used"));

    // The pass of one network, or of one flow, is none elsewhere.
    let _ = self::offer(&server, "198.51.100.2");
    let cookie = ("Cookie", pass.as_str());
    assert_eq!(
        get(&server, "198.51.100.2", "/reports/a", &[cookie]).status,
        429
    );
    let renamed = pass.replace("palisade-request", "palisade-login");
    block(&server, "ann");
    let body = "email=ann&password=right";
    let reply = post(&server, IP, "/login", &[FORM, ("Cookie", &renamed)], body);
    assert_eq!(reply.status, 429);
}

/// Fails until the account's logins are answered with a challenge.
fn block(server: &Server, account: &str) -> Reply {
    for _ in 0..10 {
        let body = format!("email={account}&password=wrong");
        let reply = post(server, IP, "/login", &[FORM], &body);
        if reply.status == 429 {
            return reply;
        }
    }
    panic!("never refused");
}

#[test]
fn c_page_a_browser_is_shown_the_page_and_nobody_is_led_elsewhere() {
    let app = Scripted::answering(site);
    let server = start(&app);
    offer(&server, IP);
    for path in ["/reports/b?x=1", "/reports//evil.example"] {
        let page = get(&server, IP, path, &[HTML, ("Accept-Language", "de")]);
        if page.status == 400 {
            continue;
        }
        assert_eq!(page.status, 429);
        assert_eq!(page.header("content-language"), Some("de"));
        let policy = page.header("content-security-policy").unwrap();
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self' ;"),
            "{policy}"
        );
        assert_eq!(page.header("cache-control"), Some("no-store"));
        assert_eq!(page.header("referrer-policy"), Some("no-referrer"));
        assert!(page.header("x-robots-tag").unwrap().contains("noindex"));
        assert!(page.text().contains("<noscript>"));
        for hole in ["{title}", "{reason}", "{ticket}", "{words}", "{wait}"] {
            assert!(!page.text().contains(hole), "{hole}");
        }
    }
    for (name, kind) in [
        ("js", "text/javascript"),
        ("css", "text/css"),
        ("svg", "image/svg"),
    ] {
        let file = get(&server, IP, &format!("{ANSWER}.{name}"), &[]);
        assert_eq!(file.status, 200);
        assert!(file.header("content-type").unwrap().starts_with(kind));
    }
    // Another page under that name is the application's.
    assert!(
        get(&server, IP, "/.palisade/other", &[])
            .text()
            .contains("application")
    );
}

#[test]
fn c_page_what_is_no_answer_of_the_page_is_refused() {
    let app = Scripted::answering(site);
    let server = start(&app);
    let offer = offer(&server, IP);
    let url = offer["url"].as_str().unwrap();
    let ask = |headers: &[(&str, &str)], url: &str, body: &str| {
        post(&server, IP, url, headers, body).status
    };
    assert_eq!(ask(&[JSON], url, "{}"), 200);
    assert_eq!(ask(&[FORM], url, "solution=x"), 415);
    assert_eq!(
        ask(&[JSON, ("Sec-Fetch-Site", "cross-site")], url, "{}"),
        403
    );
    assert_eq!(ask(&[JSON], ANSWER, "{}"), 400);
    assert_eq!(ask(&[JSON], &format!("{url}A"), "{}"), 400);
    assert_eq!(ask(&[JSON], url, "[1]"), 400);
    assert_eq!(ask(&[JSON], url, &"x".repeat(20_000)), 413);
    let shown = get(&server, IP, url, &[HTML]);
    assert_eq!(
        (shown.status, shown.header("cache-control")),
        (429, Some("no-store"))
    );
    assert_eq!(get(&server, IP, ANSWER, &[HTML]).status, 400);
}

#[test]
fn a_captcha_required_behind_the_proxy_lets_the_right_password_through_after_a_challenge() {
    let app = Scripted::answering(site);
    let lockout = "[guard.login]\nenabled = false\n[lockout]\nhard_failures = 3\nlock = \"1s\"\n\
                   window_failures = 16\ncaptcha_lockouts = 1\n";
    let server = started(&format!("{POLICY}{lockout}"), &app.url);
    let attempt = |password: &str, cookie: &str| {
        let body = format!("email=ann&password={password}");
        post(&server, IP, "/login", &[FORM, ("Cookie", cookie)], &body)
    };
    let required = loop {
        let reply = attempt("wrong", "");
        if reply.status == 429 && reply.json()["error"] == "challenge_required" {
            break reply;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    };
    assert_eq!(
        attempt("right", "").status,
        429,
        "with the right password too"
    );
    let bought = |refused: &Reply| {
        let offer = &refused.json()["challenge"];
        pass_of(&hand_in(&server, IP, offer, &solve(offer)), "login")
    };
    // A pass buys one attempt, and a wrong password does not clear what is required.
    let pass = bought(&required);
    assert_eq!(attempt("wrong", &pass).status, 401);
    let again = attempt("right", &pass);
    assert_eq!(again.status, 429);
    let right = attempt("right", &bought(&again));
    assert_eq!(right.status, 303);
    assert_eq!(attempt("wrong", "").status, 401, "a success clears it");
}

#[test]
fn c_page_forward_auth_shows_the_page_and_takes_the_solution() {
    let app = Scripted::answering(site);
    let server = start(&app);
    let client = [
        ("X-Forwarded-For", IP),
        ("X-Forwarded-Proto", "https"),
        BROWSER,
    ];
    let ask = |more: &[(&str, &str)]| {
        let mut all = client.to_vec();
        all.extend([
            ("X-Forwarded-Method", "GET"),
            ("X-Forwarded-Uri", "/reports/a?b=c"),
        ]);
        all.extend_from_slice(more);
        server.connect().send("GET", "/forward-auth", &all, b"")
    };
    for _ in 0..2 {
        assert_eq!(ask(&[]).status, 200);
    }
    let page = ask(&[HTML]);
    assert_eq!(page.status, 429);
    assert!(
        page.header("content-type")
            .unwrap()
            .starts_with("text/html")
    );
    // nginx drops the page, and fetches it from here.
    let address = page.header("x-palisade-challenge").unwrap().to_owned();
    let fetched = server.connect().send("GET", &address, &client, b"");
    assert_eq!(fetched.status, 429);
    assert!(fetched.text().contains("data-ticket"));

    let offer = ask(&[]).json()["challenge"].clone();
    let body = json!({"solution": encoded(&solve(&offer))}).to_string();
    let mut headers = client.to_vec();
    headers.push(JSON);
    let url = offer["url"].as_str().unwrap();
    let passed = server
        .connect()
        .send("POST", url, &headers, body.as_bytes());
    assert_eq!(passed.json()["path"], "/reports/a?b=c");
    let pass = cookie(&passed, "__Host-palisade-request").unwrap();
    assert_eq!(ask(&[("Cookie", &pass)]).status, 200);
    assert_eq!(ask(&[("Cookie", &pass.replace("__Host-", ""))]).status, 429);
}

#[test]
fn c_page_without_challenges_in_the_policy_the_paths_are_the_applications() {
    let app = Scripted::answering(site);
    let policy = POLICY
        .replace("[challenge]\ndifficulty = 1000\npass_uses = 2\n", "")
        .replace("on_exceed = \"challenge\"\nchallenge_extra = 3\n", "")
        + "[lockout]\nchallenge = \"advise\"\n";
    let server = started(&policy, &app.url);
    let sent = [("Cookie", "palisade-request=x; sid=1")];
    let page = get(&server, IP, ANSWER, &sent);
    assert!(
        page.text().contains("palisade-request=x; sid=1"),
        "{}",
        page.text()
    );
    assert_eq!(server.connect().send("GET", ANSWER, &[], b"").status, 404);
}
