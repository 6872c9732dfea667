//! Real Redis servers as children of a test: on free ports, in directories of their
//! own, ended by their own process id.

#![allow(dead_code, reason = "every test binary uses a part of it")]
#![expect(clippy::expect_used, clippy::panic, reason = "part of the tests")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

/// Longest time that a server may take to come up.
const PATIENCE: Duration = Duration::from_secs(20);

/// Message that names the package to install.
const MISSING: &str = "`redis-server` (7 or later) is needed for this test; install the package \
                       `redis-server`, on Debian with `apt-get install redis-server`";

/// One server.
pub(crate) struct RedisServer {
    child: Option<Child>,
    pub(crate) port: u16,
    args: Vec<String>,
    dir: TempDir,
}

/// A port that was free a moment ago, and so was a cluster's second port, 10,000 above it.
pub(crate) fn free_port() -> u16 {
    loop {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("a bound socket").port();
        if port < 55_000 && TcpListener::bind(("127.0.0.1", port + 10_000)).is_ok() {
            return port;
        }
    }
}

/// Waits until `check` holds, at most [`PATIENCE`].
pub(crate) fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let steps = PATIENCE.as_millis() / 20;
    for _ in 0..steps {
        if check() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{what} did not happen within {PATIENCE:?}");
}

impl RedisServer {
    /// An empty server that keeps nothing.
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// Like [`RedisServer::start`], with more arguments.
    pub(crate) fn start_with(args: &[&str]) -> Self {
        let mut server = Self {
            child: None,
            port: free_port(),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            dir: tempfile::tempdir().expect("a directory"),
        };
        eventually("the server's start", || {
            server.is_started() || {
                server.port = free_port();
                false
            }
        });
        server
    }

    /// Folder of the server's files.
    pub(crate) fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Starts the server; false if it ended at once, for example because its port was taken
    /// meanwhile.
    fn is_started(&mut self) -> bool {
        let child = Command::new("redis-server")
            .args(["--port", &self.port.to_string()])
            .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .args(&self.args)
            .current_dir(self.dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|_| panic!("{MISSING}"));
        let own = format!("process_id:{}\r\n", child.id());
        self.child = Some(child);
        let mut has_ended = false;
        eventually("the server's first answer", || {
            // A server that refuses the question has answered all the same, and is up.
            let answer = self.says(&["INFO", "server"]);
            let ended = self.child.as_mut().map(Child::try_wait);
            has_ended = !matches!(ended, Some(Ok(None)));
            has_ended || answer.contains(&own) || answer.starts_with("-NO")
        });
        !has_ended
    }

    /// Process id, while the server runs.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Kills the server at once, as a crash would.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts the server again on the same port, empty.
    pub(crate) fn restart(&mut self) {
        self.kill();
        eventually("the server's new start", || self.is_started());
    }

    /// Freezes the process without ending it: connections stay open, and nothing answers.
    pub(crate) fn freeze(&self) {
        self.signal("-STOP");
    }

    /// Lets a frozen process go on.
    pub(crate) fn thaw(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let Some(child) = &self.child else { return };
        let status = Command::new("kill")
            .args([signal, &child.id().to_string()])
            .status();
        assert!(status.is_ok_and(|status| status.success()));
    }

    /// Makes the server answer nobody for `ms` milliseconds.
    pub(crate) fn pause(&self, ms: u32) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("a connection");
        let command = format!("CLIENT PAUSE {ms} ALL\r\n");
        stream.write_all(command.as_bytes()).expect("a live server");
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).expect("an answer");
        assert_eq!(&answer, b"+OK\r\n");
    }

    /// Sends a command over a connection of its own; returns the raw answer, empty if there is
    /// none.
    pub(crate) fn says(&self, words: &[&str]) -> String {
        ask(self.port, words).unwrap_or_default()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn ask(port: u16, words: &[&str]) -> std::io::Result<String> {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_millis(500))?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    let mut command = format!("*{}\r\n", words.len());
    for word in words {
        command.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    // The answer to QUIT ends the stream, so the whole answer can be read.
    command.push_str("*1\r\n$4\r\nQUIT\r\n");
    stream.write_all(command.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    Ok(answer.strip_suffix("+OK\r\n").unwrap_or(&answer).to_owned())
}

/// Six servers: three masters, each with a replica.
pub(crate) struct RedisCluster {
    pub(crate) nodes: Vec<RedisServer>,
}

impl RedisCluster {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// A cluster whose servers have more arguments.
    pub(crate) fn start_with(more: &[&str]) -> Self {
        let mut args = vec![
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            "1000",
            "--cluster-require-full-coverage",
            "no",
        ];
        args.extend(more);
        let nodes: Vec<RedisServer> = (0..6).map(|_| RedisServer::start_with(&args)).collect();
        let addresses = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port));
        let made = Command::new("redis-cli")
            .args(["--cluster", "create"])
            .args(addresses)
            .args(["--cluster-replicas", "1", "--cluster-yes"])
            .stdout(Stdio::null())
            .status();
        assert!(made.expect(MISSING).success(), "the cluster was not made");
        let cluster = Self { nodes };
        eventually("the cluster's agreement", || cluster.is_whole());
        cluster
    }

    fn is_whole(&self) -> bool {
        let knows_replicas = |node: &RedisServer| {
            let slots = node.says(&["CLUSTER", "SLOTS"]);
            self.nodes
                .iter()
                .all(|other| slots.contains(&format!(":{}\r\n", other.port)))
        };
        self.nodes.iter().all(|node| {
            node.says(&["CLUSTER", "INFO"]).contains("cluster_state:ok") && knows_replicas(node)
        })
    }

    pub(crate) fn url(&self) -> String {
        let hosts: Vec<String> = self
            .nodes
            .iter()
            .map(|node| format!("127.0.0.1:{}", node.port))
            .collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    /// Position of the node that is master of the slot of `key` now.
    pub(crate) fn master_of(&self, key: &str) -> usize {
        let index = self.nodes.iter().position(|node| {
            let answer = node.says(&["GET", key]);
            let role = node.says(&["ROLE"]);
            role.contains("master") && !answer.starts_with('-')
        });
        index.expect("a master has the slot")
    }
}
