//! A real nginx as a child process of a test.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

/// Attempts, 20 ms apart, to connect to nginx before the test gives up: a minute.
const LOOKS_MAX: u32 = 3_000;

/// nginx with its own configuration, which ends with the test.
pub(crate) struct Nginx {
    child: Child,
    pub(crate) address: SocketAddr,
    _home: TempDir,
}

impl Nginx {
    /// Starts nginx with `server` in its `http` block, on a free port instead of 127.0.0.1:8000.
    pub(crate) fn start(server: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().display();
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let shown = "listen 127.0.0.1:8000;";
        assert!(server.contains(shown), "it listens on loopback");
        let server = server.replace(shown, &format!("listen {address};"));
        let paths: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {folder}/{kind};\n"))
            .concat();
        // Where tests run as root, the workers must stay root as well.
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
        for _ in 0..LOOKS_MAX {
            assert!(self.child.try_wait().unwrap().is_none(), "nginx ended");
            if TcpStream::connect(self.address).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("nginx does not listen");
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // A fast shutdown, which also ends the worker.
        let _ = Command::new("kill")
            .arg(self.child.id().to_string())
            .status();
        let _ = self.child.wait();
    }
}
