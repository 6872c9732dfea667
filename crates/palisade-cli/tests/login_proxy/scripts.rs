//! Logins by scripts, which servers run for what follows their path too.

use crate::common::palisade;
use crate::scripted::Scripted;
use crate::{FORM, ONLY_THE_GUARD, post, proxy};

const ROUTE: &str = r#"path = "/cgi-bin/login.py"
method = "POST"
outcome = "status"
username = "form:email"
success_cookie = "session"
"#;

#[test]
fn s7_guesses_behind_the_path_of_a_script_are_guarded() {
    let app = Scripted::start();
    let server = proxy(ROUTE, &app.url);
    let body = "email=ann&answer=401";
    let guess = |n: u32| {
        let path = format!("/cgi-bin/login.py/{n}");
        post(&server, "203.0.113.1", &path, &[FORM], body).status
    };
    let statuses: Vec<u16> = (0..10).map(guess).collect();
    assert_eq!(statuses[..3], [401, 401, 429]);
    assert_eq!(app.asked(), 2, "the rest never reached it: {statuses:?}");
}

#[test]
fn s7_check_says_that_what_follows_a_script_is_guarded() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("policy.toml");
    std::fs::write(&file, format!("{ONLY_THE_GUARD}\n[[route]]\n{ROUTE}")).unwrap();
    let output = palisade().arg("check").arg(&file).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    assert!(text.contains("/cgi-bin/login.py/…"), "{text}");
}
