//! The application behind the proxy: where it is, and the connections to it.

use std::time::Duration;

use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::ClientConfig;

use super::body::Outgoing;
use crate::config::Config;
use crate::connect::{self, Named};
use crate::failure::Failure;
use crate::surfaces::exchange::problem::Problem;
use crate::surfaces::size;

/// Idle connections to the application are kept for so long.
const POOL_IDLE: Duration = Duration::from_secs(60);

/// Where the application is, and how long it may take.
#[derive(Clone)]
pub(crate) struct Upstream {
    scheme: Scheme,
    authority: Authority,
    tls: ClientConfig,
    connect_timeout: Duration,
    response_timeout: Duration,
    /// Time for a body that is read before the application is asked.
    pub(super) read_timeout: Duration,
    /// Longest silence in a tunnel.
    pub(super) silence_max: Duration,
    pool_max: usize,
}

impl Upstream {
    /// The configured application; `None` if there is none.
    pub(crate) fn of(config: &Config) -> Result<Option<Self>, Failure> {
        let proxy = &config.proxy;
        let Some(url) = &proxy.upstream else {
            return Ok(None);
        };
        let (scheme, authority) = address(url.as_str())?;
        let authority_file = proxy.upstream_ca.as_deref().map(|path| Named {
            name: "proxy.upstream_ca",
            path,
        });
        Ok(Some(Self {
            scheme,
            authority,
            tls: connect::client(authority_file, None)?,
            connect_timeout: proxy.connect_timeout,
            response_timeout: proxy.response_timeout,
            read_timeout: config.server.header_timeout,
            silence_max: proxy.tunnel_idle_timeout,
            pool_max: size(proxy.pool_max),
        }))
    }
}

fn address(url: &str) -> Result<(Scheme, Authority), Failure> {
    let refused = |what: &str| {
        Failure::usage(
            format!("`proxy.upstream` {what}"),
            "write `http://HOST:PORT` or `https://HOST:PORT`, the address of the application",
        )
    };
    let uri: Uri = url
        .parse()
        .map_err(|_| refused("is no URL that can be read"))?;
    let scheme = uri.scheme().cloned();
    let scheme = scheme
        .filter(|scheme| [Scheme::HTTP, Scheme::HTTPS].contains(scheme))
        .ok_or_else(|| refused("must begin with `http://` or `https://`"))?;
    if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
        return Err(refused("must not have a path: requests keep their own"));
    }
    let authority = uri.authority().ok_or_else(|| refused("names no host"))?;
    if authority.as_str().contains('@') {
        return Err(refused(
            "must not have a user name: requests keep their own",
        ));
    }
    Ok((scheme, authority.clone()))
}

type Connections = Client<HttpsConnector<HttpConnector>, Outgoing>;

/// The connections of one worker to the application.
pub(super) struct Link {
    pub(super) upstream: Upstream,
    /// HTTP/2 where the application agrees to it, within TLS.
    connections: Connections,
    /// A websocket starts from HTTP/1.
    for_upgrades: Connections,
}

impl Link {
    pub(super) fn new(upstream: Upstream) -> Self {
        let connections = |either: bool| {
            let mut plain = HttpConnector::new();
            plain.set_nodelay(true);
            plain.enforce_http(false);
            plain.set_connect_timeout(Some(upstream.connect_timeout));
            let secure = HttpsConnectorBuilder::new()
                .with_tls_config(upstream.tls.clone())
                .https_or_http()
                .enable_http1();
            let connector = match either {
                true => secure.enable_http2().wrap_connector(plain),
                false => secure.wrap_connector(plain),
            };
            Client::builder(TokioExecutor::new())
                .pool_idle_timeout(POOL_IDLE)
                .pool_max_idle_per_host(upstream.pool_max)
                .pool_timer(TokioTimer::new())
                .build(connector)
        };
        Self {
            connections: connections(true),
            for_upgrades: connections(false),
            upstream,
        }
    }

    /// Where the request goes: to the application, with the path that was judged.
    pub(super) fn target(&self, uri: &Uri, forward_path: Option<&str>) -> Result<Uri, Problem> {
        let unfit = || Problem::field("path", "cannot be passed on");
        let path = match (forward_path, uri.query()) {
            (None, _) => uri.path_and_query().cloned(),
            (Some(path), None) => Some(path.parse().map_err(|_| unfit())?),
            (Some(path), Some(query)) => {
                let target = format!("{path}?{query}");
                Some(target.parse().map_err(|_| unfit())?)
            }
        };
        Uri::builder()
            .scheme(self.upstream.scheme.clone())
            .authority(self.upstream.authority.clone())
            .path_and_query(path.unwrap_or_else(|| PathAndQuery::from_static("/")))
            .build()
            .map_err(|_| unfit())
    }

    /// Asks the application, and waits for the head of its answer.
    pub(super) async fn ask(
        &self,
        request: Request<Outgoing>,
        upgrades: bool,
    ) -> Result<Response<Incoming>, Problem> {
        let connections = match upgrades {
            true => &self.for_upgrades,
            false => &self.connections,
        };
        let sent = connections.request(request);
        tokio::time::timeout(self.upstream.response_timeout, sent)
            .await
            .map_err(|_| Problem::gateway_timeout())?
            .map_err(|error| {
                tracing::warn!(
                    connecting = error.is_connect(),
                    "the application did not answer"
                );
                Problem::bad_gateway()
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_an_application_is_a_scheme_and_a_host() {
        for good in ["http://127.0.0.1:3000", "https://app.internal/"] {
            assert!(address(good).is_ok(), "{good}");
        }
        for bad in [
            "ftp://app",
            "http://app/path",
            "http://app/?q",
            "https://user:secret@app",
        ] {
            let said = address(bad).map(|_| ()).unwrap_err().to_string();
            assert!(!said.contains("secret"), "{said}");
        }
    }
}
