//! TLS on either side of the proxy.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::WEBSOCKET;
use crate::certificates::{certificates, sh};
use crate::common::{Client, Options, Server};
use crate::upstream::Upstream;

/// An application that speaks HTTP/1 within TLS and agrees to every websocket, on which it sends
/// each byte back.
fn echoing(home: &Path) -> SocketAddr {
    let chain = CertificateDer::pem_file_iter(home.join("service.pem")).unwrap();
    let chain = chain.collect::<Result<_, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_file(home.join("service.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let config = Arc::clone(&config);
            std::thread::spawn(move || echo(config, stream));
        }
    });
    address
}

fn echo(config: Arc<ServerConfig>, stream: TcpStream) -> Option<()> {
    let mut stream = StreamOwned::new(ServerConnection::new(config).ok()?, stream);
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.extend_from_slice(&byte);
    }
    let agreed =
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    stream.write_all(agreed).ok()?;
    loop {
        stream.read_exact(&mut byte).ok()?;
        stream.write_all(&byte).ok()?;
        stream.flush().ok()?;
    }
}

#[test]
fn a_websocket_passes_to_an_application_within_tls() {
    let home = tempfile::tempdir().unwrap();
    certificates(home.path());
    let app = echoing(home.path());
    let authority = home.path().join("ca.pem");
    let config = format!(
        "[server]\ntrusted_proxies = []\n[proxy]\nupstream_ca = \"{}\"\n",
        authority.display()
    );
    let url = format!("https://localhost:{}", app.port());
    let server = crate::proxy(&config, &url);
    let mut client = Client::connect(server.proxy.unwrap());
    assert_eq!(client.send("GET", "/ws", &WEBSOCKET, b"").status, 101);
    for _ in 0..3 {
        assert!(crate::echoes(&mut client));
    }
}

#[test]
fn the_proxy_has_a_certificate_of_its_own() {
    let home = tempfile::tempdir().unwrap();
    certificates(home.path());
    let app = Upstream::start();
    let config = "[proxy]\ntls_cert = \"service.pem\"\ntls_key = \"service.key\"\n";
    let server = Server::at(
        home,
        &Options {
            config: Some(config),
            args: &["--upstream", &app.url(), "--proxy", "127.0.0.1:0"],
            ..Options::default()
        },
    );
    let port = server.proxy.unwrap().port();
    let asked = format!("curl -sS --cacert ca.pem https://localhost:{port}/things");
    let (answered, said) = sh(server.home.path(), &asked);
    assert!(answered, "{said}");
    assert!(said.contains(r#""x-forwarded-proto":"https""#), "{said}");
    let plain = Client::connect(server.admin).send("GET", "/health/live", &[], b"");
    assert_eq!(plain.status, 200, "the others have none");
}
