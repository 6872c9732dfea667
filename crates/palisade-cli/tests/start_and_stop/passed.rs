//! Sockets that a supervisor opens, passes on, and keeps while the service is away.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::common::{Client, PATIENCE, Server, palisade, sign_in};

/// A service with these sockets, passed as systemd does: from descriptor 3 on, with their
/// number and the process they are meant for. A shell moves them there, since a child of a
/// test has no descriptors but the first three.
fn passing(home: &Path, sockets: [OwnedFd; 2], count: &str, args: &[&str]) -> Command {
    let [first, second] = sockets;
    let mut command = Command::new("sh");
    let script = r#"LISTEN_PID=$$ exec "$@" 3<&0 4<&2 0</dev/null 2>"$LOG""#;
    command
        .args(["-c", script, "sh", env!("CARGO_BIN_EXE_palisade"), "serve"])
        .args(args)
        .env_clear()
        .envs([("LISTEN_FDS", count), ("PALISADE_LOG__LEVEL", "error")])
        .env("LOG", home.join("log"))
        .current_dir(home)
        .stdin(Stdio::from(first))
        .stdout(Stdio::piped())
        .stderr(Stdio::from(second));
    command
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Another descriptor of the same socket.
fn copy(socket: &TcpListener) -> OwnedFd {
    socket.try_clone().unwrap().into()
}

#[test]
fn sockets_that_were_passed_are_served_and_clients_wait_out_a_restart() {
    let ((listen, at), (admin, admin_at)) = (listener(), listener());
    let started = |home: TempDir| {
        let (at, admin_at) = (at.to_string(), admin_at.to_string());
        let args = ["--listen", &at, "--admin", &admin_at];
        // The order does not matter: a socket is known by its address.
        let command = passing(home.path(), [copy(&admin), copy(&listen)], "2", &args);
        Server::run(command, home)
    };
    let first = started(tempfile::tempdir().unwrap());
    assert_eq!((first.listen, first.admin), (at, admin_at));
    let asked: Vec<_> = (0..10)
        .map(|_| first.post("/v1/check", &sign_in("203.0.113.1")).json()["decision"].clone())
        .collect();
    assert_eq!(asked, ["allow"; 10]);
    assert_eq!(first.admin_get("/health/live").status, 200);
    first.terminate();
    let (code, home) = first.wait();
    assert_eq!(code, Some(0));
    let mut early = Client::connect(at);
    let body = sign_in("203.0.113.1");
    let head = format!(
        "POST /v1/check HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    early.write(head.as_bytes()).unwrap();
    let _second = started(home);
    let waited = early.read_reply().unwrap().json();
    assert_eq!(waited["decision"], "deny", "a restart is no new window");
}

/// systemd's own tool, with a socket file. The file is the supervisor's: it stays.
#[test]
fn systemd_passes_a_socket_file_that_stays_when_the_service_ends() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("rls.sock");
    let config = "[policy]\ndefaults = false\n[[limit]]\nname = \"all\"\ndomain = \"edge\"\n\
                  descriptor = [{ key = \"ip\" }]\nrate = \"3/h\"\n";
    std::fs::write(home.path().join("palisade.toml"), config).unwrap();
    let mut command = Command::new("systemd-socket-activate");
    command
        .arg("-l")
        .arg(&file)
        .args([env!("CARGO_BIN_EXE_palisade"), "serve", "--config"])
        .args(["palisade.toml", "--listen", "127.0.0.1:0"])
        .args(["--admin", "127.0.0.1:0", "--grpc"])
        .arg(format!("unix:{}", file.display()))
        .current_dir(home.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    // The service starts with the first connection.
    let connecting = std::thread::spawn({
        let file = file.clone();
        move || {
            let tries = PATIENCE.as_millis() / 20;
            let mut streams = (0..tries).map(|_| {
                std::thread::sleep(std::time::Duration::from_millis(20));
                UnixStream::connect(&file).ok()
            });
            streams.find_map(|stream| stream).unwrap()
        }
    });
    let server = Server::run(command, home);
    let mut stream = connecting.join().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // HTTP/2 begins with the server's settings once the client has greeted.
    let greeting = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    stream.write_all(greeting).unwrap();
    let mut frame = [0; 9];
    std::io::Read::read_exact(&mut stream, &mut frame).unwrap();
    assert_eq!(frame[3], 4, "settings: {frame:?}");
    drop(stream);
    server.terminate();
    let (code, home) = server.wait();
    assert_eq!(code, Some(0));
    assert!(home.path().join("rls.sock").exists());
}

/// What `serve` says to sockets that it cannot use.
fn refused(sockets: [OwnedFd; 2], count: &str, args: &[&str]) -> String {
    let home = tempfile::tempdir().unwrap();
    let rest = ["--admin", "127.0.0.1:0"];
    let args = [args, &rest].concat();
    let output = passing(home.path(), sockets, count, &args).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    std::fs::read_to_string(home.path().join("log")).unwrap()
}

#[test]
fn a_socket_that_no_listener_would_answer_is_refused() {
    let ((one, at), (other, _)) = (listener(), listener());
    let both = || [copy(&one), copy(&other)];
    let at = at.to_string();
    let told = refused(both(), "2", &["--listen", &at]);
    assert!(told.contains("socket 2 of those"), "{told}");
    assert!(told.contains("`server.listen`"), "{told}");
    let told = refused(both(), "1", &["--listen", "127.0.0.1:0"]);
    assert!(told.contains("socket 1 of those"), "{told}");
    let deaf = UdpSocket::bind("127.0.0.1:0").unwrap();
    let told = refused([deaf.into(), copy(&other)], "1", &["--listen", &at]);
    assert!(told.contains("none that listens"), "{told}");
    for count in ["17", "-1", "two"] {
        let told = refused(both(), count, &["--listen", &at]);
        assert!(told.contains("`LISTEN_FDS` is no number"), "{told}");
    }
}

/// Who may open the file may ask without a token.
#[test]
fn a_socket_file_that_everybody_may_open_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("rls.sock");
    let open = UnixListener::bind(&path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
    let (other, _) = listener();
    let at = format!("unix:{}", path.display());
    let args = ["--listen", "127.0.0.1:0", "--grpc", &at];
    let told = refused([open.into(), copy(&other)], "1", &args);
    assert!(told.contains("`SocketMode=0660`"), "{told}");
}

#[test]
fn sockets_for_another_process_are_left_alone() {
    let home = tempfile::tempdir().unwrap();
    let mut command = palisade();
    command
        .args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
        .envs([("LISTEN_FDS", "1"), ("LISTEN_PID", "1")])
        .current_dir(home.path())
        .stdout(Stdio::piped());
    let server = Server::run(command, home);
    assert_eq!(
        server.post("/v1/check", &sign_in("203.0.113.1")).json()["decision"],
        "allow"
    );
}
