//! Real applications as child processes, none of which knows of Palisade.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::common::{Client, PATIENCE};

/// An application, ended when dropped.
pub(crate) struct App {
    child: Child,
    pub(crate) address: SocketAddr,
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

    fn start(mut command: Command) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let home = tempfile::tempdir().unwrap();
        let child = command
            .arg(address.port().to_string())
            .current_dir(home.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the application, which `scripts/test` installs into target/tools");
        let mut app = Self {
            child,
            address,
            _home: home,
        };
        app.wait();
        app
    }

    fn wait(&mut self) {
        let until = Instant::now() + PATIENCE;
        while TcpStream::connect(self.address).is_err() {
            let running = self.child.try_wait().unwrap().is_none();
            assert!(running, "the application ended at its start");
            assert!(Instant::now() < until, "the application does not listen");
            std::thread::sleep(Duration::from_millis(20));
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
