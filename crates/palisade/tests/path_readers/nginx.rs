//! A real nginx as a child of a test.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::common::{Client, PATIENCE, signal};

/// nginx with a configuration of its own, ended with the test.
pub(crate) struct Nginx {
    child: Child,
    pub(crate) address: std::net::SocketAddr,
    _home: TempDir,
}

impl Nginx {
    /// Starts with what stands in `http`, on a free port instead of 127.0.0.1:8000.
    pub(crate) fn start(server: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().display();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let shown = "listen 127.0.0.1:8000;";
        assert!(server.contains(shown), "the page listens on loopback");
        let server = server.replace(shown, &format!("listen {address};"));
        let paths: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {folder}/{kind};\n"))
            .concat();
        // The master is root where the tests are; its workers stay so.
        let config = format!(
            "user root;\npid {folder}/pid;\nerror_log {folder}/error.log;\ndaemon off;\n\
             worker_processes 1;\nevents {{}}\nhttp {{\naccess_log off;\n{paths}{server}}}\n"
        );
        std::fs::write(home.path().join("nginx.conf"), config).unwrap();
        let child = Command::new("nginx")
            .arg("-p")
            .arg(home.path())
            .args(["-e", "stderr", "-c", "nginx.conf"])
            .stdin(Stdio::null())
            .spawn()
            .expect("nginx, which `scripts/test` installs");
        let mut nginx = Self {
            child,
            address,
            _home: home,
        };
        nginx.wait_until_it_listens();
        nginx
    }

    fn wait_until_it_listens(&mut self) {
        for _ in 0..PATIENCE.as_millis() / 20 {
            assert!(self.child.try_wait().unwrap().is_none(), "nginx ended");
            if Client::try_connect(self.address).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("nginx does not listen");
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // A quick shutdown, which takes the worker with it.
        signal(self.child.id(), "TERM");
        let _ = self.child.wait();
    }
}
