//! A real Envoy as a child of a test, with the configuration of the documentation.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::common::{Client, Reply, wait};
use crate::redis_server::eventually;

/// Where `scripts/test` installs it.
pub(crate) fn binary() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let installed = root.join("target/tools/envoy/envoy/_bin/envoy");
    if installed.exists() {
        installed
    } else {
        PathBuf::from("envoy")
    }
}

/// Blocks of a language on a page of the documentation.
pub(crate) fn blocks(page: &str, language: &str) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(root.join("docs").join(page)).unwrap();
    let fence = format!("```{language}\n");
    let found = text.split(&fence).skip(1);
    found
        .map(|after| after.split_once("```").unwrap().0.to_owned())
        .collect()
}

/// The first of them.
pub(crate) fn block(page: &str, language: &str) -> String {
    blocks(page, language).swap_remove(0)
}

/// A running Envoy, ended when dropped.
pub(crate) struct Envoy {
    child: Child,
    admin: SocketAddr,
    pub(crate) edge: SocketAddr,
    _home: TempDir,
}

impl Envoy {
    /// Starts with this configuration on free ports.
    pub(crate) fn start(config: &str) -> Self {
        Self::start_with(config, &[])
    }

    /// The same with more variables.
    pub(crate) fn start_with(config: &str, env: &[(&str, &str)]) -> Self {
        let home = tempfile::tempdir().unwrap();
        let (file, admin_file) = (home.path().join("envoy.yaml"), home.path().join("admin"));
        std::fs::write(&file, config).unwrap();
        let child = Command::new(binary())
            .args([
                "--disable-hot-restart",
                "--concurrency",
                "1",
                "--log-level",
                "error",
            ])
            .args(["--admin-address-path", admin_file.to_str().unwrap()])
            .args(["-c", file.to_str().unwrap()])
            .envs(env.iter().copied())
            .stdout(Stdio::null())
            .spawn()
            .expect("Envoy; `scripts/test` installs it");
        let mut started = Self {
            child,
            admin: ([127, 0, 0, 1], 0).into(),
            edge: ([127, 0, 0, 1], 0).into(),
            _home: home,
        };
        eventually("Envoy says where it administers", || {
            let written = std::fs::read_to_string(&admin_file).unwrap_or_default();
            let address = written.trim().parse();
            address.map(|address| started.admin = address).is_ok()
        });
        eventually("Envoy is ready", || started.ask("/ready").status == 200);
        let listeners: Value = started.ask("/listeners?format=json").json();
        let address = &listeners["listener_statuses"][0]["local_address"]["socket_address"];
        let port = u16::try_from(address["port_value"].as_u64().unwrap()).unwrap();
        started.edge.set_port(port);
        started
    }

    /// A question to its own administration.
    fn ask(&self, path: &str) -> Reply {
        let mut client = Client::connect(self.admin);
        client.send("GET", path, &[], b"")
    }

    /// A request through it.
    pub(crate) fn get(&self, path: &str, headers: &[(&str, &str)]) -> Reply {
        Client::connect(self.edge).send("GET", path, headers, b"")
    }

    /// The statuses of so many requests.
    pub(crate) fn statuses(&self, count: usize, path: &str) -> Vec<u16> {
        (0..count).map(|_| self.get(path, &[]).status).collect()
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = wait(&mut self.child);
    }
}
