//! The layers in front of a real tonic server, asked by a real tonic client.

use std::net::SocketAddr;

use palisade::tower::{EdgeLayer, IdentityLayer};
use prost::Message;
use tonic::Code;
use tonic::transport::Server;
use tonic::transport::server::{TcpConnectInfo, TcpIncoming};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::*;

#[path = "../../examples/tonic.rs"]
mod example;

/// `google.rpc.Status`, as clients decode it.
#[derive(Message)]
struct Status {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

#[derive(Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<Duration>,
}

#[derive(Message)]
struct Duration {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

/// Seconds that a refusal tells its client to wait.
fn retry_delay(refused: &tonic::Status) -> i64 {
    let status = Status::decode(refused.details()).unwrap();
    assert_eq!(status.code, refused.code() as i32);
    assert_eq!(status.message, refused.message());
    let [any] = &status.details[..] else {
        panic!("{status:?}");
    };
    assert_eq!(any.type_url, "type.googleapis.com/google.rpc.RetryInfo");
    let delay = RetryInfo::decode(&any.value[..]).unwrap().retry_delay;
    let delay = delay.unwrap();
    assert_eq!(delay.nanos, 0);
    delay.seconds
}

/// A listener on a free port, and a client of it that connects with its first call.
fn free() -> (TcpIncoming, HealthClient<tonic::transport::Channel>) {
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let incoming = TcpIncoming::bind(any).unwrap();
    let address = incoming.local_addr().unwrap();
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}"));
    (
        incoming,
        HealthClient::new(endpoint.unwrap().connect_lazy()),
    )
}

fn question() -> HealthCheckRequest {
    HealthCheckRequest::default()
}

#[tokio::test]
async fn the_example_with_tonic_refuses_the_sixth_with_a_status_and_the_time_to_wait() {
    let (incoming, mut client) = free();
    let router = example::application().unwrap();
    tokio::spawn(router.serve_with_incoming(incoming));
    for left in (0..5).rev() {
        let answer = client.check(question()).await.unwrap();
        let said = answer.metadata().get("x-ratelimit-remaining").unwrap();
        assert_eq!(said, &left.to_string());
    }
    let refused = client.check(question()).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(refused.message(), "rate limit exceeded");
    let wait = refused.metadata().get("retry-after").unwrap();
    let wait: i64 = wait.to_str().unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    assert_eq!(retry_delay(&refused), wait);
    // A stream is refused before it begins, in the same way.
    let refused = client.watch(question()).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
}

#[tokio::test]
async fn a_policy_before_and_after_authentication_holds_in_front_of_tonic_and_without_the_store() {
    let rig = Rig::new(
        "[policy]\ndefaults = false\ndefault_class = \"api\"\n[[class]]\nname = \"api\"\n\
         kind = \"admin\"\n[[limit]]\nname = \"per-address\"\nby = [\"ip\"]\nrate = \"3/min\"\n",
    );
    let gate = rig
        .gate()
        .peer(|extensions| Some(extensions.get::<TcpConnectInfo>()?.remote_addr()?.ip()));
    let (_reporter, health) = tonic_health::server::health_reporter();
    let (incoming, mut client) = free();
    let router = Server::builder()
        .layer(EdgeLayer::new(&gate))
        .layer(IdentityLayer::new(&gate))
        .add_service(health);
    tokio::spawn(router.serve_with_incoming(incoming));
    for _ in 0..2 {
        client.check(question()).await.unwrap();
    }
    rig.store.set(palisade::cases::StoreState::Down);
    let closed = client.check(question()).await.unwrap_err();
    assert_eq!(closed.code(), Code::Unavailable);
    assert!(retry_delay(&closed) >= 1);
}
