//! Shell blocks of the documentation, run as they stand: on ports of their own, with `palisade`
//! on the path, in an empty folder. Whatever a block starts ends with it.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::fs;
use std::io::{BufReader, Read};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// How long a block may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);

pub(crate) fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().unwrap()
}

/// The blocks of this language on a page, in their order.
pub(crate) fn blocks(page: &str, language: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join(page)).unwrap();
    let fence = format!("```{language}\n");
    let found = text.split(&fence).skip(1);
    found
        .map(|after| after.split_once("```").unwrap().0.to_owned())
        .collect()
}

/// A folder to run blocks in.
pub(crate) struct Shell {
    pub(crate) home: TempDir,
    /// The ports of the pages, and those that are used instead.
    ports: Vec<(&'static str, u16)>,
    env: Vec<(String, String)>,
}

impl Shell {
    /// The decision API, the administration, what stands in front, and the application.
    pub(crate) fn new() -> Self {
        let pages = [
            "8080", "9090", "8000", "3000", "8081", "8001", "9901", "10000",
        ];
        let held = pages.map(|page| (page, TcpListener::bind("127.0.0.1:0").unwrap()));
        let ports = held.map(|(page, free)| (page, free.local_addr().unwrap().port()));
        let shell = Self {
            home: tempfile::tempdir().unwrap(),
            ports: ports.into(),
            env: Vec::new(),
        };
        let binary = env!("CARGO_BIN_EXE_palisade");
        shell.program("palisade", Path::new(binary));
        let here = |page: &str| format!("127.0.0.1:{}", shell.port(page));
        let listen = here("8080");
        let env = [
            ("PALISADE_SERVER__LISTEN", listen.clone()),
            ("PALISADE_SERVER__ADMIN", here("9090")),
            ("PALISADE_SERVER__GRPC", here("8081")),
            ("PALISADE", format!("http://{listen}")),
            ("PALISADE_LOG__LEVEL", "error".to_owned()),
        ];
        env.into_iter()
            .fold(shell, |shell, (name, value)| shell.with(name, &value))
    }

    /// With a variable of its own.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.env.retain(|(known, _)| known != name);
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With something that is already there at a port of the pages.
    pub(crate) fn at(mut self, page: &'static str, port: u16) -> Self {
        self.ports.retain(|(known, _)| *known != page);
        self.ports.push((page, port));
        self
    }

    pub(crate) fn port(&self, page: &str) -> u16 {
        let found = self.ports.iter().find(|(known, _)| *known == page);
        found.expect("a port of the pages").1
    }

    /// Puts a program on the path, under this name.
    pub(crate) fn program(&self, name: &str, is: &Path) {
        let folder = self.home.path().join("bin");
        fs::create_dir_all(&folder).unwrap();
        std::os::unix::fs::symlink(is, folder.join(name)).unwrap();
    }

    /// A text of the pages with the ports that are used here.
    pub(crate) fn moved(&self, text: &str) -> String {
        self.ports
            .iter()
            .fold(text.to_owned(), |text, (page, free)| {
                text.replace(&format!(":{page}"), &format!(":{free}"))
                    .replace(&format!("port {page}"), &format!("port {free}"))
                    .replace(
                        &format!("port_value: {page}"),
                        &format!("port_value: {free}"),
                    )
            })
    }

    /// Writes a file of the pages into the folder.
    pub(crate) fn put(&self, name: &str, text: &str) {
        fs::write(self.home.path().join(name), self.moved(text)).unwrap();
    }

    /// Runs a block; what it printed. It must end well.
    pub(crate) fn run(&self, script: &str) -> String {
        let (ended_well, printed) = self.ended(&self.moved(script));
        assert!(ended_well, "{script}\n{printed}");
        printed
    }

    /// The shell is the head of a group of its own, which ends with it.
    fn ended(&self, script: &str) -> (bool, String) {
        let path = std::env::var("PATH").unwrap();
        let bin = self.home.path().join("bin");
        let mut child = Command::new("sh")
            .args(["-e", "-c", script])
            .current_dir(self.home.path())
            .env("PATH", format!("{}:{path}", bin.display()))
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let reader = std::thread::spawn(move || {
            let mut printed = Vec::new();
            let _ = out.read_to_end(&mut printed);
            String::from_utf8_lossy(&printed).into_owned()
        });
        let ended_well = ends_well(&mut child);
        // What it left in the background, and itself if it hangs.
        let group = format!("-{}", child.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
        let _ = child.wait();
        (ended_well, reader.join().unwrap())
    }
}

/// Whether it ends well, and in time.
fn ends_well(child: &mut Child) -> bool {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if let Some(status) = child.try_wait().unwrap() {
            return status.success();
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    false
}

/// The status codes in what was printed, in their order.
pub(crate) fn codes(printed: &str) -> Vec<u16> {
    let words = printed.split_whitespace();
    let code = |word: &str| word.parse().ok().filter(|code| (200..600).contains(code));
    words.filter_map(code).collect()
}

/// An address has ten sign-ins a minute.
pub(crate) fn ten_then_refused(printed: &str) {
    let codes = codes(printed);
    let (first, last) = codes.split_at(codes.len().saturating_sub(1));
    assert!(first.ends_with(&[200; 10]) && last == [429], "{printed}");
}
