//! Calls of providers, against a local server that behaves as their documentation says, or does
//! not.

use std::net::SocketAddr;
use std::sync::Mutex;

use palisade_core::challenge::{ChallengeFlow, ProviderSettings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

/// Forms that a provider was sent.
type Forms = Arc<Mutex<Vec<String>>>;

/// A provider that gives this answer to everything.
async fn provider(answer: &'static str) -> (SocketAddr, Forms) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let forms = Forms::default();
    let seen = Arc::clone(&forms);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut bytes = vec![0; 16 * 1024];
            let read = stream.read(&mut bytes).await.unwrap();
            let text = String::from_utf8_lossy(&bytes[..read]).into_owned();
            seen.lock().unwrap().push(text);
            let _ = stream.write_all(answer.as_bytes()).await;
            if answer.is_empty() {
                std::future::pending::<()>().await;
            }
        }
    });
    (address, forms)
}

fn settings(address: SocketAddr) -> ProviderSettings {
    ProviderSettings {
        site_key: "site-key".into(),
        secret: "the/secret".into(),
        verify_url: format!("http://{address}/siteverify").into(),
        hostnames: Vec::new(),
        has_fallback: true,
        sends_address: false,
        is_scored: false,
    }
}

async fn verify(
    kind: ChallengeKind,
    settings: &ProviderSettings,
    solution: &str,
) -> Result<Result<(), ChallengeRefusal>, ProviderUnavailable> {
    let query = ProviderQuery {
        kind,
        settings,
        solution,
        ip: "203.0.113.9".parse().unwrap(),
        flow: ChallengeFlow::Login,
    };
    SiteVerify::default().verify(query).await
}

const GOOD: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n\
                    {\"success\":true,\"hostname\":\"shop.example\",\"action\":\"login\"}";

#[tokio::test]
async fn c_kind_every_provider_gets_the_form_of_its_documentation() {
    let kinds = [
        (ChallengeKind::Turnstile, ""),
        (ChallengeKind::Hcaptcha, "&sitekey=site-key"),
        (ChallengeKind::Recaptcha, ""),
    ];
    for (kind, own) in kinds {
        let (address, forms) = provider(GOOD).await;
        let mut settings = settings(address);
        assert_eq!(verify(kind, &settings, "token").await, Ok(Ok(())));
        settings.sends_address = true;
        assert_eq!(verify(kind, &settings, "token").await, Ok(Ok(())));
        let forms = forms.lock().unwrap();
        let head = "POST /siteverify HTTP/1.1\r\n";
        let form = format!("secret=the%2Fsecret&response=token{own}");
        assert!(
            forms[0].starts_with(head) && forms[0].ends_with(&form),
            "{}",
            forms[0]
        );
        assert!(forms[0].contains("application/x-www-form-urlencoded"));
        let form = format!("secret=the%2Fsecret&response=token&remoteip=203.0.113.9{own}");
        assert!(forms[1].ends_with(&form), "{}", forms[1]);
    }
}

#[tokio::test]
async fn c_kind_what_cannot_be_a_token_is_not_sent() {
    let (address, forms) = provider(GOOD).await;
    let settings = settings(address);
    let long = "x".repeat(TOKEN_BYTES_MAX + 1);
    for token in ["", "a b", "a\r\nb", "ä", &long] {
        let verdict = verify(ChallengeKind::Turnstile, &settings, token).await;
        assert_eq!(verdict, Ok(Err(ChallengeRefusal::Wrong)), "{token:?}");
    }
    assert!(forms.lock().unwrap().is_empty());
}

#[tokio::test]
async fn c_fail_a_provider_that_misbehaves_is_unavailable() {
    let giant: &'static str = Box::leak(
        format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n\
             {{\"success\":true,\"padding\":\"{}\"}}",
            "x".repeat(1024 * 1024)
        )
        .into_boxed_str(),
    );
    let answers = [
        giant,
        "HTTP/1.1 500 Oops\r\ncontent-type: application/json\r\ncontent-length: 16\r\n\r\n{\"success\":true}",
        "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 16\r\n\r\n{\"success\":true}",
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{\"success\":true}",
        "nonsense\r\n\r\n",
    ];
    for answer in answers {
        let (address, _) = provider(answer).await;
        let settings = settings(address);
        let verdict = verify(ChallengeKind::Recaptcha, &settings, "token");
        let is_late = tokio::time::timeout(PROVIDER_DEADLINE * 2, verdict).await;
        assert!(
            is_late.unwrap().is_err(),
            "{}",
            &answer[..answer.len().min(80)]
        );
    }
    let nobody = "127.0.0.1:1".parse().unwrap();
    assert!(
        verify(ChallengeKind::Turnstile, &settings(nobody), "t")
            .await
            .is_err()
    );
}

#[tokio::test(start_paused = true)]
async fn c_fail_a_provider_that_hangs_is_given_two_seconds() {
    let (address, _) = provider("").await;
    let asked = palisade::store::deadline::now();
    let verdict = verify(ChallengeKind::Hcaptcha, &settings(address), "token").await;
    assert!(verdict.is_err());
    assert_eq!(asked.elapsed().as_secs(), 2);
}

#[tokio::test]
async fn c_kind_nothing_but_https_and_this_machine_is_asked() {
    for url in ["http://example.com/", "ftp://127.0.0.1/", "nonsense"] {
        let settings = ProviderSettings {
            verify_url: url.into(),
            ..settings("127.0.0.1:1".parse().unwrap())
        };
        let verdict = verify(ChallengeKind::Turnstile, &settings, "token").await;
        assert!(verdict.unwrap_err().to_string().contains("https"), "{url}");
    }
}
