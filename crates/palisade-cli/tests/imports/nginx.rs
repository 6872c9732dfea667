//! `limit_req` of nginx as a model, beside what is imported from its files: generated
//! configurations and requests. A real nginx, where there is one, shows that the model is it.
//!
//! The model: each zone is a leaky bucket for each key, counted in thousandths of a request
//! and in whole milliseconds. A request that finds more than `burst` in it is refused and
//! changes nothing; with several zones all of them admit, or none is charged.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::json;

use super::Scratch;
use super::common::Client;
use super::nginx_server::Nginx;
use super::replayed::denials;

/// A zone and how it is used; every use of a zone has the same burst.
#[derive(Clone, Debug)]
struct Zone {
    /// Whether it counts each address, or all together.
    per_address: bool,
    rate: Rate,
    burst: u32,
    nodelay: bool,
}

#[derive(Clone, Copy, Debug)]
struct Rate {
    written: &'static str,
    /// Thousandths of a request that leave in a second.
    millis: u64,
}

/// Rates that are whole thousandths a second: nginx rounds others down.
const RATES: [Rate; 7] = [
    rate("1r/s", 1_000),
    rate("2r/s", 2_000),
    rate("10r/s", 10_000),
    rate("6r/m", 100),
    rate("30r/m", 500),
    rate("60r/m", 1_000),
    rate("120r/m", 2_000),
];

const fn rate(written: &'static str, millis: u64) -> Rate {
    Rate { written, millis }
}

/// A place of the server: how it is written, and the zones it uses itself.
type Location = (&'static str, Vec<usize>);

#[derive(Clone, Debug)]
struct Server {
    zones: Vec<Zone>,
    /// What holds where a location says nothing.
    own: Vec<usize>,
    locations: Vec<Location>,
}

const PLACES: [&str; 5] = ["/", "/a", "/a/b", "= /a/b", "^~ /c"];
const PATHS: [&str; 7] = ["/", "/a", "/a/b", "/a/bc", "/ab", "/c/d", "/x"];
const ADDRESSES: [&str; 3] = ["203.0.113.1", "203.0.113.2", "198.51.100.1"];

fn server() -> impl Strategy<Value = Server> {
    let zone = (any::<bool>(), select(&RATES[..]), 0_u32..5, any::<bool>());
    let zone = zone.prop_map(|(per_address, rate, burst, nodelay)| Zone {
        per_address,
        rate,
        burst,
        nodelay,
    });
    let uses = || proptest::sample::subsequence(vec![0, 1, 2], 0..=2);
    let places = proptest::sample::subsequence(PLACES.to_vec(), 1..=PLACES.len());
    (vec(zone, 3), uses(), places, vec(uses(), PLACES.len())).prop_map(
        |(zones, own, places, uses)| Server {
            zones,
            own,
            locations: places.into_iter().zip(uses).collect(),
        },
    )
}

impl Server {
    fn written(&self) -> String {
        let mut text = String::from("events {}\nhttp {\n");
        for (number, zone) in self.zones.iter().enumerate() {
            let key = match zone.per_address {
                true => "$binary_remote_addr",
                false => "$server_name",
            };
            let rate = zone.rate.written;
            text.push_str(&format!(
                "  limit_req_zone {key} zone=z{number}:1m rate={rate};\n"
            ));
        }
        text.push_str("  server {\n");
        text.push_str(&self.uses(&self.own));
        for (place, uses) in &self.locations {
            text.push_str(&format!(
                "    location {place} {{\n{}    }}\n",
                self.uses(uses)
            ));
        }
        text.push_str("  }\n}\n");
        text
    }

    fn uses(&self, zones: &[usize]) -> String {
        let one = |number: &usize| {
            let zone = &self.zones[*number];
            let burst = match zone.burst {
                0 => String::new(),
                burst => format!(" burst={burst}"),
            };
            let nodelay = if zone.nodelay { " nodelay" } else { "" };
            format!("      limit_req zone=z{number}{burst}{nodelay};\n")
        };
        zones.iter().map(one).collect()
    }

    /// The zones that a path is under: those of its location, else those of the server.
    fn zones_of(&self, path: &str) -> &[usize] {
        let exact = |place: &str| place.strip_prefix("= ") == Some(path);
        let prefix = |place: &'static str| {
            let start = place.strip_prefix("^~ ").unwrap_or(place);
            (start.starts_with('/') && path.starts_with(start)).then_some(start.len())
        };
        let found = self.locations.iter().find(|(place, _)| exact(place));
        let longest = || {
            let fits = self
                .locations
                .iter()
                .filter(|(place, _)| prefix(place).is_some());
            fits.max_by_key(|(place, _)| prefix(place))
        };
        match found.or_else(longest) {
            Some((_, uses)) if !uses.is_empty() => uses,
            _ => &self.own,
        }
    }
}

/// What nginx has counted: by zone and key, how much is in the bucket and since when.
#[derive(Default)]
struct Model(BTreeMap<(usize, &'static str), (u64, u64)>);

impl Model {
    fn denies(&mut self, server: &Server, path: &str, address: &'static str, now: u64) -> bool {
        let mut after = Vec::new();
        for number in server.zones_of(path) {
            let zone = &server.zones[*number];
            let key = (*number, if zone.per_address { address } else { "" });
            let excess = match self.0.get(&key) {
                None => 0,
                Some((excess, last)) => {
                    let left = zone.rate.millis * (now - last) / 1_000;
                    (excess + 1_000).saturating_sub(left)
                }
            };
            if excess > u64::from(zone.burst) * 1_000 {
                return true;
            }
            after.push((key, (excess, now)));
        }
        self.0.extend(after);
        false
    }
}

/// Milliseconds, all of them such that nothing is rounded.
fn pause() -> impl Strategy<Value = u64> {
    select(&[0, 0, 0, 0, 0, 10, 100, 500, 1_000, 3_000, 10_000, 60_000][..])
}

fn policy(server: &Server) -> String {
    let scratch = Scratch::new();
    let file = scratch.file("nginx.conf", &server.written());
    let (policy, _) = scratch.import(&["nginx", &file]);
    scratch.cases_hold();
    policy
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn limits_of_nginx_decide_as_its_leaky_buckets(
        server in server(),
        traffic in vec((pause(), select(&PATHS[..]), select(&ADDRESSES[..])), 1..80),
    ) {
        let policy = policy(&server);
        let events = traffic.iter().map(|(pause, path, address)| {
            (*pause, json!({"op": "request", "ip": address, "method": "GET", "path": path}))
        });
        let ours = denials(&policy, events);
        let (mut model, mut now) = (Model::default(), 0);
        let theirs: Vec<bool> = traffic.iter().map(|(pause, path, address)| {
            now += pause;
            model.denies(&server, path, address, now)
        }).collect();
        prop_assert_eq!(ours, theirs, "{}\n{}", server.written(), policy);
    }
}

#[test]
fn a_rate_that_nginx_rounds_is_announced() {
    let said = |rate: &str| {
        let scratch = Scratch::new();
        let text = format!(
            "http {{ limit_req_zone $binary_remote_addr zone=z:1m rate={rate};\n\
             server {{ location / {{ limit_req zone=z; }} }} }}"
        );
        let file = scratch.file("nginx.conf", &text);
        scratch.import(&["nginx", &file]).0
    };
    assert!(said("7r/m").contains("nginx rounds a rate down"));
    for exact in ["6r/m", "7r/s"] {
        assert!(!said(exact).contains("rounds"), "{exact}");
    }
}

/// Two zones, of which one location uses both and another one.
fn both_and_one() -> Server {
    let zone = |burst| Zone {
        per_address: true,
        rate: RATES[3],
        burst,
        nodelay: true,
    };
    Server {
        zones: vec![zone(1), zone(3)],
        own: Vec::new(),
        locations: vec![("/a", vec![0, 1]), ("/b", vec![1]), ("= /a/b", vec![1, 0])],
    }
}

#[test]
fn the_model_denies_what_a_real_nginx_denies() {
    let server = both_and_one();
    // One request leaves a bucket in ten seconds: far more than this takes.
    let paths = ["/a", "/a", "/a", "/a/b", "/b", "/b", "/b", "/x"];
    let written = server.written();
    let (_, http) = written.split_once("http {\n").unwrap();
    let http = http.strip_suffix("}\n").unwrap();
    let listening = http.replace("server {", "server {\n    listen 127.0.0.1:8000;");
    let nginx = Nginx::start(&listening);
    let theirs = paths.map(|path| {
        let reply = Client::connect(nginx.address).send("GET", path, &[], b"");
        assert!([404, 503].contains(&reply.status), "{}", reply.status);
        reply.status == 503
    });
    let mut model = Model::default();
    let model = paths.map(|path| model.denies(&server, path, "127.0.0.1", 0));
    assert_eq!(model, theirs);
    assert_eq!(
        theirs,
        [false, false, true, true, false, false, true, false]
    );
}
