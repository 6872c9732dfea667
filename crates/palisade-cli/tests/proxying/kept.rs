//! Connections to the application that outlive a request.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{Client, Server};
use crate::proxy;
use crate::upstream::Upstream;

const ONE_WORKER: &str = "[server]\ntrusted_proxies = []\nworkers = 1\n";

/// An application that treats each connection so; how many there were.
fn app(serve: fn(TcpStream)) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let connections = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&connections);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            counted.fetch_add(1, Ordering::SeqCst);
            std::thread::spawn(move || serve(stream));
        }
    });
    (url, connections)
}

fn answer_one(stream: &mut TcpStream) {
    let mut head = [0; 4096];
    if stream.read(&mut head).is_ok_and(|read| read > 0) {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    }
}

fn statuses(server: &Server, method: &str, count: usize) -> Vec<u16> {
    let mut client = Client::connect(server.proxy.unwrap());
    let mut send = |_| client.send(method, "/", &[], b"").status;
    (0..count).map(&mut send).collect()
}

/// What every application does after a while, and some after each answer.
#[test]
fn an_application_that_closes_after_each_answer_loses_no_request() {
    let (url, connections) = app(|mut stream| answer_one(&mut stream));
    let server = proxy(ONE_WORKER, &url);
    assert_eq!(statuses(&server, "GET", 20), [200; 20]);
    assert_eq!(connections.load(Ordering::SeqCst), 20);
}

#[test]
fn what_may_be_sent_twice_survives_a_connection_that_ends_under_it() {
    let (url, connections) = app(|mut stream| {
        answer_one(&mut stream);
        // The second request is taken, and the connection ends without an answer.
        let _ = stream.read(&mut [0; 4096]);
    });
    let server = proxy(ONE_WORKER, &url);
    assert_eq!(statuses(&server, "GET", 6), [200; 6]);
    assert_eq!(connections.load(Ordering::SeqCst), 6);
    assert_eq!(statuses(&server, "POST", 2), [502, 200]);
}

#[test]
fn a_connection_with_a_rest_of_an_answer_on_it_is_not_used_again() {
    let app = Upstream::start();
    let server = proxy(ONE_WORKER, &app.url());
    let mut gone = Client::connect(server.proxy.unwrap());
    let head = b"GET /stream HTTP/1.1\r\nHost: t\r\nUser-Agent: t\r\n\r\n";
    gone.write(head).unwrap();
    gone.stream.read_exact(&mut [0; 64]).unwrap();
    drop(gone);
    assert_eq!(statuses(&server, "GET", 3), [200; 3]);
    assert_eq!(app.connections.load(Ordering::SeqCst), 2);
}
