//! The webhook, told by the real binary of thresholds that limits reach.

use std::io::BufRead;
use std::net::TcpListener;
use std::sync::{Arc, mpsc};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::Value;
use sha2::Sha256;

use super::*;

const SECRET: &str = "a secret of the webhook, long enough";

const POLICY: &str = r#"
[policy]
defaults = false

[webhook]
url = "https://localhost:PORT/hooks?of=palisade"
secret = "env:WEBHOOK_SECRET"
ca = "ca.pem"
private = true

[[limit]]
name = "tokens"
by = ["org"]
rate = "1000/day"
algorithm = "fixed-window"
unit = "tokens"
warn_at = [0.5, 0.9]
"#;

/// One message as the receiver got it.
struct WebhookRequest {
    head: Vec<String>,
    body: Vec<u8>,
}

impl WebhookRequest {
    fn header(&self, name: &str) -> &str {
        let mut lines = self.head.iter();
        let found = lines.find_map(|line| line.strip_prefix(&format!("{name}: ")));
        found.unwrap_or_else(|| panic!("no {name} in {:?}", self.head))
    }
}

/// Receives messages over TLS and gives these answers, one after the other.
fn receive(home: &Path, answers: &'static [&'static str]) -> (u16, mpsc::Receiver<WebhookRequest>) {
    let chain: Vec<_> = CertificateDer::pem_file_iter(home.join("service.pem"))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let key = PrivateKeyDer::from_pem_file(home.join("service.key")).unwrap();
    let config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, received) = mpsc::channel();
    std::thread::spawn(move || {
        for answer in answers {
            let (stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let connection = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = std::io::BufReader::new(rustls::StreamOwned::new(connection, stream));
            let mut head = Vec::new();
            loop {
                let mut line = String::new();
                stream.read_line(&mut line).unwrap();
                if line.trim().is_empty() {
                    break;
                }
                head.push(line.trim().to_owned());
            }
            let mut message = WebhookRequest {
                head,
                body: Vec::new(),
            };
            let length = message.header("content-length").parse().unwrap();
            message.body = vec![0; length];
            stream.read_exact(&mut message.body).unwrap();
            let answer = format!("HTTP/1.1 {answer}\r\ncontent-length: 0\r\n\r\n");
            stream.get_mut().write_all(answer.as_bytes()).unwrap();
            sender.send(message).unwrap();
        }
    });
    (port, received)
}

#[test]
fn b_warn_the_webhook_is_told_once_and_signed_and_tried_again_where_it_was_not_taken() {
    let home = tempfile::tempdir().unwrap();
    certificates(home.path());
    let answers = &[
        "302 Found\r\nlocation: https://localhost/elsewhere",
        "500 Oops",
        "204 Taken",
    ];
    let (port, received) = receive(home.path(), answers);
    let server = Server::at(
        home,
        &Options {
            config: Some(&POLICY.replace("PORT", &port.to_string())),
            env: &[("WEBHOOK_SECRET", SECRET)],
            ..Options::default()
        },
    );
    for tokens in [400, 200, 350] {
        let facts = format!(
            r#"{{"ip":"203.0.113.5","org":"canary-org","method":"POST","path":"/llm","costs":{{"tokens":{tokens}}}}}"#
        );
        assert_eq!(server.post("/v1/check", &facts).status, 200);
    }
    let messages: Vec<WebhookRequest> = (0..3)
        .map(|_| received.recv_timeout(PATIENCE).unwrap())
        .collect();
    let first = &messages[0];
    for message in &messages {
        assert_eq!(message.head[0], "POST /hooks?of=palisade HTTP/1.1");
        assert_eq!(message.header("webhook-id"), first.header("webhook-id"));
        assert!(message.body == first.body, "tried again, not made anew");
    }
    let signed = format!(
        "{}.{}.",
        first.header("webhook-id"),
        first.header("webhook-timestamp")
    );
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).unwrap();
    mac.update(signed.as_bytes());
    mac.update(&first.body);
    let signature = format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()));
    assert_eq!(first.header("webhook-signature"), signature);

    let body: Value = serde_json::from_slice(&first.body).unwrap();
    assert_eq!(
        (&body["type"], &body["dropped"]),
        (&"budget.threshold".into(), &0.into())
    );
    let told: Vec<(&str, f64)> = body["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            (
                one["limit"].as_str().unwrap(),
                one["share"].as_f64().unwrap(),
            )
        })
        .collect();
    assert_eq!(told, [("tokens", 0.5), ("tokens", 0.9)]);
    assert!(!body.to_string().contains("canary"), "{body}");

    let delivered = r#"rate_limiter_webhook_events_total{outcome="delivered"} 2"#;
    common::eventually("it is counted", || {
        server.admin_get("/metrics").text().contains(delivered)
    });
}

#[test]
fn b_warn_a_webhook_that_could_be_abused_is_refused_before_anything_starts() {
    let refused = |lines: &str| {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(
            home.path().join("palisade.toml"),
            format!("[webhook]\n{lines}\n"),
        )
        .unwrap();
        let checked = common::palisade()
            .current_dir(home.path())
            .args(["check", "palisade.toml"])
            .env("WEBHOOK_SECRET", SECRET)
            .env("SHORT", "short")
            .output()
            .unwrap();
        assert_ne!(checked.status.code(), Some(0));
        String::from_utf8(checked.stdout).unwrap() + &String::from_utf8(checked.stderr).unwrap()
    };
    let secret = "secret = \"env:WEBHOOK_SECRET\"";
    let plain = refused(&format!("url = \"http://hooks.example.com/\"\n{secret}"));
    assert!(plain.contains("must be an `https://` address"), "{plain}");
    let named = refused(&format!(
        "url = \"https://canary:canary@hooks.example.com/\"\n{secret}"
    ));
    assert!(named.contains("without credentials"), "{named}");
    let unsigned = refused("url = \"https://hooks.example.com/\"");
    assert!(
        unsigned.contains("`webhook.url` needs `webhook.secret`"),
        "{unsigned}"
    );
    let short = refused("url = \"https://hooks.example.com/\"\nsecret = \"env:SHORT\"");
    assert!(short.contains("fewer than 24 bytes"), "{short}");
}
