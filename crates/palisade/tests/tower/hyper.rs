//! Services of neither axum nor tonic: a plain one on a socket of hyper, and one that can fail.

use std::io;
use std::time::Duration;

use ::hyper::body::Incoming;
use ::hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use palisade::tower::{ConcurrencyLayer, EdgeLayer, IdentityLayer, InFlight, Judge};
use palisade::{Limiter, LimiterConfig, Quota};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tower::{Layer, ServiceBuilder};

use super::*;

fn two_a_minute() -> Gate<impl Judge> {
    let clock = Arc::new(VirtualClock::at(engine_support::START));
    let quota = Quota::sliding(2, Duration::from_secs(60)).unwrap();
    let limiter = Limiter::with_clock(quota, &LimiterConfig::default(), clock);
    Gate::limited("two", limiter)
}

/// Gives back the body that it was sent.
async fn echo(request: Request<Incoming>) -> Result<Response<Body>, ::hyper::Error> {
    let body = request.into_body().collect().await?.to_bytes();
    Ok(Response::new(Body::new(body)))
}

/// Serves one connection after the other, each with the address of its other end.
async fn serve(listener: TcpListener, gate: Gate<impl Judge>) {
    loop {
        let (stream, peer) = listener.accept().await.unwrap();
        let service = ServiceBuilder::new()
            .map_request(move |mut request: Request<Incoming>| {
                request.extensions_mut().insert(peer);
                request
            })
            .layer(EdgeLayer::new(&gate))
            .service_fn(echo);
        let service = TowerToHyperService::new(service);
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        connection.await.unwrap();
    }
}

#[tokio::test]
async fn a_plain_service_of_hyper_is_limited_on_its_socket() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(listener, two_a_minute()));
    let mut answers = Vec::new();
    for _ in 0..3 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = "POST /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
                       Content-Length: 5\r\n\r\nhello";
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answers.push(answer);
    }
    for (answer, left) in answers.iter().zip(["1", "0"]) {
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.ends_with("hello"), "{answer}");
        let header = format!("x-ratelimit-remaining: {left}\r\n");
        assert!(answer.contains(&header), "{answer}");
    }
    assert!(answers[2].starts_with("HTTP/1.1 429"), "{}", answers[2]);
    assert!(answers[2].contains("rate_limit_exceeded"), "{}", answers[2]);
}

/// Errors of the inner service reach the caller unchanged, with and without a wait, and what was
/// held for the request is released.
#[tokio::test]
async fn an_error_of_the_service_behind_passes_unchanged() {
    let failing = tower::service_fn(|_: Request<Body>| async {
        Err::<Response<Body>, _>(io::Error::from(io::ErrorKind::BrokenPipe))
    });
    let rig = Rig::new("");
    let places = Arc::new(InFlight::each(std::num::NonZeroU32::MIN));
    let at_once = EdgeLayer::new(&two_a_minute()).layer(failing);
    let waited = IdentityLayer::new(&rig.gate()).layer(failing);
    let held = ConcurrencyLayer::per_address(&two_a_minute(), Arc::clone(&places)).layer(failing);
    for _ in 0..2 {
        let error = at_once.clone().oneshot(request("192.0.2.1", "/x")).await;
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        let error = waited.clone().oneshot(request("192.0.2.1", "/x")).await;
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        let error = held.clone().oneshot(request("192.0.2.1", "/x")).await;
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert!(places.is_empty());
    }
    let refused = at_once.oneshot(request("192.0.2.1", "/x")).await;
    assert_eq!(refused.unwrap().status(), 429, "a failure counts, too");
}
