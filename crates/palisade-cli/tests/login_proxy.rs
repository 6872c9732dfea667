//! Logins of applications that know nothing of Palisade, guarded by the proxy before them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test fails by panicking and says why"
)]

#[path = "login_proxy/apps.rs"]
mod apps;
#[path = "login_proxy/bodies.rs"]
mod bodies;
#[path = "login_proxy/challenges.rs"]
mod challenges;
mod common;
#[path = "login_proxy/doctor.rs"]
mod doctor;
#[path = "login_proxy/ends.rs"]
mod ends;
#[path = "login_proxy/forged.rs"]
mod forged;
#[path = "login_proxy/guessers.rs"]
mod guessers;
#[path = "login_proxy/operators.rs"]
mod operators;
#[path = "login_proxy/scripted.rs"]
mod scripted;
#[path = "login_proxy/scripts.rs"]
mod scripts;

use common::{Client, Options, Reply, Server};

/// No limit but the guard: what stops a guesser here is not a count of requests. Addresses
/// come from the header, as behind a balancer on this host.
const ONLY_THE_GUARD: &str = r#"
[policy]
defaults = false

[guard]
owner_lane = "known"

[lockout]
challenge = "advise"

[[limit]]
name = "everything"
by = []
rate = "100_000/s"
algorithm = "token-bucket"

[[route]]
path = "/*"
class = "any"
"#;

const FORM: (&str, &str) = ("Content-Type", "application/x-www-form-urlencoded");
const BROWSER: (&str, &str) = (
    "User-Agent",
    "Mozilla/5.0 (X11; Linux x86_64; rv:124.0) Gecko/20100101 Firefox/124.0",
);

/// A proxy before `upstream` with this login route.
fn proxy(route: &str, upstream: &str) -> Server {
    started(&format!("{ONLY_THE_GUARD}\n[[route]]\n{route}"), upstream)
}

fn started(config: &str, upstream: &str) -> Server {
    Server::with(&Options {
        config: Some(config),
        args: &["--upstream", upstream, "--proxy", "127.0.0.1:0"],
        ..Options::default()
    })
}

/// A request of a browser at `ip`.
fn post(server: &Server, ip: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
    let mut all = vec![BROWSER, ("Accept-Language", "en"), ("X-Forwarded-For", ip)];
    all.extend_from_slice(headers);
    let mut client = Client::connect(server.proxy.unwrap());
    client.send("POST", path, &all, body.as_bytes())
}

/// `name=value` of a cookie that an answer sets.
fn cookie(reply: &Reply, name: &str) -> Option<String> {
    let lines = reply.headers.iter();
    let set = lines.filter(|(key, _)| key.eq_ignore_ascii_case("set-cookie"));
    let mut pairs = set.filter_map(|(_, line)| line.split(';').next());
    let pair = pairs.find(|pair| pair.starts_with(&format!("{name}=")))?;
    Some(pair.to_owned())
}
