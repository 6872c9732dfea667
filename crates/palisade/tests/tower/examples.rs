//! The examples on real sockets, and the page that shows parts of them.

use std::path::Path;

use axum::Router;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[path = "../../examples/axum_limiter.rs"]
mod limiter;
#[path = "../../examples/axum.rs"]
mod policy;

/// Serves an application on a free port until the test ends.
async fn serve(application: Router) -> std::net::SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = application.into_make_service_with_connect_info::<std::net::SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await });
    address
}

/// The status line and headers of one answer.
async fn ask(address: std::net::SocketAddr, line: &str, headers: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or("none")
}

#[tokio::test]
async fn the_example_with_a_policy_limits_users_and_guards_logins() {
    let address = serve(policy::application().await.unwrap()).await;
    assert_eq!(status(&ask(address, "GET /reports", "").await), "401");
    for left in (0..10).rev() {
        let answer = ask(address, "GET /reports", "X-User: ann\r\n").await;
        assert_eq!(status(&answer), "200");
        assert!(
            answer.contains(&format!("x-ratelimit-remaining: {left}\r\n")),
            "{answer}"
        );
    }
    let refused = ask(address, "GET /reports", "X-User: ann\r\n").await;
    assert_eq!(status(&refused), "429");
    assert!(refused.contains("user_rate_limit_exceeded"), "{refused}");
    assert_eq!(
        status(&ask(address, "GET /reports", "X-User: bob\r\n").await),
        "200"
    );

    let wrong = "X-Login: ann\r\nX-Password: guess\r\nContent-Length: 0\r\n";
    let right = "X-Login: ann\r\nX-Password: correct\r\nContent-Length: 0\r\n";
    assert_eq!(status(&ask(address, "POST /login", right).await), "200");
    assert_eq!(status(&ask(address, "POST /login", wrong).await), "401");
    assert_eq!(status(&ask(address, "POST /login", wrong).await), "401");
    assert_eq!(status(&ask(address, "POST /login", right).await), "429");
}

#[tokio::test]
async fn the_example_without_a_policy_limits_addresses_and_what_is_slow() {
    let address = serve(limiter::application().unwrap()).await;
    let export = || ask(address, "GET /export", "");
    let (first, second, third) = tokio::join!(export(), export(), export());
    let mut all = [status(&first), status(&second), status(&third)];
    all.sort_unstable();
    assert_eq!(all, ["200", "200", "429"]);
}

/// Every code block of the page is in an example, word for word.
#[test]
fn the_page_shows_what_the_examples_do() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("../../docs/axum.md")).unwrap();
    let examples = ["axum.rs", "axum_limiter.rs", "tonic.rs"]
        .map(|name| std::fs::read_to_string(root.join("examples").join(name)).unwrap());
    // Programs of the tests' own crate need two things that a reader's does not.
    let plain = |text: &str| -> Vec<String> {
        let lines = text.lines().map(str::trim);
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with("#[allow"));
        lines.map(|line| line.replace("pub(crate) ", "")).collect()
    };
    let blocks: Vec<&str> = page
        .split("```rust\n")
        .skip(1)
        .map(|after| after.split_once("```").unwrap().0)
        .collect();
    assert!(blocks.len() >= 3, "the page has lost its examples");
    for block in blocks {
        let wanted = plain(block);
        let stands_in = |example: &String| {
            plain(example)
                .windows(wanted.len())
                .any(|part| part == wanted)
        };
        assert!(examples.iter().any(stands_in), "no example has:\n{block}");
    }
}
