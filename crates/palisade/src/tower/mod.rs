//! Layers for `tower`: axum, hyper, tonic, or any service of HTTP requests.
//!
//! | layer | where | what it does |
//! | --- | --- | --- |
//! | [`EdgeLayer`] | before authentication | throttle, allowlist, address, client |
//! | [`IdentityLayer`] | after it | organisation, token, user, quota; alone: everything |
//! | [`LoginLayer`] | around a login | asks the guard before, reports the outcome after |
//! | [`ConcurrencyLayer`] | around what is slow | so many at once for each key |
//! | [`LoadLayer`] | inside the others | so many at once as the measured latency allows |
//!
//! Where a limit of the policy has `concurrency`, the edge and identity layers hold a place of it from
//! the head of a request to the last byte of its answer (B-SLOT).
//!
//! A [`Gate`] decides: by an [`Engine`](crate::Engine) with a policy on any store, or by one
//! [`Limiter`](crate::Limiter) without a policy.
//!
//! ```
//! use std::convert::Infallible;
//! use std::net::SocketAddr;
//! use std::time::Duration;
//! use http::{Request, Response};
//! use palisade::tower::{EdgeLayer, Gate};
//! use palisade::{Limiter, Quota};
//! use tower::{Layer, Service, ServiceExt, service_fn};
//!
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! let application = service_fn(|_: Request<String>| async {
//!     Ok::<_, Infallible>(Response::new(String::from("hello")))
//! });
//! let limiter = Limiter::new(Quota::sliding(2, Duration::from_secs(60))?);
//! let mut service = EdgeLayer::new(&Gate::limited("per-address", limiter)).layer(application);
//!
//! let peer: SocketAddr = "203.0.113.5:4711".parse()?;
//! let mut statuses = Vec::new();
//! for _ in 0..3 {
//!     let mut request = Request::new(String::new());
//!     request.extensions_mut().insert(peer);
//!     let response = service.ready().await?.call(request).await?;
//!     statuses.push(response.status().as_u16());
//! }
//! assert_eq!(statuses, [200, 200, 429]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A refused request never reaches the service inside. The decision is an extension ([`Decided`])
//! of the request, of responses that refuse, and of all responses if the gate is set to mark them.
//! Both allowed and refused answers carry the headers. To gRPC clients a refusal is a gRPC status.

mod asked;
mod body;
mod concurrency;
mod edge;
mod gate;
mod grpc;
mod identity;
mod judge;
mod load;
mod login;
mod refusal;
mod service;
mod who;

pub use body::{BodyError, Guarded};
pub use concurrency::{ConcurrencyLayer, InFlight, Slots};
pub use edge::EdgeLayer;
pub use gate::{Decided, Gate};
pub use identity::IdentityLayer;
pub use judge::{Judge, OneLimit};
pub use load::LoadLayer;
pub use login::{Attempt, LoginLayer, LoginService, Outcome, by_status};
pub use service::{Enforced, Enforcing};
pub use who::Who;

pub use crate::engine::TookTooLong;
