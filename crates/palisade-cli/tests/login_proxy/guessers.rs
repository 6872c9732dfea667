//! Real guessers against real applications: brute force, spraying and guesses at once are
//! stopped, and the owner logs in.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use crate::apps::App;
use crate::common::{Client, Server};
use crate::{FORM, cookie, post, proxy};

/// The page's route for an application: the block that has this line.
fn shown(line: &str) -> String {
    let root = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/proxy.md")).unwrap();
    let blocks = page.split("```toml\n").skip(1);
    let mut texts = blocks.map(|after| after.split_once("```").unwrap().0);
    let found = texts.find(|text| text.contains(line));
    found
        .expect("a route of the page")
        .replace("[[route]]\n", "")
}

fn flask() -> String {
    shown("path = \"/login\"")
}

fn express() -> String {
    shown("path = \"/api/login\"")
}

fn django() -> String {
    shown("path = \"/login/\"")
}

const OWNER: &str = "198.51.100.7";

/// What hydra finds with sixteen guesses at once. The right password comes after forty wrong ones,
/// and sixteen follow it: on a busy machine hydra ends before its last workers do.
fn hydra(home: &Path, at: SocketAddr) -> String {
    let mut words: String = (0..40).map(|n| format!("wrong{n}\n")).collect();
    words.push_str("right\n");
    words.extend((40..56).map(|n| format!("wrong{n}\n")));
    let list = home.join("words");
    std::fs::write(&list, words).unwrap();
    let form = "/login:email=^USER^&password=^PASS^:H=X-Forwarded-For\\: 203.0.113.66:F=error";
    let output = Command::new("hydra")
        .current_dir(home)
        .args(["-I", "-t", "16", "-l", "ann@example.com", "-P"])
        .arg(&list)
        .args([
            "-s",
            &at.port().to_string(),
            "127.0.0.1",
            "http-post-form",
            form,
        ])
        .output()
        .expect("hydra, which `scripts/test` installs");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn brute_force_by_hydra_finds_nothing_behind_the_proxy_and_the_owner_logs_in() {
    assert!(crate::ONLY_THE_GUARD.contains(&shown("owner_lane")));
    let (open, app) = (App::flask(), App::flask());
    let server = proxy(&flask(), &app.url());
    let login = "email=ann%40example.com&password=right";
    let first = post(&server, OWNER, "/login", &[FORM], login);
    assert_eq!(
        (first.status, first.header("location")),
        (302, Some("/home"))
    );
    let device = cookie(&first, "device").unwrap();
    let found = hydra(server.home.path(), open.address);
    assert!(
        found.contains("password: right"),
        "without the proxy it does: {found}"
    );
    let before = app.verified();
    let found = hydra(server.home.path(), server.proxy.unwrap());
    assert!(!found.contains("password: right"), "{found}");
    let guesses = app.verified() - before;
    assert!(
        (1..=3).contains(&guesses),
        "{guesses} guesses were verified"
    );
    let stranger = post(&server, OWNER, "/login", &[FORM], login);
    assert_eq!(
        stranger.status, 429,
        "the account is blocked for new devices"
    );
    let owner = post(
        &server,
        OWNER,
        "/login",
        &[FORM, ("Cookie", &device)],
        login,
    );
    assert_eq!(owner.header("location"), Some("/home"), "{}", owner.text());
}

#[test]
fn spraying_one_password_over_many_accounts_is_stopped() {
    let app = App::flask();
    let server = proxy(&flask(), &app.url());
    let tried = |n: u32| {
        let body = format!("email=user{n}%40example.com&password=summer");
        post(&server, "203.0.113.66", "/login", &[FORM], &body).status
    };
    let statuses: Vec<u16> = (0..20).map(tried).collect();
    assert_eq!(statuses[..4], [302; 4]);
    assert!(
        statuses[5..].iter().all(|status| *status == 429),
        "{statuses:?}"
    );
    assert!(app.verified() <= 5);
    let login = "email=ann%40example.com&password=right";
    assert_eq!(
        post(&server, OWNER, "/login", &[FORM], login).header("location"),
        Some("/home")
    );
}

#[test]
fn g_pending_guesses_at_once_are_no_more_than_one_after_another() {
    let app = App::express();
    let server = proxy(&express(), &app.url());
    let json = [("Content-Type", "application/json")];
    let right = r#"{"user":{"name":"ann"},"password":"right"}"#;
    let first = post(&server, OWNER, "/api/login", &json, right);
    let device = cookie(&first, "device").unwrap();
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let guess = |n: u32| {
            let body = format!(r#"{{"user":{{"name":"ann"}},"password":"wrong{n}"}}"#);
            post(&server, "203.0.113.66", "/api/login", &json, &body).status
        };
        let guesses: Vec<_> = (0..16).map(|n| scope.spawn(move || guess(n))).collect();
        guesses
            .into_iter()
            .map(|guess| guess.join().unwrap())
            .collect()
    });
    let verified = statuses.iter().filter(|status| **status == 401).count();
    assert_eq!(
        verified, 2,
        "as many as a new device gets before a block: {statuses:?}"
    );
    assert_eq!(app.verified(), 3);
    let stranger = post(&server, OWNER, "/api/login", &json, right);
    assert_eq!(stranger.status, 429, "new devices wait");
    let own = [json[0], ("Cookie", &*device)];
    let owner = post(&server, OWNER, "/api/login", &own, right);
    assert_eq!(owner.status, 200, "{}", owner.text());
}

/// The form's token and cookie, as a browser would send them back.
fn django_form(server: &Server) -> (String, String) {
    let mut client = Client::connect(server.proxy.unwrap());
    let form = client.send("GET", "/login/", &[("X-Forwarded-For", OWNER)], b"");
    let jar = cookie(&form, "csrftoken").unwrap();
    let after = form
        .text()
        .split_once("csrfmiddlewaretoken\" value=\"")
        .unwrap()
        .1;
    (jar, after.split_once('"').unwrap().0.to_owned())
}

#[test]
fn djangos_own_login_is_guarded_with_its_csrf_token_in_place() {
    let app = App::django();
    let server = proxy(&django(), &app.url());
    let (jar, token) = django_form(&server);
    let tried = |ip: &str, password: &str, jar: &str| {
        let body = format!("csrfmiddlewaretoken={token}&username=ann&password={password}");
        post(&server, ip, "/login/", &[FORM, ("Cookie", jar)], &body)
    };
    let first = tried(OWNER, "right", &jar);
    assert_eq!(
        (first.status, first.header("location")),
        (302, Some("/home")),
        "{}",
        first.text()
    );
    let device = cookie(&first, "device").unwrap();
    let statuses = [0; 6].map(|_| tried("203.0.113.66", "wrong", &jar).status);
    assert_eq!(statuses, [200, 200, 429, 429, 429, 429]);
    assert_eq!(app.verified(), 2);
    let own = format!("{jar}; {device}");
    assert_eq!(
        tried(OWNER, "right", &own).header("location"),
        Some("/home")
    );
}

/// curl's own multipart, read by Flask's own reader.
#[test]
fn multipart_logins_of_a_real_client_reach_a_real_application_and_are_counted() {
    let app = App::flask();
    let server = proxy(&flask(), &app.url());
    let login = |password: &str| {
        let output = Command::new("curl")
            .args([
                "-sS",
                "-o",
                "/dev/null",
                "-w",
                "%{http_code} %{redirect_url}",
            ])
            .args(["-H", "X-Forwarded-For: 203.0.113.9"])
            .args(["-F", "email=ann@example.com", "-F"])
            .arg(format!("password={password}"))
            .arg(format!("http://{}/login", server.proxy.unwrap()))
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let right = login("right");
    assert!(
        right.starts_with("302 ") && right.ends_with("/home"),
        "{right}"
    );
    for _ in 0..2 {
        let wrong = login("wrong");
        assert!(wrong.contains("/login?error"), "{wrong}");
    }
    assert_eq!(login("right"), "429 ");
}
