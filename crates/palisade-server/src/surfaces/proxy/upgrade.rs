//! Upgraded connections (websockets): after the handshake, bytes in both
//! directions until one side ends.

use http::header::UPGRADE;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::body::{Outgoing, Relayed};
use super::empty;

/// The client's side, if it asks for another protocol.
pub(super) fn wanted(request: &mut Request<Outgoing>) -> Option<OnUpgrade> {
    request
        .headers()
        .contains_key(UPGRADE)
        .then(|| hyper::upgrade::on(request))
}

/// Passes the application's agreement on and joins the two connections.
pub(super) fn join(
    client: Option<OnUpgrade>,
    mut response: Response<Incoming>,
) -> Response<Relayed> {
    let upstream = hyper::upgrade::on(&mut response);
    if let Some(client) = client {
        tokio::spawn(async move {
            let (Ok(client), Ok(upstream)) = (client.await, upstream.await) else {
                return;
            };
            let (mut client, mut upstream) = (TokioIo::new(client), TokioIo::new(upstream));
            let _ = tokio::io::copy_bidirectional(&mut client, &mut upstream).await;
        });
    }
    response.map(|_| empty())
}
