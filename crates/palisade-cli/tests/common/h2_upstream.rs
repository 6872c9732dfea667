//! An application that speaks nothing but HTTP/2, within TLS.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

type Body = BoxBody<Bytes, hyper::Error>;

/// The application, ended when dropped.
pub(crate) struct H2Upstream {
    pub(crate) address: SocketAddr,
    /// Connections that were opened to it.
    pub(crate) connections: Arc<AtomicUsize>,
    _runtime: tokio::runtime::Runtime,
}

impl H2Upstream {
    /// Starts with the certificates in `home`; a connection is told to go away (GOAWAY) after
    /// so many requests.
    pub(crate) fn start(home: &Path, requests_max: usize) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::<AtomicUsize>::default();
        let opened = Arc::clone(&connections);
        let acceptor = acceptor(home);
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                opened.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(serve(acceptor.clone(), stream, requests_max));
            }
        });
        Self {
            address,
            connections,
            _runtime: runtime,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("https://localhost:{}", self.address.port())
    }
}

fn acceptor(home: &Path) -> TlsAcceptor {
    let chain = CertificateDer::pem_file_iter(home.join("service.pem")).unwrap();
    let chain = chain.collect::<Result<_, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_file(home.join("service.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config).into()
}

async fn serve(acceptor: TlsAcceptor, stream: TcpStream, requests_max: usize) {
    let Ok(stream) = acceptor.accept(stream).await else {
        return;
    };
    let served = Arc::<AtomicUsize>::default();
    let enough = Arc::<tokio::sync::Notify>::default();
    let (count, last) = (Arc::clone(&served), Arc::clone(&enough));
    let service = service_fn(move |request| {
        if count.fetch_add(1, Ordering::SeqCst) + 1 >= requests_max {
            last.notify_one();
        }
        async move { Ok::<_, hyper::Error>(answer(request)) }
    });
    let connection =
        http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        () = enough.notified() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

/// `/echo` sends the body back, trailers too; everything else says what was asked.
fn answer(request: Request<Incoming>) -> Response<Body> {
    if request.uri().path() == "/echo" {
        let mut response = Response::new(request.into_body().boxed());
        let trailer = "x-sum".parse().unwrap();
        response.headers_mut().insert("trailer", trailer);
        return response;
    }
    let hosts: Vec<_> = request
        .headers()
        .get_all("host")
        .iter()
        .map(|value| value.to_str().unwrap())
        .collect();
    let text = serde_json::json!({
        "version": format!("{:?}", request.version()),
        "authority": request.uri().authority().map(http::uri::Authority::as_str),
        "target": request.uri().path_and_query().map(http::uri::PathAndQuery::as_str),
        "hosts": hosts,
        "forwarded_host": request.headers().get("x-forwarded-host").map(|name| name.to_str().unwrap()),
    })
    .to_string();
    let body = Full::new(Bytes::from(text)).map_err(|never| match never {});
    Response::new(body.boxed())
}
