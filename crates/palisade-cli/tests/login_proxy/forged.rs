//! Attempts that are to look like somebody else's, or like a success: none of them counts.

use crate::common::{Client, Reply, Server, palisade};
use crate::ends::reported;
use crate::scripted::{Scripted, with_sessions};
use crate::{BROWSER, FORM, cookie, post, proxy};

/// As many redirecting applications have it, without the cookie of their session.
const ROUTE: &str = r#"path = "/login"
method = "POST"
outcome = "status"
username = "form:email"
success_location = "/home"
failure_location = "/login?error*"
device_cookie = "device"
"#;

const MALLORY: &str = "203.0.113.66";
const OWNER: &str = "198.51.100.7";

fn login(server: &Server, ip: &str, cookies: &str, name: &str, password: &str) -> Reply {
    let body = format!("email={name}&password={password}");
    post(server, ip, "/login", &[FORM, ("Cookie", cookies)], &body)
}

/// Who is logged in is sent on without a look at the password: that is no success of the name
/// that was posted, and no device becomes known by it.
#[test]
fn who_is_logged_in_makes_no_device_known_on_another_account() {
    for more in ["", "success_cookie = \"session\"\n"] {
        let app = Scripted::answering(with_sessions);
        let server = proxy(&format!("{ROUTE}{more}"), &app.url);
        let owner = login(&server, OWNER, "", "ann", "right-ann");
        let own_device = cookie(&owner, "device").unwrap();
        let herself = login(&server, MALLORY, "", "mallory", "right-mallory");
        let device = cookie(&herself, "device").unwrap();
        let jar = format!("{}; {device}", cookie(&herself, "session").unwrap());
        let forged = login(&server, MALLORY, &jar, "ann", "guess");
        assert_eq!(forged.header("location"), Some("/home"), "as it asked for");
        assert_eq!(cookie(&forged, "device"), None);
        assert_eq!(reported(&server, "success"), 2, "{more}");
        while login(&server, "203.0.113.9", "", "ann", "guess").status != 429 {}
        let guess = login(&server, "203.0.113.67", &device, "ann", "guess");
        assert_eq!(guess.status, 429, "a stranger to this account: {more}");
        let owner = login(&server, OWNER, &own_device, "ann", "right-ann");
        assert_eq!(owner.header("location"), Some("/home"), "{}", owner.text());
    }
}

/// PHP without a `php.ini` takes a cookie for the field of its name.
#[test]
fn s2_a_cookie_that_says_another_name_does_not_reach_the_application() {
    let app = Scripted::answering(|asked| {
        let status = match asked.head.contains("\ncookie: sid=1; theme=dark\n") {
            true => 401,
            false => 418,
        };
        Some(format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n"))
    });
    let server = proxy(ROUTE, &app.url);
    for (name, jar) in [
        ("bob", "sid=1; email=ann; theme=dark"),
        ("eve", "email=ann; sid=1; e%6Dail=ann; theme=dark"),
    ] {
        assert_eq!(
            login(&server, MALLORY, jar, name, "guess").status,
            401,
            "{jar}"
        );
    }
    let same = login(&server, MALLORY, "email=carol", "carol", "guess");
    assert_eq!(same.status, 418, "it is passed on");
}

/// A visitor has cookies before logging in; a session begins with a new one.
#[test]
fn a_login_that_begins_a_session_makes_the_device_known_whatever_cookies_it_brings() {
    let app = Scripted::answering(with_sessions);
    let server = proxy(ROUTE, &app.url);
    let jar = "lang=en; seen=1";
    let welcomed = login(&server, OWNER, jar, "ann", "right-ann");
    assert!(cookie(&welcomed, "device").is_some());
    assert_eq!(reported(&server, "success"), 1);
}

#[test]
fn an_answer_without_the_cookie_of_a_session_is_a_failure_if_the_route_names_it() {
    let app = Scripted::start();
    let route = ROUTE.replace("success_location = \"/home\"", "success_cookie = \"sid\"");
    let server = proxy(&route, &app.url);
    let told = post(&server, OWNER, "/login", &[FORM], "email=ann");
    assert_eq!((told.status, cookie(&told, "device")), (200, None));
    assert_eq!(
        (reported(&server, "success"), reported(&server, "failure")),
        (0, 1)
    );
}

/// Applications answer these with 200 without a look at anything.
#[test]
fn a_method_that_changes_nothing_has_no_success() {
    let app = Scripted::start();
    let route = ROUTE.replace("method = \"POST\"\n", "");
    let route = route.replace(
        "success_location = \"/home\"\n",
        "success_cookie = \"session\"\n",
    );
    let server = proxy(&route, &app.url);
    for (n, method) in ["OPTIONS", "GET"].into_iter().enumerate() {
        let mut client = Client::connect(server.proxy.unwrap());
        let ip = format!("203.0.113.{n}");
        let headers = [BROWSER, FORM, ("X-Forwarded-For", &*ip)];
        let body = format!("email=ann{n}");
        let told = client.send(method, "/login", &headers, body.as_bytes());
        assert_eq!(
            (told.status, cookie(&told, "device")),
            (200, None),
            "{method}"
        );
    }
    assert_eq!(reported(&server, "success"), 0);
    assert_eq!(app.asked(), 2);
}

#[test]
fn a_name_in_the_query_that_is_another_one_is_refused() {
    let app = Scripted::start();
    let route = ROUTE.replace("method = \"POST\"\n", "");
    let server = proxy(&route, &app.url);
    let tried = |path: &str| post(&server, OWNER, path, &[FORM], "email=ann&x=1").status;
    for query in ["email=bob", "EMAIL=bob", "email%5B%5D=bob", "a=1;email=bob"] {
        assert_eq!(tried(&format!("/login?{query}")), 400, "{query}");
    }
    let mut client = Client::connect(server.proxy.unwrap());
    let headers = [BROWSER, ("X-Forwarded-For", OWNER)];
    let asked = client.send("GET", "/login?email=ann&password=x", &headers, b"");
    assert_eq!(asked.status, 400);
    assert_eq!(app.asked(), 0);
    assert_eq!(tried("/login?email=ANN&next=/home"), 200, "the same name");
    let asked = client.send("GET", "/login?next=/home", &headers, b"");
    assert_eq!(asked.status, 200, "the form");

    let route = ROUTE.replace("form:email", "json:user.name");
    let server = proxy(&route, &app.url);
    let json = [("Content-Type", "application/json")];
    let body = r#"{"user":{"name":"ann"}}"#;
    let tried = |path: &str| post(&server, OWNER, path, &json, body).status;
    assert_eq!(tried("/login?user%5Bname%5D=bob"), 400);
    assert_eq!(tried("/login?lang=en"), 200);
}

/// The application reads the type of the body that was judged, and what a login is judged by.
#[test]
fn a_client_cannot_have_headers_removed_after_they_were_judged() {
    let app = Scripted::answering(|asked| {
        let typed = asked
            .head
            .contains("content-type: application/x-www-form-urlencoded\n");
        let status = if typed { 200 } else { 500 };
        Some(format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n"))
    });
    let route = ROUTE.replace(
        "success_location = \"/home\"\n",
        "success_cookie = \"session\"\n",
    );
    let server = proxy(&route, &app.url);
    let connection = ("Connection", "keep-alive, Content-Type");
    let told = post(&server, OWNER, "/login", &[FORM, connection], "email=ann");
    assert_eq!(told.status, 200);

    let route = ROUTE.replace("form:email", "header:X-User");
    let server = proxy(&route, &app.url);
    let before = app.asked();
    let named = [("X-User", "ann"), ("Connection", "keep-alive, X-User")];
    assert_eq!(post(&server, OWNER, "/login", &named, "").status, 400);
    assert_eq!(app.asked(), before, "nobody is named");
}

/// What `palisade check` says of a file, and whether it is content under `--strict`.
fn checked(route: &str) -> (bool, String) {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("palisade.toml");
    std::fs::write(
        &file,
        format!("{}\n[[route]]\n{route}", crate::ONLY_THE_GUARD),
    )
    .unwrap();
    let output = palisade().arg("check").arg(&file).arg("--strict").output();
    let output = output.unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    (output.status.success(), said)
}

#[test]
fn a_login_of_any_method_is_warned_of() {
    let warning = "`route.outcome` without `method`";
    let (_, said) = checked(ROUTE);
    assert!(!said.contains(warning), "{said}");
    let any = ROUTE.replace("method = \"POST\"\n", "");
    let (is_content, said) = checked(&any);
    assert!(!is_content && said.contains(warning), "{said}");
    let (_, said) = checked(&any.replace("form:email", "basic"));
    assert!(!said.contains(warning), "{said}");
}
