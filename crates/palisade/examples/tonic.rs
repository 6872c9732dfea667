//! A gRPC service with one limit and no policy.
//!
//!     cargo run -p palisade --features tower --example tonic
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use palisade::tower::{EdgeLayer, Gate, OneLimit};
use palisade::{Limiter, Quota};
use tonic::transport::Server;
use tonic::transport::server::{Router, TcpConnectInfo, TcpIncoming};
use tower::layer::util::{Identity, Stack};

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Limited = Router<Stack<EdgeLayer<OneLimit>, Identity>>;

/// Five requests a minute for each address. The service is the health check of every gRPC server.
pub(crate) fn application() -> Result<Limited, Failure> {
    let (_reporter, health) = tonic_health::server::health_reporter();
    let limiter = Limiter::new(Quota::sliding(5, Duration::from_secs(60))?);
    let gate = Gate::limited("per-address", limiter)
        .peer(|extensions| Some(extensions.get::<TcpConnectInfo>()?.remote_addr()?.ip()));
    Ok(Server::builder()
        .layer(EdgeLayer::new(&gate))
        .add_service(health))
}

#[tokio::main]
#[allow(dead_code, reason = "a test starts the application itself")]
async fn main() -> Result<(), Failure> {
    let incoming = TcpIncoming::bind("127.0.0.1:3000".parse()?)?;
    println!("listening on http://{}", incoming.local_addr()?);
    application()?.serve_with_incoming(incoming).await?;
    Ok(())
}
