//! An axum application with one limit and no policy.
//!
//!     cargo run -p palisade --features tower --example axum_limiter
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::get;
use palisade::tower::{ConcurrencyLayer, EdgeLayer, Gate, InFlight};
use palisade::{Limiter, Quota};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Five requests a second for each address, and two exports of each at once.
pub(crate) fn application() -> Result<Router, Failure> {
    let limiter = Limiter::new(Quota::sliding(5, Duration::from_secs(1))?);
    let gate = Gate::limited("per-address", limiter)
        .peer(|extensions| Some(extensions.get::<ConnectInfo<SocketAddr>>()?.0.ip()));
    let two = Arc::new(InFlight::each(NonZeroU32::MIN.saturating_add(1)));
    let slow = Router::new()
        .route("/export", get(export))
        .layer(ConcurrencyLayer::per_address(&gate, two));
    Ok(Router::new()
        .route("/", get(async || "hello\n"))
        .merge(slow)
        .layer(EdgeLayer::new(&gate)))
}

async fn export() -> &'static str {
    tokio::time::sleep(Duration::from_millis(200)).await;
    "exported\n"
}

#[tokio::main]
#[allow(dead_code, reason = "a test starts the application itself")]
async fn main() -> Result<(), Failure> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on http://{}", listener.local_addr()?);
    let service = application()?.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service).await?;
    Ok(())
}
