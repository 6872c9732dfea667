//! A started `palisade serve` on free ports, and a plain HTTP client.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

/// Nothing in these tests takes longer, however busy the machine is.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The binary with a clean environment.
pub(crate) fn palisade() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_palisade"));
    command
        .env_clear()
        .env("PALISADE_LOG__LEVEL", "error")
        .stdin(Stdio::null());
    command
}

/// A running service, ended when dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) listen: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) proxy: Option<SocketAddr>,
    /// Everything printed at the start.
    pub(crate) banner: String,
    /// What has been printed since.
    pub(crate) printed: Arc<Mutex<String>>,
    /// Its working directory.
    pub(crate) home: TempDir,
}

/// How to start a service.
#[derive(Default)]
pub(crate) struct Options<'a> {
    pub(crate) args: &'a [&'a str],
    pub(crate) config: Option<&'a str>,
    pub(crate) env: &'a [(&'a str, &'a str)],
}

impl Server {
    /// Starts with the embedded default policy.
    pub(crate) fn start() -> Self {
        Self::with(&Options::default())
    }

    /// Starts with this configuration file.
    pub(crate) fn configured(config: &str) -> Self {
        Self::with(&Options {
            config: Some(config),
            ..Options::default()
        })
    }

    pub(crate) fn with(options: &Options<'_>) -> Self {
        Self::at(tempfile::tempdir().unwrap(), options)
    }

    /// Starts in a directory that may hold data of an earlier run.
    pub(crate) fn at(home: TempDir, options: &Options<'_>) -> Self {
        let mut command = palisade();
        command
            .current_dir(home.path())
            .arg("serve")
            .args(options.args)
            .envs(options.env.iter().copied())
            .stdout(Stdio::piped());
        for address in ["--listen", "--admin"] {
            if !options.args.contains(&address) {
                command.args([address, "127.0.0.1:0"]);
            }
        }
        if let Some(config) = options.config {
            std::fs::write(home.path().join("palisade.toml"), config).unwrap();
            command.args(["--config", "palisade.toml"]);
        }
        Self::run(command, home)
    }

    /// Starts by a command whose output is the service's.
    pub(crate) fn run(mut command: Command, home: TempDir) -> Self {
        let mut child = command.spawn().unwrap();
        let (banner, rest) = read_banner(&mut child);
        let printed = follow(rest);
        let address = |name: &str| address_of(&banner, name);
        Self {
            listen: address("decision API").unwrap(),
            admin: address("admin").unwrap(),
            proxy: address("proxy"),
            banner,
            printed,
            home,
            child,
        }
    }

    /// A connection to the decision API.
    pub(crate) fn connect(&self) -> Client {
        Client::connect(self.listen)
    }

    /// Asks the decision API once.
    pub(crate) fn post(&self, path: &str, body: &str) -> Reply {
        self.connect().send("POST", path, &[], body.as_bytes())
    }

    /// Asks the admin address once.
    pub(crate) fn admin_get(&self, path: &str) -> Reply {
        Client::connect(self.admin).send("GET", path, &[], b"")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks the process to end, as a supervisor would.
    pub(crate) fn terminate(&self) {
        signal(self.pid(), "TERM");
    }

    /// Waits for the end; the exit code and the directory it ran in.
    pub(crate) fn wait(mut self) -> (Option<i32>, TempDir) {
        let code = wait(&mut self.child);
        let home = std::mem::replace(&mut self.home, tempfile::tempdir().unwrap());
        (code, home)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Sends a signal to a process of ours. One that is stopped has stopped afterwards: a thread of
/// it may go on for a moment, and answer.
pub(crate) fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill")
        .args([&format!("-{name}"), &pid.to_string()])
        .status();
    assert!(sent.unwrap().success());
    if name == "STOP" {
        eventually("it has stopped", || has_stopped(pid));
    }
}

/// Whether every thread of a process is stopped.
fn has_stopped(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    threads.flatten().all(|thread| {
        let status = std::fs::read_to_string(thread.path().join("status"));
        status.is_ok_and(|status| status.contains("State:\tT"))
    })
}

/// Waits for a child within [`PATIENCE`].
pub(crate) fn wait(child: &mut Child) -> Option<i32> {
    for _ in 0..PATIENCE.as_millis() / 20 {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = child.kill();
    panic!("the process did not end");
}

/// Waits for a condition within [`PATIENCE`].
pub(crate) fn eventually(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..PATIENCE.as_millis() / 20 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("never: {what}");
}

/// Reads until the store's and policy's rows have been printed and a pause follows.
fn read_banner(child: &mut Child) -> (String, BufReader<std::process::ChildStdout>) {
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut banner = String::new();
    while !banner.contains("\nready\n") {
        let read = lines.read_line(&mut banner).unwrap();
        assert_ne!(read, 0, "the service ended at its start:\n{banner}");
    }
    (banner, lines)
}

/// Keeps reading: a pipe that nobody empties would hold the service up.
fn follow(lines: BufReader<std::process::ChildStdout>) -> Arc<Mutex<String>> {
    let printed = Arc::<Mutex<String>>::default();
    let into = Arc::clone(&printed);
    std::thread::spawn(move || {
        for line in lines.lines().map_while(Result::ok) {
            let mut all = into.lock().unwrap();
            all.push_str(&line);
            all.push('\n');
        }
    });
    printed
}

pub(crate) fn address_of(banner: &str, name: &str) -> Option<SocketAddr> {
    let row = banner
        .lines()
        .find(|line| line.trim_start().starts_with(name))?;
    let rest = row.split("://").nth(1)?;
    rest.split_whitespace().next()?.parse().ok()
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self
            .headers
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|_| panic!("not JSON: {}", String::from_utf8_lossy(&self.body)))
    }
}

/// One keep-alive connection.
pub(crate) struct Client {
    pub(crate) stream: BufReader<TcpStream>,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        Self::try_connect(address).unwrap()
    }

    pub(crate) fn try_connect(address: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self {
            stream: BufReader::new(stream),
        })
    }

    pub(crate) fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Reply {
        self.try_send(method, path, headers, body).unwrap()
    }

    pub(crate) fn try_send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> std::io::Result<Reply> {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: test\r\n");
        if !headers
            .iter()
            .any(|(name, _)| name.eq_ignore_ascii_case("user-agent"))
        {
            head.push_str("User-Agent: palisade-test\r\n");
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() || method == "POST" {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(body);
        self.write(&bytes)?;
        self.read_reply()
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Reads one answer with a length or in chunks.
    pub(crate) fn read_reply(&mut self) -> std::io::Result<Reply> {
        let (status, headers) = self.read_head()?;
        let mut reply = Reply {
            status,
            headers,
            body: Vec::new(),
        };
        if reply.status == 101 || reply.status == 204 || reply.status == 304 {
            return Ok(reply);
        }
        if let Some(length) = reply.header("content-length") {
            reply.body = vec![0; length.parse().unwrap()];
            self.stream.read_exact(&mut reply.body)?;
        } else if reply.header("transfer-encoding") == Some("chunked") {
            reply.body = self.read_chunks()?;
        }
        Ok(reply)
    }

    pub(crate) fn read_head(&mut self) -> std::io::Result<(u16, Vec<(String, String)>)> {
        let first = self.read_line()?;
        let status = first.split(' ').nth(1).and_then(|code| code.parse().ok());
        let mut headers = Vec::new();
        loop {
            let line = self.read_line()?;
            match line.split_once(':') {
                Some((name, value)) => headers.push((name.to_owned(), value.trim().to_owned())),
                None => return Ok((status.unwrap_or(0), headers)),
            }
        }
    }

    fn read_line(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }

    fn read_chunks(&mut self) -> std::io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let size = usize::from_str_radix(&self.read_line()?, 16).unwrap();
            let mut chunk = vec![0; size + 2];
            self.stream.read_exact(&mut chunk)?;
            body.extend_from_slice(&chunk[..size]);
            if size == 0 {
                return Ok(body);
            }
        }
    }
}

/// Facts of a sign-in from `ip`.
pub(crate) fn sign_in(ip: &str) -> String {
    format!(r#"{{"ip":"{ip}","method":"POST","path":"/auth/token"}}"#)
}

/// A path below a directory, as an argument.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
