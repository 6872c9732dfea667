//! Which requests to a login route reach the application: those that can be read, byte for
//! byte, and none that cannot.

use crate::common::{Client, Reply};
use crate::scripted::Scripted;
use crate::{BROWSER, FORM, post, proxy};

const FORM_ROUTE: &str = "path = \"/login\"\noutcome = \"status\"\nusername = \"form:email\"\nsuccess_cookie = \"session\"\n";
const JSON_ROUTE: &str = "path = \"/login\"\noutcome = \"status\"\nusername = \"json:user.name\"\n";

#[test]
fn a_login_that_cannot_be_read_is_refused_and_does_not_reach_the_application() {
    let app = Scripted::start();
    let server = proxy(FORM_ROUTE, &app.url);
    let gzip = ("Content-Encoding", "gzip");
    let json = ("Content-Type", "application/json");
    let multipart = ("Content-Type", "multipart/form-data; boundary=x");
    let utf_16 = (
        "Content-Type",
        "application/x-www-form-urlencoded; charset=utf-16",
    );
    let unbounded = ("Content-Type", "multipart/form-data");
    let large = format!("email=ann&x={}", "x".repeat(16 * 1024));
    let once = multipart_form(&[("email", "ann")]);
    let twice = multipart_form(&[("email", "ann"), ("Email", "bob")]);
    let long = multipart_form(&[("email", "ann"), ("x", &large)]);
    for (headers, body, status) in [
        (&[FORM][..], "email=ann&email=bob", 400),
        (&[FORM], "email=ann&email%5B%5D=bob", 400),
        (&[FORM], "email=ann&a=1;email=bob", 400),
        (&[FORM], "name=ann", 400),
        (&[FORM], "email=", 400),
        (&[FORM], "", 400),
        (&[FORM], &*large, 413),
        (&[FORM, gzip], "email=ann", 415),
        (&[json], "{\"email\":\"ann\"}", 415),
        (&[multipart], "--x\r\n", 400),
        (&[multipart], &*twice, 400),
        (&[multipart], &*long, 413),
        (&[unbounded], &*once, 415),
        (&[utf_16], "email=ann", 415),
        (&[], "email=ann", 415),
    ] {
        let refused = post(&server, "203.0.113.1", "/login", headers, body);
        assert_eq!(refused.status, status, "{headers:?}: {}", refused.text());
        assert!(!refused.text().contains("ann"), "{}", refused.text());
    }
    assert_eq!(app.asked(), 0);
}

/// A form as browsers send it, with the boundary `x`.
fn multipart_form(fields: &[(&str, &str)]) -> String {
    let part = |(name, value): &(&str, &str)| {
        format!("--x\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    };
    fields.iter().map(part).collect::<String>() + "--x--\r\n"
}

#[test]
fn a_multipart_form_names_who_tries_and_passes_byte_for_byte() {
    let app = Scripted::start();
    let server = proxy(FORM_ROUTE, &app.url);
    let kind = [("Content-Type", "multipart/form-data; boundary=x")];
    let tried = |body: &str| post(&server, "203.0.113.1", "/login", &kind, body);
    let right = multipart_form(&[("email", "bob"), ("password", "a\r\n--b")]);
    let passed = tried(&right);
    assert_eq!((passed.status, passed.text()), (200, &*right));
    let wrong = |name| multipart_form(&[("email", name), ("x", "&answer=401&")]);
    assert_eq!(tried(&wrong("ann")).status, 401);
    // The same account, whichever kind of form names it.
    let urlencoded = "email=ANN+&answer=401";
    let other = post(&server, "203.0.113.1", "/login", &[FORM], urlencoded);
    assert_eq!(other.status, 401);
    assert_eq!(tried(&wrong(" Ann")).status, 429);
    assert_eq!(app.asked(), 3);
}

#[test]
fn a_nested_member_names_who_tries() {
    let app = Scripted::start();
    let server = proxy(JSON_ROUTE, &app.url);
    let json = [("Content-Type", "application/json")];
    let tried = |body: &str| post(&server, "203.0.113.1", "/login", &json, body).status;
    assert_eq!(tried(r#"{"user":{"name":"ann"},"x":"&answer=401&"}"#), 401);
    assert_eq!(tried(r#"{"user":{"name":"ANN "},"x":"&answer=401&"}"#), 401);
    assert_eq!(
        tried(r#"{"user":{"name":"ann"}}"#),
        429,
        "one account in every spelling"
    );
    assert_eq!(tried(r#"{"user":{"name":{"$ne":""}}}"#), 400);
    assert_eq!(tried(r#"{"user":{"name":"a","name":"b"}}"#), 400);
}

#[test]
fn a_field_within_another_names_who_tries() {
    let app = Scripted::start();
    let server = proxy(&FORM_ROUTE.replace("email", "user[email]"), &app.url);
    let tried = |body: &str| post(&server, "203.0.113.1", "/login", &[FORM], body).status;
    let fields = "user%5Bemail%5D=ann&user%5Bpassword%5D=x";
    assert_eq!(tried(fields), 200);
    assert_eq!(tried(&format!("{fields}&user%5Bemail%5D%5B%5D=bob")), 400);
    assert_eq!(app.asked(), 1);
}

fn raw(client: &mut Client, text: &str) -> Reply {
    client.write(text.as_bytes()).unwrap();
    client.read_reply().unwrap()
}

#[test]
fn a_login_in_chunks_is_read_and_passed_on_whole() {
    let app = Scripted::start();
    let server = proxy(FORM_ROUTE, &app.url);
    let mut client = Client::connect(server.proxy.unwrap());
    let head = format!(
        "POST /login HTTP/1.1\r\nHost: t\r\n{}: {}\r\nX-Forwarded-For: 203.0.113.1\r\nContent-Type: {}\r\nTransfer-Encoding: chunked\r\n\r\n",
        BROWSER.0, BROWSER.1, FORM.1
    );
    let reply = raw(
        &mut client,
        &format!("{head}4\r\nemai\r\n8\r\nl=ann&x=\r\n1\r\ny\r\n0\r\n\r\n"),
    );
    assert_eq!((reply.status, reply.text()), (200, "email=ann&x=y"));
    let waits = format!(
        "{}Expect: 100-continue\r\nContent-Length: 9\r\n\r\n",
        head.replace("Transfer-Encoding: chunked\r\n\r\n", "")
    );
    client.write(waits.as_bytes()).unwrap();
    assert_eq!(client.read_head().unwrap().0, 100);
    assert_eq!(raw(&mut client, "email=ann").text(), "email=ann");
}

/// A path in other letters is refused; where it is not, it is the same login.
#[test]
fn i_path_a_login_in_other_letters_is_refused_by_default() {
    let app = Scripted::start();
    let server = proxy(FORM_ROUTE, &app.url);
    let tried = |path: &str| post(&server, "203.0.113.1", path, &[FORM], "email=ann").status;
    assert_eq!([tried("/Login"), tried("/LOGIN")], [400, 400]);
}

/// Who asks for the form tries nothing, and a path in other letters is the same login.
#[test]
fn only_attempts_are_guarded_and_all_of_them() {
    let app = Scripted::start();
    let config = format!("{FORM_ROUTE}\n[identity]\npath_case = \"significant\"\n");
    let server = proxy(&config, &app.url);
    let mut client = Client::connect(server.proxy.unwrap());
    let ip = ("X-Forwarded-For", "203.0.113.1");
    for _ in 0..5 {
        assert_eq!(
            client.send("GET", "/login", &[BROWSER, ip], b"").status,
            200
        );
    }
    let refused = client.send("GET", "/login", &[BROWSER, ip, FORM], b"x=1");
    assert_eq!(
        refused.status, 400,
        "a body may hold a credential, whatever the method"
    );
    let wrong = "email=ann&answer=401";
    let tried = |path: &str| post(&server, "203.0.113.1", path, &[FORM], wrong).status;
    assert_eq!(
        [tried("/Login"), tried("/login/"), tried("/LOGIN")],
        [401, 401, 429]
    );
}

#[test]
fn basic_credentials_are_guarded_and_a_challenge_can_be_asked_for() {
    let app = Scripted::start();
    let route = "path = \"/x\"\noutcome = \"status\"\nusername = \"basic\"\n";
    let server = proxy(route, &app.url);
    let tried =
        |headers: &[(&str, &str)]| post(&server, "203.0.113.1", "/x", headers, "answer=401");
    for _ in 0..4 {
        assert_eq!(tried(&[]).status, 401, "no credential, no attempt");
    }
    let ann = [("Authorization", "Basic YW5uOng=")];
    assert_eq!([0; 3].map(|_| tried(&ann).status), [401, 401, 429]);
    let twice = [ann[0], ("Authorization", "Basic Ym9iOng=")];
    assert_eq!(tried(&twice).status, 400);
}
