//! The service on a socket file instead of a port.

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use hyper_util::rt::TokioIo;
use tonic::transport::{Channel, Endpoint};

use crate::common::{Options, PATIENCE, Server, palisade, wait};
use crate::service::{PER_IP, alone, of, request};

fn started(home: tempfile::TempDir, workers: u16) -> Server {
    let policy = alone(&PER_IP.replace("5/h", "3/h"));
    let config = format!("{policy}\n[server]\nworkers = {workers}\n");
    Server::at(
        home,
        &Options {
            args: &["--grpc", "unix:rls.sock"],
            config: Some(&config),
            env: &[],
        },
    )
}

/// A client that connects to the file.
fn client(file: &Path) -> RateLimitServiceClient<Channel> {
    let file = file.to_owned();
    let connector = tower::service_fn(move |_: http::Uri| {
        let file = file.clone();
        async move {
            let stream = tokio::net::UnixStream::connect(file).await?;
            Ok::<_, std::io::Error>(TokioIo::new(stream))
        }
    });
    let endpoint = Endpoint::from_static("http://localhost").timeout(PATIENCE);
    RateLimitServiceClient::new(endpoint.connect_with_connector_lazy(connector))
}

async fn ask(client: &mut RateLimitServiceClient<Channel>, ip: &str) -> Code {
    let asked = client.should_rate_limit(request("edge", &[of(&[("ip", ip)])]));
    asked.await.unwrap().into_inner().overall_code()
}

#[tokio::test]
async fn a_socket_file_serves_many_clients_and_is_gone_at_the_end() {
    let home = tempfile::tempdir().unwrap();
    // As a process leaves it that was killed.
    drop(UnixListener::bind(home.path().join("rls.sock")).unwrap());
    let server = started(home, 2);
    let file = server.home.path().join("rls.sock");
    assert!(server.banner.contains("unix:rls.sock"), "{}", server.banner);
    let meta = std::fs::symlink_metadata(&file).unwrap();
    assert!(meta.file_type().is_socket());
    assert_eq!(meta.permissions().mode() & 0o777, 0o660);
    let mut clients: Vec<_> = (0..20).map(|_| client(&file)).collect();
    let calls = clients.iter_mut().map(|client| ask(client, "a"));
    let codes = futures_util::future::join_all(calls).await;
    let admitted = codes.iter().filter(|code| **code == Code::Ok).count();
    assert_eq!(admitted, 3, "{codes:?}");
    server.terminate();
    let (code, home) = server.wait();
    assert_eq!(code, Some(0));
    assert!(!home.path().join("rls.sock").exists());
}

#[test]
fn a_file_that_is_listened_on_or_is_no_socket_is_refused_and_stays() {
    let refused = |home: &Path| {
        let mut child = palisade()
            .current_dir(home)
            .args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .args(["--store", "memory:", "--grpc", "unix:rls.sock"])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        assert_eq!(wait(&mut child), Some(3));
        let said = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
        assert!(
            said.contains("cannot listen on unix:rls.sock (rate-limit service for Envoy)"),
            "{said}"
        );
        assert!(said.contains("--grpc"), "{said}");
        said
    };
    let server = started(tempfile::tempdir().unwrap(), 1);
    refused(server.home.path());
    assert!(server.home.path().join("rls.sock").exists());
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("rls.sock"), "kept").unwrap();
    assert!(refused(home.path()).contains("no socket"));
    let kept = std::fs::read_to_string(home.path().join("rls.sock")).unwrap();
    assert_eq!(kept, "kept");
}
