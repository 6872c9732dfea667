//! The challenge page before an application, in a real Chromium (C-PAGE).

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};

use super::browser::{pictures, workplace};
use super::node::run;
use super::scripted::{Scripted, site};
use super::*;

const POLICY: &str = r#"
[policy]
defaults = false

[challenge]
difficulty = 20_000

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

/// Plays one story against an application behind the proxy.
fn play(story: &str, policy: &str) {
    let app = Scripted::answering(site);
    let server = Server::with(&Options {
        config: Some(policy),
        args: &["--upstream", &app.url, "--proxy", "127.0.0.1:0"],
        env: &[("PROVIDER_SECRET", "a secret of the provider")],
    });
    let mut command = workplace().command("node");
    command
        .args(["browser/challenge.mjs", story])
        .env("SITE", format!("http://{}", server.proxy.unwrap()))
        .env("PICTURES", pictures());
    run(story, &mut command);
}

#[test]
fn c_page_a_browser_passes_the_challenge_of_a_limit_and_its_request_is_repeated() {
    play("requests", POLICY);
}

#[test]
fn c_page_a_browser_passes_the_challenge_of_a_login_and_is_back_at_the_form() {
    play("login", POLICY);
}

#[test]
fn c_page_every_look_fits_and_is_accessible() {
    play("looks", POLICY);
}

#[test]
fn c_page_without_scripts_the_page_says_what_to_do() {
    play("noscript", POLICY);
}

#[test]
fn c_page_a_failed_check_can_be_tried_again_with_the_keyboard() {
    play("failures", POLICY);
}

/// A provider that accepts one token, or one that accepts connections and says nothing.
fn provider(is_silent: bool) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for mut stream in listener.incoming().flatten() {
            if is_silent {
                held.push(stream);
                continue;
            }
            let mut asked = [0; 4096];
            let read = stream.read(&mut asked).unwrap();
            let form = String::from_utf8_lossy(&asked[..read]);
            let is_good = form.contains("secret=a%20secret%20of%20the%20provider&")
                && form.contains("response=a-token-of-turnstile");
            let body =
                format!(r#"{{"success":{is_good},"action":"request","hostname":"127.0.0.1"}}"#);
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close";
            let answer = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    address
}

fn with_provider(address: SocketAddr) -> String {
    let table = format!(
        "[challenge]\nkind = \"turnstile\"\nsite_key = \"site-key\"\nsecret = \"env:PROVIDER_SECRET\"\n\
         hostnames = [\"127.0.0.1\"]\nverify_url = \"http://{address}/siteverify\"\n"
    );
    POLICY.replace("[challenge]\n", &table)
}

#[test]
fn c_kind_the_widget_of_a_provider_is_shown_and_its_token_verified() {
    play("provider", &with_provider(provider(false)));
}

#[test]
fn c_fail_a_provider_that_does_not_answer_is_replaced_by_a_proof_of_work() {
    play("provider", &with_provider(provider(true)));
}
