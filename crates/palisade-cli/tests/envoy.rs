//! A real Envoy asks: the configuration of the documentation does what it says, also when
//! Palisade or its store is away.
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
#[path = "common/manifests.rs"]
mod manifests;
#[path = "envoy/proxy.rs"]
mod proxy;
#[path = "../../palisade-store/tests/common/redis_server.rs"]
mod redis_server;
#[path = "envoy/resources.rs"]
mod resources;
#[path = "common/upstream.rs"]
mod upstream;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use common::{Options, Server, signal};
use proxy::{Envoy, block, blocks};
use redis_server::{RedisServer, eventually, free_port};
use upstream::Upstream;

/// Envoy's own deadline, with room for a busy machine.
const SOON: Duration = Duration::from_secs(5);

/// Palisade on a port of its own, so that it can come back to it.
struct Service {
    port: u16,
    policy: String,
}

impl Service {
    fn new(policy: &str) -> Self {
        Self {
            port: free_port(),
            policy: policy.to_owned(),
        }
    }

    fn start(&self, more: &[&str]) -> Server {
        self.start_at(tempfile::tempdir().unwrap(), more)
    }

    fn start_at(&self, home: tempfile::TempDir, more: &[&str]) -> Server {
        let grpc = format!("127.0.0.1:{}", self.port);
        let args = [&["--grpc", &grpc], more].concat();
        let options = Options {
            args: &args,
            config: Some(&self.policy),
            env: &[(
                "PALISADE_KEY",
                "a key of at least thirty-two bytes, for tests",
            )],
        };
        Server::at(home, &options)
    }

    /// Envoy as the page says, in front of this service.
    fn behind(&self, application: &Upstream, change: impl Fn(&str) -> String) -> Envoy {
        let config = block("envoy.md", "yaml")
            .replace("port_value: 9901", "port_value: 0")
            .replace("port_value: 10000", "port_value: 0")
            .replace(
                "port_value: 3000",
                &format!("port_value: {}", application.address.port()),
            )
            .replace("port_value: 8081", &format!("port_value: {}", self.port));
        Envoy::start(&change(&config))
    }
}

fn documented() -> Service {
    Service::new(&block("envoy.md", "toml"))
}

fn as_it_is(config: &str) -> String {
    config.to_owned()
}

fn let_pass(config: &str) -> String {
    let open = config.replace("failure_mode_deny: true", "failure_mode_deny: false");
    assert_ne!(open, config, "the page refuses while nobody answers");
    open
}

#[test]
fn five_pass_and_the_sixth_is_refused_with_the_headers_of_its_limit() {
    let application = Upstream::start();
    let service = documented();
    let _palisade = service.start(&[]);
    let envoy = service.behind(&application, as_it_is);
    for left in (0..5).rev() {
        let reply = envoy.get("/", &[]);
        assert_eq!(reply.status, 200);
        assert_eq!(reply.header("x-ratelimit-limit"), Some("5"));
        assert_eq!(
            reply.header("x-ratelimit-remaining"),
            Some(left.to_string().as_str())
        );
    }
    for _ in 0..2 {
        let refused = envoy.get("/", &[]);
        assert_eq!(refused.status, 429);
        let wait: u32 = refused.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=60).contains(&wait), "{wait}");
        assert_eq!(refused.header("x-ratelimit-remaining"), Some("0"));
        assert!(refused.header("ratelimit").is_some());
        assert_eq!(refused.json()["error"], "rate_limit_exceeded");
    }
    assert_eq!(application.requests.load(Ordering::SeqCst), 5);
}

#[test]
fn several_descriptors_are_one_decision_and_a_refusal_charges_none() {
    let application = Upstream::start();
    let service = documented();
    let _palisade = service.start(&[]);
    let envoy = service.behind(&application, as_it_is);
    let report = |user: &str, name: &str| {
        envoy
            .get(&format!("/reports/{name}"), &[("x-user", user)])
            .status
    };
    assert_eq!(
        [report("ann", "a"), report("ann", "b"), report("ann", "c")],
        [200; 3]
    );
    // The user's limit refuses, over all reports; the address has two left of five.
    assert_eq!([report("ann", "d"), report("ann", "e")], [429; 2]);
    assert_eq!(
        [report("bob", "a"), report("bob", "b"), report("bob", "c")],
        [200, 200, 429]
    );
}

#[test]
fn hits_addend_of_a_route_takes_as_many() {
    let application = Upstream::start();
    let service = documented();
    let _palisade = service.start(&[]);
    let envoy = service.behind(&application, as_it_is);
    assert_eq!(envoy.statuses(4, "/export"), [200, 200, 200, 429]);
}

#[test]
fn a_shadow_limit_refuses_nobody() {
    let application = Upstream::start();
    let service = documented();
    let palisade = service.start(&[]);
    let envoy = service.behind(&application, as_it_is);
    assert_eq!(envoy.statuses(5, "/beta"), [200; 5]);
    let metrics = palisade.admin_get("/metrics");
    let shadowed = metrics
        .text()
        .lines()
        .any(|line| line.contains("beta") && line.contains("shadow_over_limit"));
    assert!(shadowed, "{}", metrics.text());
}

#[test]
fn while_palisade_is_stopped_the_setting_of_envoy_decides_and_a_restart_forgets_nothing() {
    let application = Upstream::start();
    let service = documented();
    let palisade = service.start(&[]);
    let closed = service.behind(&application, as_it_is);
    let open = service.behind(&application, let_pass);
    assert_eq!(closed.statuses(3, "/"), [200; 3]);
    palisade.terminate();
    let (_, home) = palisade.wait();
    assert_eq!(closed.statuses(2, "/"), [503; 2]);
    assert_eq!(open.statuses(2, "/"), [200; 2]);
    let _palisade = service.start_at(home, &[]);
    eventually("Envoy has connected again", || {
        closed.get("/", &[]).status != 503
    });
    // The fourth was the question above, the fifth is the last.
    assert_eq!(closed.statuses(3, "/"), [200, 429, 429]);
}

#[test]
fn while_palisade_does_not_answer_nobody_waits_longer_than_envoys_deadline() {
    let application = Upstream::start();
    let service = documented();
    let palisade = service.start(&[]);
    let closed = service.behind(&application, as_it_is);
    let open = service.behind(&application, let_pass);
    assert_eq!(
        (closed.get("/", &[]).status, open.get("/", &[]).status),
        (200, 200)
    );
    signal(palisade.pid(), "STOP");
    for (envoy, expected) in [(&closed, 503), (&open, 200)] {
        let began = Instant::now();
        assert_eq!(envoy.get("/", &[]).status, expected);
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    }
    signal(palisade.pid(), "CONT");
    eventually("it answers again", || closed.get("/", &[]).status != 503);
}

#[test]
fn while_redis_is_away_palisade_still_decides_and_envoy_sees_no_error() {
    let application = Upstream::start();
    let mut redis = RedisServer::start();
    let service = documented();
    let _palisade = service.start(&["--store", &redis.url()]);
    let envoy = service.behind(&application, as_it_is);
    assert_eq!(envoy.statuses(6, "/"), [200, 200, 200, 200, 200, 429]);
    redis.kill();
    let began = Instant::now();
    let away = envoy.statuses(10, "/");
    assert!(
        began.elapsed() < 10 * Duration::from_millis(400),
        "{:?}",
        began.elapsed()
    );
    assert!(
        away.iter().all(|status| [200, 429].contains(status)),
        "{away:?}"
    );
    let passed = away.iter().filter(|status| **status == 200).count();
    assert!(
        passed <= 5,
        "a node alone admits no more than the limit: {away:?}"
    );
}

/// The cluster of the page that asks over a socket file, in place of the one over a port.
fn over_a_file(config: &str, file: &str) -> String {
    let cluster = blocks("envoy.md", "yaml").swap_remove(1);
    let (rest, _) = config.split_once("    - name: palisade\n").unwrap();
    format!("{rest}{}", cluster.replace(DOCUMENTED_FILE, file))
}

const DOCUMENTED_FILE: &str = "/run/palisade/rls.sock";

#[test]
fn over_a_socket_file_it_is_the_same_and_the_file_goes_with_the_process() {
    let application = Upstream::start();
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("rls.sock");
    let file = file.to_str().unwrap();
    let [policy, server] = <[String; 2]>::try_from(blocks("envoy.md", "toml")).unwrap();
    let server = server.replace(DOCUMENTED_FILE, file);
    let service = Service::new("");
    let envoy = service.behind(&application, |config| over_a_file(config, file));
    let palisade = Server::configured(&format!("{server}{policy}"));
    eventually("Envoy finds the file", || {
        envoy.get("/beta", &[]).status == 200
    });
    assert_eq!(envoy.statuses(7, "/"), [200, 200, 200, 200, 200, 429, 429]);
    palisade.terminate();
    assert_eq!(palisade.wait().0, Some(0));
    assert!(!std::path::Path::new(file).exists());
    assert_eq!(envoy.get("/", &[]).status, 503);
}

/// The second filter of the page behind the first, which asks another service.
fn beside_another(config: &str, own: u16, other: u16) -> String {
    let [whole, _, second] = <[String; 3]>::try_from(blocks("envoy.md", "yaml")).unwrap();
    assert!(whole.contains("envoy.filters.http.router"));
    let router = "                  - name: envoy.filters.http.router\n";
    let both = "\n                              - stage: 1\n                                actions: [{ remote_address: {} }]\n";
    let limits = "\n                              - actions: [{ remote_address: {} }]\n";
    let cluster = config.split_once("    - name: palisade\n").unwrap().1;
    let cluster = cluster
        .replace("cluster_name: palisade", "cluster_name: other")
        .replace(
            &format!("port_value: {own}"),
            &format!("port_value: {other}"),
        );
    config
        .replace("cluster_name: palisade }", "cluster_name: other }")
        .replace(router, &format!("{}{router}", second.trim_end_matches(' ')))
        .replace(limits, &format!("{}{}", limits.trim_end(), both))
        + &format!("    - name: other\n{cluster}")
}

#[test]
fn beside_another_service_a_shadow_counts_what_it_would_refuse_and_refuses_nobody() {
    let application = Upstream::start();
    let policy = block("envoy.md", "toml");
    let shadow = Service::new(&format!("[rls]\nshadow = true\n{policy}"));
    let other = Service::new(&policy.replace("rate = \"5/min\"", "rate = \"8/min\""));
    let (palisade, _other) = (shadow.start(&[]), other.start(&[]));
    let envoy = shadow.behind(&application, |config| {
        beside_another(config, shadow.port, other.port)
    });
    let statuses = envoy.statuses(10, "/");
    assert_eq!(statuses, [200, 200, 200, 200, 200, 200, 200, 200, 429, 429]);
    // It is behind the other: what that refuses does not reach it.
    let metrics = palisade.admin_get("/metrics");
    let count = metrics
        .text()
        .lines()
        .find(|line| line.contains("per-address") && line.contains("shadow_over_limit"));
    assert!(count.is_some_and(|line| line.ends_with(" 3")), "{count:?}");
}

/// The route of the page that looks before and charges when the answer has ended.
fn charging_afterwards(config: &str) -> String {
    let routes = "                      routes:\n";
    assert!(config.contains(routes));
    config.replacen(
        routes,
        &format!("{routes}{}", block("budgets.md", "yaml")),
        1,
    )
}

/// What a metric of Palisade says, 0 before it has said anything.
fn metric(palisade: &Server, name: &str) -> u64 {
    let metrics = palisade.admin_get("/metrics");
    let text = metrics.text();
    let line = text.lines().find(|line| line.starts_with(name));
    let value = line.and_then(|line| line.rsplit_once(' ')?.1.parse().ok());
    value.unwrap_or(0)
}

#[test]
fn b_overdraft_what_an_answer_took_is_charged_when_it_has_ended() {
    let application = Upstream::start();
    let service = Service::new(&blocks("budgets.md", "toml")[3]);
    let palisade = service.start(&[]);
    let envoy = service.behind(&application, charging_afterwards);
    let of = |user: &str, path: &str| {
        let path = format!("/files/{path}");
        envoy.get(&path, &[("x-user", user)]).status
    };
    // The application repeats the path: an answer of more than the limit allows in a minute.
    let long = "x".repeat(6_000);
    assert_eq!(of("ann", &long), 200);
    let charged = "rate_limiter_descriptors_total{";
    eventually("the first answer is charged", || {
        metric(&palisade, charged) >= 2
    });
    assert_eq!(of("ann", &long), 200, "something is left");
    eventually("nothing is left", || of("ann", "short") == 429);
    assert!(metric(&palisade, "rate_limiter_overdraft_total{unit=\"bytes\"}") > 0);
    assert_eq!(of("bob", "short"), 200, "a bucket of his own");
}

/// Microseconds of the clock that both processes share.
fn now_us() -> u128 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_micros()
}

#[test]
fn a_burst_across_the_edge_of_a_window_passes_the_limit_once() {
    const WINDOW_US: u128 = 3_000_000;
    let application = Upstream::start();
    let policy = block("envoy.md", "toml").replace("rate = \"5/min\"", "rate = \"5/3s\"");
    let service = Service::new(&policy);
    let _palisade = service.start(&[]);
    let envoy = service.behind(&application, as_it_is);
    eventually("the last part of an aligned window", || {
        (WINDOW_US - 600_000..WINDOW_US - 300_000).contains(&(now_us() % WINDOW_US))
    });
    let began = now_us();
    assert_eq!(envoy.statuses(5, "/"), [200; 5]);
    eventually("the next aligned window", || {
        now_us() / WINDOW_US > began / WINDOW_US
    });
    let after = envoy.statuses(5, "/");
    assert!(
        now_us() - began < WINDOW_US,
        "the machine was too slow to tell"
    );
    assert_eq!(after, [429; 5]);
}
