//! A path to a server that delays every byte, in each direction.

#![allow(dead_code, reason = "every test binary uses a part of it")]
#![expect(clippy::expect_used, reason = "part of the tests")]
#![expect(
    clippy::disallowed_methods,
    reason = "how long the bytes take is what it is for"
)]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Opens a path to the port `far`, and returns the port of its near end. It lasts as long as the
/// process.
pub(crate) fn open(far: u16, round_trip: Duration) -> u16 {
    open_to(Arc::new(AtomicU16::new(far)), round_trip)
}

/// Like [`open`], to the port that `far` holds when a connection is made.
pub(crate) fn open_to(far: Arc<AtomicU16>, round_trip: Duration) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let near = listener.local_addr().expect("a bound socket").port();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let far = far.load(SeqCst);
            std::thread::spawn(move || {
                // The first packets of a connection take the path as well.
                std::thread::sleep(round_trip);
                let Ok(server) = TcpStream::connect(("127.0.0.1", far)) else {
                    return;
                };
                carry(&client, &server, round_trip / 2);
                carry(&server, &client, round_trip / 2);
            });
        }
    });
    near
}

fn carry(from: &TcpStream, to: &TcpStream, takes: Duration) {
    let mut from = from.try_clone().expect("a socket");
    let mut to = to.try_clone().expect("a socket");
    let _ = to.set_nodelay(true);
    let (sent, under_way) = mpsc::channel::<(Instant, Vec<u8>)>();
    std::thread::spawn(move || {
        let mut bytes = vec![0; 64 * 1024];
        while let Ok(size @ 1..) = from.read(&mut bytes) {
            let _ = sent.send((Instant::now() + takes, bytes[..size].to_vec()));
        }
    });
    std::thread::spawn(move || {
        for (due, bytes) in under_way {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}
