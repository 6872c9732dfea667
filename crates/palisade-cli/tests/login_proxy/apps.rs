//! Real applications as child processes, none of which knows of Palisade.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use tempfile::TempDir;

use crate::common::Client;

/// An application, ended when dropped.
pub(crate) struct App {
    child: Child,
    pub(crate) address: SocketAddr,
    /// Open for as long as it runs: it may say more.
    _said: BufReader<ChildStdout>,
    _home: TempDir,
}

fn here() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/login_proxy")
}

/// What `scripts/test` installs.
fn tools() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/tools")
}

impl App {
    pub(crate) fn flask() -> Self {
        Self::python("flask_login.py")
    }

    pub(crate) fn django() -> Self {
        Self::python("django_login.py")
    }

    pub(crate) fn express() -> Self {
        let mut command = Command::new("node");
        let modules = tools().join("express/node_modules");
        command
            .arg(here().join("express_login.js"))
            .env("NODE_PATH", modules);
        Self::start(command)
    }

    fn python(script: &str) -> Self {
        let mut command = Command::new(tools().join("logins/bin/python"));
        command.arg(here().join(script));
        Self::start(command)
    }

    /// It listens on a port that the system picks, and says on which. One that was picked
    /// before it starts could be somebody else's by the time it listens: that takes seconds on
    /// a busy machine, and every connection of the other tests takes a port as well.
    fn start(mut command: Command) -> Self {
        let home = tempfile::tempdir().unwrap();
        let mut child = command
            .current_dir(home.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the application, which `scripts/test` installs into target/tools");
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let mut port = String::new();
        said.read_line(&mut port).unwrap();
        let port: u16 = port.trim().parse().expect("the port of the application");
        Self {
            child,
            address: (Ipv4Addr::LOCALHOST, port).into(),
            _said: said,
            _home: home,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// How many credentials it has looked at (Django: found wrong).
    pub(crate) fn verified(&self) -> u32 {
        let reply = Client::connect(self.address).send("GET", "/verified", &[], b"");
        reply.text().parse().unwrap()
    }
}

impl Drop for App {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
