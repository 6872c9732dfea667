//! Other proxies in front, set up as their pages say: Traefik, Caddy and HAProxy.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test fails by panicking and says why"
)]

mod common;
#[path = "common/upstream.rs"]
mod upstream;

use std::io::BufReader;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::{Client, Options, PATIENCE, Reply, Server};
use socket2::{Domain, Socket, Type};
use tempfile::TempDir;
use upstream::Upstream;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The blocks of this language on a page, in order.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let text = std::fs::read_to_string(root().join("docs").join(page)).unwrap();
    let fence = format!("```{language}\n");
    let found = text.split(&fence).skip(1);
    found
        .map(|after| after.split_once("```").unwrap().0.to_owned())
        .collect()
}

fn free() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

/// What stands before the application, ended when dropped.
struct Gateway {
    child: Child,
    address: SocketAddr,
    _home: TempDir,
}

impl Gateway {
    /// Starts a proxy that finds its files in its working directory.
    fn start(mut command: Command, address: SocketAddr, files: &[(&str, String)]) -> Self {
        let home = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(home.path().join(name), text).unwrap();
        }
        let child = command
            .current_dir(home.path())
            .env("HOME", home.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the proxy, which `scripts/test` installs");
        let gateway = Self {
            child,
            address,
            _home: home,
        };
        wait_until("the proxy listens", || Client::try_connect(address).is_ok());
        gateway
    }

    /// A sign-in of the client at `from` that claims to be another one, from elsewhere.
    fn sign_in(&self, from: [u8; 4], forged: &str) -> Reply {
        let headers = [
            ("X-Forwarded-For", forged),
            ("X-Real-Ip", forged),
            ("Forwarded", "for=198.51.100.9"),
            ("X-Forwarded-Uri", "/free"),
            ("X-Forwarded-Method", "GET"),
            ("X-Original-URI", "/free"),
            ("X-Original-Method", "GET"),
        ];
        let mut client = connect(from, self.address);
        client.send("POST", "/auth/token", &headers, b"grant_type=x")
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Two clients of one host: what the proxy sees of them differs.
const CLIENT: [u8; 4] = [127, 0, 0, 2];
const NEIGHBOUR: [u8; 4] = [127, 0, 0, 3];

/// A connection from this address of the host.
fn connect(from: [u8; 4], to: SocketAddr) -> Client {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((from, 0)).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    Client {
        stream: BufReader::new(socket.into()),
    }
}

/// Palisade that believes the proxy and no other address of the host.
fn palisade(args: &[&str]) -> Server {
    Server::with(&Options {
        config: Some("[server]\ntrusted_proxies = [\"127.0.0.1/32\"]\n"),
        args,
        ..Options::default()
    })
}

/// Ten pass whatever they claim, the eleventh hears Palisade's own refusal.
fn ten_pass_and_the_eleventh_does_not(gateway: &Gateway, app: &Upstream, shows_limits: bool) {
    for number in 0..10 {
        let reply = gateway.sign_in(CLIENT, &format!("198.51.100.{number}"));
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert_eq!(reply.header("x-app"), Some("yes"));
        let seen = reply.json();
        assert_eq!(seen["line"], "POST /auth/token HTTP/1.1");
        assert_eq!(seen["body"], "grant_type=x");
        let left = (9 - number).to_string();
        let told = match shows_limits {
            true => reply.header("x-ratelimit-remaining").map(str::to_owned),
            false => seen["headers"]["x-ratelimit-remaining"]
                .as_str()
                .map(str::to_owned),
        };
        assert_eq!(told, Some(left));
    }
    let refused = gateway.sign_in(CLIENT, "198.51.100.200");
    assert_eq!(refused.status, 429);
    assert_eq!(refused.json()["error"], "rate_limit_exceeded");
    assert_eq!(refused.header("x-ratelimit-limit"), Some("10"));
    assert_eq!(refused.header("x-ratelimit-remaining"), Some("0"));
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait));
    assert_eq!(app.requests.load(Ordering::SeqCst), 10);
    // Neither the class of a request nor its client's address is the client's to say.
    let read = connect(CLIENT, gateway.address).send("GET", "/things", &[], b"");
    assert_eq!(read.status, 200);
    assert_eq!(gateway.sign_in(NEIGHBOUR, "127.0.0.2").status, 200);
}

fn installed(name: &str) -> PathBuf {
    root().join("target/tools/gateways/bin").join(name)
}

fn placed(text: &str, places: &[(&str, SocketAddr)]) -> String {
    places.iter().fold(text.to_owned(), |text, (shown, real)| {
        assert!(text.contains(shown), "the page has {shown}");
        text.replace(shown, &real.to_string())
    })
}

#[test]
fn traefik_passes_ten_and_refuses_the_eleventh_as_palisade_says() {
    let (app, palisade, address) = (Upstream::start(), palisade(&[]), free());
    let page = blocks("traefik.md", "yaml");
    let entry = placed(&page[0], &[("127.0.0.1:8000", address)]);
    let places = [
        ("127.0.0.1:8080", palisade.listen),
        ("127.0.0.1:3000", app.address),
    ];
    let routes = placed(&page[1], &places);
    let mut command = Command::new(installed("traefik"));
    command.arg("--configFile=traefik.yml");
    let files = [("traefik.yml", entry), ("routes.yml", routes)];
    let gateway = Gateway::start(command, address, &files);
    wait_until("the routes are read", || {
        let reply = Client::connect(address).send("GET", "/ready", &[], b"");
        reply.status == 200
    });
    app.requests.store(0, Ordering::SeqCst);
    ten_pass_and_the_eleventh_does_not(&gateway, &app, false);
    drop(palisade);
    assert_eq!(
        gateway.sign_in(CLIENT, "198.51.100.1").status,
        500,
        "closed"
    );
    assert_eq!(app.requests.load(Ordering::SeqCst), 12);
}

#[test]
fn caddy_passes_ten_and_refuses_the_eleventh_as_palisade_says() {
    let (app, palisade, address) = (Upstream::start(), palisade(&[]), free());
    let places = [
        ("127.0.0.1:8080", palisade.listen),
        ("127.0.0.1:3000", app.address),
    ];
    let page = &blocks("caddy.md", "caddy")[0];
    let site = placed(page, &places).replace(":8000", &format!(":{}", address.port()));
    // Two Caddys of one host would share the port that it is administered by.
    let files = [("Caddyfile", format!("{{\n\tadmin off\n}}\n{site}"))];
    let mut command = Command::new(installed("caddy"));
    command.args(["run", "--config", "Caddyfile"]);
    let gateway = Gateway::start(command, address, &files);
    ten_pass_and_the_eleventh_does_not(&gateway, &app, true);
    drop(palisade);
    assert_eq!(
        gateway.sign_in(CLIENT, "198.51.100.1").status,
        502,
        "closed"
    );
    assert_eq!(app.requests.load(Ordering::SeqCst), 12);
}

fn haproxy(page: &str, app: &Upstream, palisade: &Server) -> Gateway {
    let address = free();
    let places = [
        ("127.0.0.1:8000", address),
        ("127.0.0.1:8001", palisade.proxy.unwrap()),
        ("127.0.0.1:3000", app.address),
    ];
    let port = format!("check port {} ", palisade.admin.port());
    let config = placed(page, &places).replace("check port 9090 ", &port);
    let mut command = Command::new("haproxy");
    command.args(["-db", "-f", "haproxy.cfg"]);
    Gateway::start(command, address, &[("haproxy.cfg", config)])
}

#[test]
fn haproxy_passes_ten_and_refuses_the_eleventh_as_palisade_says() {
    let page = blocks("haproxy.md", "haproxy").remove(0);
    let shown = "    # server application";
    assert!(page.contains(shown));
    let open = page.replace(shown, "    server application");
    for (config, without) in [(page, 503), (open, 200)] {
        let app = Upstream::start();
        let palisade = palisade(&["--upstream", &app.url(), "--proxy", "127.0.0.1:0"]);
        let gateway = haproxy(&config, &app, &palisade);
        ten_pass_and_the_eleventh_does_not(&gateway, &app, true);
        drop(palisade);
        wait_until("the page's choice", || {
            gateway.sign_in(CLIENT, "198.51.100.1").status == without
        });
    }
}
