//! Redis clients within TLS, with and without certificates of their own.

use std::path::Path;

use super::*;
use crate::certificates::{blocks, certificates, sh};

/// A service with this block of docs/tls.md, and where it listens for Redis clients.
fn within(tls: &str) -> (Server, SocketAddr) {
    let home = tempfile::tempdir().unwrap();
    certificates(home.path());
    let server = Server::at(
        home,
        &Options {
            args: &["--resp", "127.0.0.1:0"],
            config: Some(&format!("{tls}[store]\nurl = \"memory:\"\n")),
            ..Options::default()
        },
    );
    let address = common::address_of(&server.banner, "RESP").unwrap();
    (server, address)
}

/// What a client says with these arguments; `None` if it is not let in.
fn redis_cli(home: &Path, address: SocketAddr, args: &str) -> Option<String> {
    let port = address.port();
    let script = format!("timeout 20 redis-cli -p {port} {args} CL.THROTTLE ann 2 1 60 2>&1");
    let (_, said) = sh(home, &script);
    let numbers = said.lines().all(|line| line.parse::<i64>().is_ok());
    (numbers && !said.is_empty()).then(|| said.replace('\n', " ").trim_end().to_owned())
}

#[test]
fn tls_redis_cli_and_redis_py_do_what_the_page_says() {
    let (server, address) = within(&blocks("toml")[0]);
    let home = server.home.path();
    let shown = clients::blocks("sh", address.port());
    let (asked, said) = sh(home, shown.last().unwrap());
    assert!(asked && said == "PONG\n", "{said}");
    let trusting = redis_cli(home, address, "--tls --cacert ca.pem");
    assert_eq!(trusting.as_deref(), Some("0 3 2 -1 60"));
    assert_eq!(redis_cli(home, address, ""), None, "plain text");
    let python = format!(
        "import redis\nclient = redis.Redis.from_url('rediss://localhost:{}', \
         ssl_ca_certs='ca.pem')\nprint(client.execute_command('CL.THROTTLE', 'bob', 2, 1, 60))",
        address.port()
    );
    let mut command = std::process::Command::new(clients::tool("bin/python", "python3"));
    let said = clients::run(command.current_dir(home).args(["-c", &python]));
    assert_eq!(said, "[0, 3, 2, -1, 60]\n");
}

#[test]
fn tls_a_redis_client_without_a_certificate_of_the_authority_is_refused() {
    let (server, address) = within(&blocks("toml")[1]);
    let home = server.home.path();
    let forged = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes \
                  -days 1 -subj /CN=caller -keyout forged.key -out forged.pem";
    assert!(sh(home, forged).0);
    for args in [
        "--tls --cacert ca.pem",
        "--tls --cacert ca.pem --cert forged.pem --key forged.key",
        "",
    ] {
        assert_eq!(redis_cli(home, address, args), None, "{args}");
    }
    let own = "--tls --cacert ca.pem --cert caller.pem --key caller.key";
    let admitted = redis_cli(home, address, own);
    assert_eq!(
        admitted.as_deref(),
        Some("0 3 2 -1 60"),
        "the first of three"
    );
}
