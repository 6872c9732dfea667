//! An axum application behind one policy: limits before and after authentication, and a
//! guarded login.
//!
//!     cargo run -p palisade --features tower --example axum
//!
//! Then, twelve times: `curl -i -H 'X-User: ann' localhost:3000/reports`
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::net::SocketAddr;

use axum::Router;
use axum::extract::{ConnectInfo, Request};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::{get, post};
use palisade::tower::{Attempt, EdgeLayer, Gate, IdentityLayer, LoginLayer, Who};
use palisade::{FieldError, Palisade};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const POLICY: &str = r#"
[policy]
defaults = false
default_class = "api"

[[class]]
name = "api"

[[limit]]
name = "per-address"
by = ["ip"]
rate = "100/min"

[[limit]]
name = "per-user"
by = ["user"]
rate = "10/min"
"#;

/// The application. In axum the layer that is added last comes first.
pub(crate) async fn application() -> Result<Router, Failure> {
    let palisade = Palisade::builder().policy(POLICY).start().await?;
    let gate = Gate::new(palisade.engine())
        .peer(|extensions| Some(extensions.get::<ConnectInfo<SocketAddr>>()?.0.ip()))
        .trusting(["10.0.0.0/8".parse()?]);
    let reports = Router::new()
        .route("/reports", get(async || "a report\n"))
        .layer(IdentityLayer::new(&gate))
        .layer(from_fn(authenticate));
    let login = Router::new()
        .route("/login", post(log_in))
        .layer(LoginLayer::new(&gate, attempt));
    Ok(reports.merge(login).layer(EdgeLayer::new(&gate)))
}

/// Your own authentication. It tells the layer within who asks.
async fn authenticate(mut request: Request, next: Next) -> Result<Response, StatusCode> {
    let user = request.headers().get("x-user");
    let user = user.and_then(|user| user.to_str().ok());
    let user = user.ok_or(StatusCode::UNAUTHORIZED)?;
    let who = Who::default().user(user);
    let who = who.map_err(|_| StatusCode::BAD_REQUEST)?;
    request.extensions_mut().insert(who);
    Ok(next.run(request).await)
}

/// The account that a login is for: here its name stands in a header.
async fn attempt(request: Request) -> Result<(Request, Option<Attempt>), FieldError> {
    let name = request.headers().get("x-login");
    let name = name.map_or("", |name| name.to_str().unwrap_or_default());
    let attempt = Attempt::by(name)?;
    Ok((request, Some(attempt)))
}

async fn log_in(request: Request) -> StatusCode {
    match request.headers().get("x-password") {
        Some(password) if password == "correct" => StatusCode::OK,
        _ => StatusCode::UNAUTHORIZED,
    }
}

#[tokio::main]
#[allow(dead_code, reason = "a test starts the application itself")]
async fn main() -> Result<(), Failure> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on http://{}", listener.local_addr()?);
    let application = application().await?;
    let service = application.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service).await?;
    Ok(())
}
