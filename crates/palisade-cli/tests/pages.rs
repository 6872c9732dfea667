//! The shell blocks of the pages do what the pages say, and every command on them is one that
//! the program has.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a test fails by panicking and says why"
)]

#[path = "pages/commands.rs"]
mod commands;
mod common;
#[path = "pages/outage.rs"]
mod outage;
#[path = "../../palisade-store/tests/common/redis_server.rs"]
mod redis_server;
#[path = "common/shell.rs"]
mod shell;
#[path = "common/upstream.rs"]
mod upstream;

use std::path::{Path, PathBuf};

use redis_server::RedisServer;
use serde_json::Value;
use shell::{Shell, blocks, codes, root, ten_then_refused};
use upstream::Upstream;

/// The only block of this language on a page.
fn only(page: &str, language: &str) -> String {
    let mut found = blocks(page, language);
    assert_eq!(found.len(), 1, "{page} has other blocks of {language}");
    found.remove(0)
}

/// What `scripts/test` installs, or the machine's own.
fn tool(path: &str) -> PathBuf {
    let installed = root().join("target/tools").join(path);
    match installed.exists() {
        true => installed,
        false => {
            let name = Path::new(path).file_name().unwrap();
            let found = std::env::var_os("PATH").unwrap();
            let mut folders = std::env::split_paths(&found);
            let found = folders.find(|folder| folder.join(name).exists());
            let folder = found.unwrap_or_else(|| panic!("{name:?}; `scripts/test` installs it"));
            folder.join(name)
        }
    }
}

/// A shell with an application where the pages have theirs.
fn before(app: &Upstream) -> Shell {
    Shell::new().at("3000", app.address.port())
}

#[test]
fn the_first_policy_of_the_readme_does_what_it_says() {
    let shell = Shell::new();
    let [_refusal, serve, test, _login] = &blocks("README.md", "sh")[..] else {
        panic!("the README has other blocks");
    };
    let [policy, _dependencies] = &blocks("README.md", "toml")[..] else {
        panic!("the README has other tables");
    };
    shell.put("policy.toml", policy);
    shell.put("cases.jsonl", &only("README.md", "json"));
    let install = "cargo install --path crates/palisade-cli\n";
    assert!(serve.starts_with(install));
    assert!(root().join("crates/palisade-cli/Cargo.toml").is_file());
    let printed = shell.run(&serve.replace(install, ""));
    let answer: Value = serde_json::from_str(printed.lines().last().unwrap()).unwrap();
    assert_eq!(answer["decision"], "allow", "{printed}");
    let limits = answer["limits"].as_array().unwrap().iter();
    let named: Vec<_> = limits
        .map(|limit| limit["name"].as_str().unwrap())
        .collect();
    assert!(named.contains(&"reports-per-org"), "{answer}");
    assert_eq!(answer["status"], 200);
    let told = shell.run(test);
    assert!(told.contains("1 events in 1 files, 0 differ"), "{told}");
}

#[test]
fn the_first_refusal_of_the_readme_comes_at_the_eleventh() {
    let shell = Shell::new();
    let ready = "palisade serve &\nuntil curl -fs -o /dev/null localhost:9090/health/ready; do sleep 0.1; done\n";
    let asked = shell.run(&format!("{ready}{}", blocks("README.md", "sh")[0]));
    let answers = asked.lines().filter(|line| line.starts_with("\"status\":"));
    let mut wanted = vec!["\"status\":200"; 10];
    wanted.push("\"status\":429");
    assert_eq!(answers.collect::<Vec<_>>(), wanted, "{asked}");
}

#[test]
fn b_spend_a_model_endpoint_has_its_budget_as_the_page_says() {
    let shell = Shell::new();
    let proxy = format!("127.0.0.1:{}", shell.port("8000"));
    let shell = shell.with("PALISADE_PROXY__LISTEN", &proxy);
    let [policy, prices] = &blocks("docs/llm.md", "toml")[..] else {
        panic!("the page has other tables");
    };
    shell.put("policy.toml", policy);
    let repository = root().join("docs/examples/llm/model.py");
    let script = only("docs/llm.md", "sh").replace(
        "docs/examples/llm/model.py",
        &repository.display().to_string(),
    );
    // The shell block names the port as an argument.
    let script = script.replace(" 3000 &", &format!(" {} &", shell.port("3000")));
    let printed = shell.run(&script);
    let shown: Value = serde_json::from_str(&only("docs/llm.md", "json")).unwrap();
    let answers: Vec<Value> = printed
        .lines()
        // Audit events are printed, too.
        .filter(|line| !line.contains("\"event\""))
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let [first, second, third] = &answers[..] else {
        panic!("{printed}");
    };
    assert_eq!(first["usage"]["total_tokens"], 40);
    assert_eq!(second["usage"]["total_tokens"], 3_010);
    assert_eq!(third, &shown, "{printed}");
    let (spend, limit) = prices.split_once("\n\n").unwrap();
    let both = policy.replace("[route.spend]\n", &format!("{spend}\n"));
    shell.put("policy.toml", &format!("{both}\n{limit}"));
    shell.run("palisade check policy.toml");
}

#[test]
fn nginx_refuses_the_eleventh_as_the_page_says() {
    let app = Upstream::start();
    let shell = before(&app);
    let reload = "nginx -s reload\n";
    let script = only("docs/nginx.md", "sh");
    assert!(script.contains(reload));
    shell.put("limited.conf", &only("docs/nginx.md", "nginx"));
    let around = "daemon off; pid nginx.pid; error_log stderr; events {} \
                  http { access_log off; include limited.conf; }\n";
    shell.put("nginx.conf", around);
    // It is not running yet: to start it is to reload it.
    let start = "nginx -p \"$PWD\" -e stderr -c nginx.conf &\n";
    ten_then_refused(&shell.run(&script.replace(reload, start)));
}

#[test]
fn caddy_refuses_the_eleventh_as_the_page_says() {
    let app = Upstream::start();
    let shell = before(&app);
    shell.program("caddy", &tool("gateways/bin/caddy"));
    // Two Caddys of one host would share the port that it is administered by.
    let site = only("docs/caddy.md", "caddy");
    shell.put("Caddyfile", &format!("{{\n\tadmin off\n}}\n{site}"));
    ten_then_refused(&shell.run(&only("docs/caddy.md", "sh")));
}

#[test]
fn traefik_refuses_the_eleventh_as_the_page_says() {
    let app = Upstream::start();
    let shell = before(&app);
    shell.program("traefik", &tool("gateways/bin/traefik"));
    let files = blocks("docs/traefik.md", "yaml");
    shell.put("traefik.yml", &files[0]);
    shell.put("routes.yml", &files[1]);
    ten_then_refused(&shell.run(&only("docs/traefik.md", "sh")));
}

#[test]
fn haproxy_refuses_the_eleventh_as_the_page_says() {
    let app = Upstream::start();
    let shell = before(&app);
    shell.put("haproxy.cfg", &only("docs/haproxy.md", "haproxy"));
    ten_then_refused(&shell.run(&only("docs/haproxy.md", "sh")));
}

#[test]
fn envoy_refuses_the_sixth_as_the_page_says() {
    let app = Upstream::start();
    let shell = before(&app);
    shell.program("envoy", &tool("envoy/envoy/_bin/envoy"));
    shell.put("policy.toml", &blocks("docs/envoy.md", "toml")[0]);
    // A busy machine has more time than the page gives it, and Envoys of one host do not meet.
    let config = blocks("docs/envoy.md", "yaml")[0].replace("timeout: 0.2s", "timeout: 5s");
    shell.put("envoy.yaml", &config);
    let script = only("docs/envoy.md", "sh");
    let started = "envoy -c envoy.yaml";
    assert!(script.contains(started));
    let alone = format!("{started} --disable-hot-restart --log-level error");
    let printed = shell.run(&script.replace(started, &alone));
    assert_eq!(codes(&printed), [200, 200, 200, 200, 200, 429, 429]);
}

#[test]
fn a_store_is_measured_as_the_page_says() {
    let redis = RedisServer::start();
    let shell = Shell::new();
    let command = only("docs/shared-stores.md", "sh");
    let here = command
        .replace("127.0.0.1:6379", &format!("127.0.0.1:{}", redis.port))
        .replace('\n', " --seconds 1\n");
    assert_ne!(here, command);
    let printed = shell.run(&here);
    for figure in ["latency", "1.000 per decision", "\nover-admitted   0\n"] {
        assert!(printed.contains(figure), "{figure}: {printed}");
    }
    assert_eq!(
        redis.says(&["DBSIZE"]).trim(),
        ":0",
        "what it made is removed"
    );
}
