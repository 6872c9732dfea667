//! How attempts end, and what becomes of those that do not.

use std::io::Write;
use std::time::{Duration, Instant};

use crate::common::{Client, Options, Reply, Server, signal};
use crate::scripted::Scripted;
use crate::{FORM, cookie, post, proxy, started};

const ROUTE: &str = r#"path = "/login"
method = "POST"
outcome = "status"
username = "form:email"
device_cookie = "device"
outcome_header = "X-Login"
success_cookie = "session"
"#;

fn try_to(server: &Server, ip: &str, body: &str) -> Reply {
    post(server, ip, "/login", &[FORM], body)
}

/// What the metrics say of the guard's outcomes.
pub(crate) fn reported(server: &Server, outcome: &str) -> u32 {
    reported_of(server, "login", outcome)
}

fn reported_of(server: &Server, flow: &str, outcome: &str) -> u32 {
    let text = server.admin_get("/metrics").text().to_owned();
    let name =
        format!("rate_limiter_guard_outcomes_total{{flow=\"{flow}\",outcome=\"{outcome}\"}} ");
    let count = text.lines().find_map(|line| line.strip_prefix(&name));
    count.map_or(0, |count| count.parse().unwrap())
}

#[test]
fn failures_are_reported_and_end_in_a_block_that_does_not_reach_the_application() {
    let app = Scripted::start();
    let server = proxy(ROUTE, &app.url);
    let wrong = "email=ann&answer=401";
    for _ in 0..2 {
        assert_eq!(try_to(&server, "203.0.113.1", wrong).status, 401);
    }
    let refused = try_to(&server, "203.0.113.1", wrong);
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("retry-after"), Some("15"));
    assert_eq!(refused.json()["error"], "rate_limit_exceeded");
    assert!(!refused.text().contains("ann"));
    assert_eq!(app.asked(), 2);
    assert_eq!(reported(&server, "failure"), 2);
}

#[test]
fn a_block_is_a_page_for_a_browser() {
    let app = Scripted::start();
    let server = proxy(ROUTE, &app.url);
    let accept = ("Accept", "text/html,application/xhtml+xml,*/*;q=0.8");
    let tried = || {
        post(
            &server,
            "203.0.113.1",
            "/login",
            &[FORM, accept],
            "email=ann&answer=401",
        )
    };
    tried();
    tried();
    let page = tried();
    assert_eq!(page.status, 429);
    assert_eq!(
        page.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    assert_eq!(page.header("cache-control"), Some("no-store"));
    assert!(
        page.text().contains("You can try again in 15 seconds"),
        "{}",
        page.text()
    );
    assert!(!page.text().contains("ann"));
}

#[test]
fn the_answer_to_a_failure_waits_and_nobody_else_does() {
    let app = Scripted::start();
    let server = proxy(ROUTE, &app.url);
    let took = |ip: &str, body: &str| {
        let start = Instant::now();
        try_to(&server, ip, body);
        start.elapsed().as_millis()
    };
    assert!(took("203.0.113.1", "email=ann&answer=401") >= 250);
    assert!(took("203.0.113.1", "email=ann&answer=401") >= 500);
    is_at_once(|n| try_to(&server, &format!("203.0.113.{n}"), &format!("email=bob{n}")).status);
    let quick = format!("{}\n[proxy]\napply_delay = false\n", crate::ONLY_THE_GUARD);
    let server = started(&format!("{quick}[[route]]\n{ROUTE}"), &app.url);
    let wrong = |n: u32| format!("email=ann{n}&answer=401");
    is_at_once(|n| try_to(&server, &format!("203.0.113.{n}"), &wrong(n)).status);
}

/// The shortest wait is in every answer that waits; what a busy machine adds is not, so that one
/// quick answer shows that none is meant to wait. Each attempt is of a new account and address.
fn is_at_once(attempt: impl Fn(u32) -> u16) {
    let quick = (2..254).find(|n| {
        let start = Instant::now();
        let status = attempt(*n);
        assert!([200, 401].contains(&status), "{status}");
        start.elapsed().as_millis() < 250
    });
    assert!(quick.is_some(), "every answer waits");
}

#[test]
fn the_word_of_the_application_counts_and_stays_here() {
    let app = Scripted::start();
    let server = proxy(ROUTE, &app.url);
    let told = try_to(&server, "203.0.113.1", "email=ann&answer=200&say=failure");
    assert_eq!((told.status, told.header("x-login")), (200, None));
    assert_eq!(reported(&server, "failure"), 1);
    try_to(&server, "203.0.113.1", "email=ann&answer=401&say=success");
    assert_eq!(reported(&server, "success"), 1);
}

/// Neither an application that fails nor one that hangs up gives guesses away.
#[test]
fn g_unknown_s11_guesses_that_the_application_fails_over_are_scored() {
    let app = Scripted::start();
    let server = proxy(ROUTE, &app.url);
    let (fails, hangs_up) = ("email=ann&answer=500", "email=ann&answer=0");
    for broken in [fails, hangs_up, fails, fails] {
        let status = try_to(&server, "203.0.113.1", broken).status;
        assert!([500, 502].contains(&status), "{status}");
    }
    let refused = try_to(&server, "203.0.113.2", "email=ann&answer=200");
    assert_eq!(refused.status, 429, "two of them count");
    assert_eq!(app.asked(), 4);
    assert_eq!(reported(&server, "unknown"), 4);
}

#[test]
fn who_hangs_up_before_the_answer_has_guessed_all_the_same() {
    let app = Scripted::start();
    let server = proxy(ROUTE, &app.url);
    let body = "email=ann&answer=401&wait=300";
    for _ in 0..2 {
        let mut client = Client::connect(server.proxy.unwrap());
        let head = format!(
            "POST /login HTTP/1.1\r\nHost: t\r\nX-Forwarded-For: 203.0.113.1\r\nContent-Type: {}\r\nContent-Length: {}\r\n\r\n{body}",
            FORM.1,
            body.len()
        );
        let asked = app.asked();
        client.stream.get_mut().write_all(head.as_bytes()).unwrap();
        wait_until(|| app.asked() > asked);
        // With a reset: who merely closes may still be reading, and is waited for.
        let socket = socket2::SockRef::from(client.stream.get_ref());
        socket.set_linger(Some(Duration::ZERO)).unwrap();
        drop(client);
    }
    wait_until(|| reported(&server, "failure") == 2);
}

/// Sends a login on a connection of HTTP/2, whose end is seen at once; it ends with the runtime.
fn begin(server: &Server, body: String) -> tokio::runtime::Runtime {
    let address = server.proxy.unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.spawn(async move {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let io = hyper_util::rt::TokioIo::new(stream);
        let executor = hyper_util::rt::TokioExecutor::new();
        let made = hyper::client::conn::http2::handshake(executor, io).await;
        let (mut sender, connection) = made.unwrap();
        tokio::spawn(connection);
        let request = http::Request::post(format!("http://{address}/login"))
            .header(FORM.0, FORM.1)
            .body(http_body_util::Full::new(bytes::Bytes::from(body)));
        sender.send_request(request.unwrap()).await.map(|_| ())
    });
    runtime
}

/// Its end is reported before the process ends, whoever waits for it.
#[test]
fn a_login_whose_client_has_gone_is_waited_for_at_the_end() {
    const WAIT: Duration = Duration::from_secs(3);
    let app = Scripted::start();
    let server = proxy(ROUTE, &app.url);
    let body = format!("email=ann&answer=401&wait={}", WAIT.as_millis());
    let client = begin(&server, body);
    wait_until(|| app.asked() > 0);
    let asked = Instant::now();
    client.shutdown_background();
    server.terminate();
    let (code, _) = server.wait();
    assert_eq!(code, Some(0));
    assert!(asked.elapsed() >= WAIT - Duration::from_millis(100));
}

#[test]
fn a_code_is_guarded_in_its_own_flow_and_a_header_may_name_who_tries() {
    let app = Scripted::start();
    let route = r#"path = "/code"
method = "POST"
outcome = "status"
flow = "otp"
username = "header:X-User"
"#;
    let server = proxy(&format!("{route}\n[[route]]\n{ROUTE}"), &app.url);
    let tried = |user: &str, body: &str| {
        let named = [FORM, ("X-User", user)];
        post(&server, "203.0.113.1", "/code", &named, body).status
    };
    let wrong = "code=1&answer=401";
    assert_eq!(tried("ann", wrong), 401);
    assert_eq!(tried("ANN", wrong), 429, "a code has one guess less");
    assert_eq!(
        post(&server, "203.0.113.1", "/code", &[FORM], wrong).status,
        400
    );
    assert_eq!(app.asked(), 1);
    assert_eq!(reported_of(&server, "otp", "failure"), 1);
    assert_eq!(reported(&server, "failure"), 0);
    let login = try_to(&server, "203.0.113.2", "email=ann&answer=200");
    assert_eq!(login.status, 200, "the flows do not count for each other");
}

fn wait_until(mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + crate::common::PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "it does not come about");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_success_makes_the_device_known_and_its_cookie_opens_the_owners_lane() {
    let app = Scripted::start();
    let server = proxy(ROUTE, &app.url);
    let welcomed = try_to(&server, "203.0.113.1", "email=ann&answer=200");
    assert_eq!(
        cookie(&welcomed, "session").as_deref(),
        Some("session=1"),
        "the application's own"
    );
    let device = cookie(&welcomed, "device").unwrap();
    let wrong = "email=ann&answer=401";
    while try_to(&server, "203.0.113.9", wrong).status != 429 {}
    assert_eq!(
        try_to(&server, "203.0.113.2", "email=ann").status,
        429,
        "a new device"
    );
    let own = [FORM, ("Cookie", &*device)];
    let owner = post(
        &server,
        "203.0.113.2",
        "/login",
        &own,
        "email=ann&answer=200",
    );
    assert_eq!(owner.status, 200, "{}", owner.text());
    let mut forged = device.clone();
    forged.replace_range(
        forged.len() - 1..,
        if device.ends_with('0') { "1" } else { "0" },
    );
    let own = [FORM, ("Cookie", &*forged)];
    assert_eq!(
        post(&server, "203.0.113.2", "/login", &own, "email=ann").status,
        429
    );
}

/// G-ROT: a cookie sealed under the secret before is still one.
#[test]
fn g_rot_a_device_stays_known_while_the_secret_is_rotated() {
    let app = Scripted::start();
    let route = format!("{}\n[[route]]\n{ROUTE}", crate::ONLY_THE_GUARD);
    let with = |home, secrets: &str, old: &str| {
        let config = format!("{route}\n[secrets]\n{secrets}");
        Server::at(
            home,
            &Options {
                config: Some(&config),
                args: &["--upstream", &app.url, "--proxy", "127.0.0.1:0"],
                env: &[("NEW", &"n".repeat(32)), ("OLD", old)],
            },
        )
    };
    let home = tempfile::tempdir().unwrap();
    let old = "o".repeat(32);
    let server = with(home, "key = \"env:OLD\"", &old);
    let device = cookie(&try_to(&server, "203.0.113.1", "email=ann"), "device").unwrap();
    signal(server.pid(), "TERM");
    let (_, home) = server.wait();
    let server = with(home, "key = \"env:NEW\"\nprevious_key = \"env:OLD\"", &old);
    while try_to(&server, "203.0.113.9", "email=ann&answer=401").status != 429 {}
    let own = [FORM, ("Cookie", &*device)];
    let owner = post(&server, "203.0.113.2", "/login", &own, "email=ann");
    assert_eq!(owner.status, 200, "{}", owner.text());
    let again = cookie(&owner, "device").unwrap();
    assert_ne!(device, again, "sealed under the secret of now");
    assert_eq!(device[..40], again[..40], "the same device");
}

#[test]
fn a_changed_route_takes_effect_without_a_restart() {
    let app = Scripted::start();
    let server = proxy("path = \"/elsewhere\"", &app.url);
    let file = server.home.path().join("palisade.toml");
    let tried = |_: ()| try_to(&server, "203.0.113.1", "email=ann&answer=401").status;
    assert!((0..4).all(|_| tried(()) == 401), "no login yet");
    std::fs::write(
        file,
        format!("{}\n[[route]]\n{ROUTE}", crate::ONLY_THE_GUARD),
    )
    .unwrap();
    signal(server.pid(), "HUP");
    wait_until(|| tried(()) == 429);
}
