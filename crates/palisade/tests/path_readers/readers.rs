//! The programs that read paths. Each answers with the path that it would route by, spelt like
//! route patterns, or with nothing if it refuses or redirects.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::go_rules::{go, spelt_bytes};
use super::nginx_server::Nginx;

type Answers = Vec<Option<String>>;

/// The answers of every program, in the order of the targets.
pub(crate) fn read(targets: &[&String]) -> Vec<(&'static str, Answers)> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/path_readers");
    let node = scripted(Path::new("node"), &here.join("read.mjs"), targets);
    let python = scripted(&python(), &here.join("read.py"), targets);
    let mut all = Vec::new();
    for (index, name) in ["node, relative", "node, absolute"].into_iter().enumerate() {
        let answers = node.iter().map(|row| row[index].as_deref().map(capital));
        all.push((name, answers.collect()));
    }
    let names = ["urlsplit", "urlparse", "http.server", "wsgi", "asgi"];
    for (index, name) in names.into_iter().enumerate() {
        let answers = python.iter().map(|row| row[index].as_deref().map(spelt));
        all.push((name, answers.collect()));
    }
    all.push((
        "go",
        targets.iter().map(|target| go(target.as_bytes())).collect(),
    ));
    all.push(("nginx", nginx(targets)));
    all
}

fn python() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join("target/tools/uvicorn/bin/python")
}

/// Runs one process that reads all targets, one JSON string per line, and answers with an array per
/// line.
fn scripted(program: &Path, script: &Path, targets: &[&String]) -> Vec<Vec<Option<String>>> {
    let child = Command::new(program)
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = child.unwrap_or_else(|error| {
        panic!(
            "`{}` cannot be started ({error}): `scripts/test` installs it",
            program.display()
        )
    });
    let lines: String = targets
        .iter()
        .map(|target| serde_json::to_string(target).unwrap() + "\n")
        .collect();
    let mut stdin = child.stdin.take().unwrap();
    let writing = std::thread::spawn(move || stdin.write_all(lines.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writing.join().unwrap().unwrap();
    assert!(output.status.success(), "`{}` failed", script.display());
    let rows: Vec<Vec<Option<String>>> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(rows.len(), targets.len());
    rows
}

/// A decoded path in the spelling of route patterns.
fn spelt(path: &str) -> String {
    spelt_bytes(path.as_bytes())
}

/// A path that keeps its escapes, with capital digits.
fn capital(path: &str) -> String {
    let mut parts = path.split('%');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (digits, rest) = part.split_at(part.len().min(2));
        text.push('%');
        text.push_str(&digits.to_ascii_uppercase());
        text.push_str(rest);
    }
    text
}

/// An nginx that answers with its own `$uri`.
const SHOWS_URI: &str = "keepalive_requests 1000000;\nserver {\nlisten 127.0.0.1:8000;\n\
                         location / {\nreturn 200 \"$uri\";\n}\n}\n";

fn nginx(targets: &[&String]) -> Answers {
    let nginx = Nginx::start(SHOWS_URI);
    let mut connection = None;
    targets
        .iter()
        .map(|target| {
            let open = || BufReader::new(TcpStream::connect(nginx.address).unwrap());
            let mut stream = connection.take().unwrap_or_else(open);
            let request = format!("GET {target} HTTP/1.1\r\nhost: app\r\n\r\n");
            stream.get_mut().write_all(request.as_bytes()).unwrap();
            let (status, body) = answer(&mut stream);
            if status == 200 {
                connection = Some(stream);
            }
            (status == 200).then(|| spelt_bytes(&body))
        })
        .collect()
}

fn answer(stream: &mut BufReader<TcpStream>) -> (u16, Vec<u8>) {
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    let status = line.split(' ').nth(1).unwrap().parse().unwrap();
    let mut length = 0;
    loop {
        line.clear();
        stream.read_line(&mut line).unwrap();
        let header = line.trim_end().to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    (status, body)
}
