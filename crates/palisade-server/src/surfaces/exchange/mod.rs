//! One HTTP request and its answer, the same on every surface: callers, bodies, ids, decisions and
//! errors.

pub(super) mod accept;
pub(super) mod asset;
pub(super) mod body;
pub(super) mod caller;
pub(super) mod ids;
pub(super) mod problem;
pub(super) mod proto;
pub(super) mod reply;

use bytes::Bytes;
use http::Response;
use http_body_util::Full;

pub(crate) use caller::{CallerToken, Callers, TokenPlace};

/// An answer with a body in memory.
pub(crate) type Reply = Response<Full<Bytes>>;
