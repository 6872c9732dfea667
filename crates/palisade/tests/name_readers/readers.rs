//! The programs that read the cases. Each answers with every text that an application could take
//! for the name, or with nothing if it refuses the request.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::corpus::Case;

/// Attempts, 20 ms apart, to connect to PHP's server before the test gives up: a minute.
const CONNECTS_MAX: u32 = 3_000;

/// What one reader finds in each case.
pub(crate) type Findings = Vec<Vec<String>>;

/// The findings of every program, in the order of the cases.
pub(crate) fn read(cases: &[&Case]) -> Vec<(&'static str, Findings)> {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools");
    let python = tools.join("logins/bin/python");
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/name_readers");
    let node_arguments = [here.join("read.mjs"), tools];
    vec![
        (
            "Express",
            scripted(Path::new("node"), &node_arguments, cases),
        ),
        (
            "Flask or Django",
            scripted(&python, &[here.join("read.py")], cases),
        ),
        (
            "Rack",
            scripted(Path::new("ruby"), &[here.join("read.rb")], cases),
        ),
        ("PHP", Php::start(&here.join("read.php")).read(cases)),
    ]
}

fn started(command: &mut Command) -> Child {
    command.spawn().unwrap_or_else(|error| {
        let program = command.get_program().display();
        panic!("`{program}` cannot be started ({error}): `scripts/test` installs it")
    })
}

/// Runs one process that reads all cases, one per line, and answers with an array per line.
fn scripted(program: &Path, arguments: &[PathBuf], cases: &[&Case]) -> Findings {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = started(&mut command);
    let lines: String = cases.iter().map(|case| case.line() + "\n").collect();
    let mut stdin = child.stdin.take().unwrap();
    let writing = std::thread::spawn(move || stdin.write_all(lines.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writing.join().unwrap().unwrap();
    assert!(output.status.success(), "`{}` failed", program.display());
    let found: Findings = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(found.len(), cases.len(), "`{}`", program.display());
    found
}

/// PHP's own server, which ends with the test. Only a server fills `$_POST` from a multipart form.
struct Php {
    child: Child,
    address: SocketAddr,
}

impl Php {
    fn start(script: &Path) -> Self {
        let address = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let mut command = Command::new("php");
        // Without a php.ini, like the official images of PHP.
        command.args(["-n", "-S", &address.to_string()]).arg(script);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = started(&mut command);
        let php = Self { child, address };
        for _ in 0..CONNECTS_MAX {
            if TcpStream::connect(address).is_ok() {
                return php;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("PHP does not listen")
    }

    fn read(&self, cases: &[&Case]) -> Findings {
        cases.iter().map(|case| self.ask(case)).collect()
    }

    fn ask(&self, case: &Case) -> Vec<String> {
        let mut stream = TcpStream::connect(self.address).unwrap();
        let path = serde_json::to_string(&case.path).unwrap();
        let head = format!(
            "POST /login?{} HTTP/1.1\r\nHost: app\r\nConnection: close\r\nX-Path: {path}\r\n\
             Content-Type: {}\r\nContent-Length: {}\r\n\r\n",
            case.query,
            case.kind,
            case.body.len()
        );
        stream
            .write_all(&[head.as_bytes(), &case.body].concat())
            .unwrap();
        let mut answer = BufReader::new(stream);
        let mut line = String::new();
        while answer.read_line(&mut line).unwrap() > 2 {
            line.clear();
        }
        let mut body = String::new();
        answer.read_to_string(&mut body).unwrap();
        // A warning may precede the answer.
        let json = body.lines().last().unwrap_or_default();
        serde_json::from_str(json).unwrap_or_else(|_| panic!("PHP says {body}"))
    }
}

impl Drop for Php {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
