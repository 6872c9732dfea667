//! The load on a running service, over kept-alive connections.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use palisade::SystemClock;
use palisade::core::time::Clock;
use palisade_server::failure::Failure;
use palisade_server::load::{Report, Tally};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::super::offline;
use super::Bench;

/// Variable with the caller token, unless a file is named.
const TOKEN_VARIABLE: &str = "PALISADE_CALLER_TOKEN";
/// Longest answer that is read.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

pub(super) async fn run(bench: &Bench) -> Result<Report, Failure> {
    let caller: Arc<str> = caller(bench)?.into();
    for target in &bench.target {
        TcpStream::connect(target).await.map_err(|error| {
            Failure::unavailable(
                format!("cannot connect to the service: {error}"),
                "start it with `palisade serve` and pass its address",
            )
        })?;
    }
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let tally = Arc::new(Tally::new(bench.keys, &*clock, bench.seconds));
    let tasks: Vec<_> = (0..bench.concurrency)
        .zip(bench.target.iter().cycle())
        .map(|(task, target)| {
            let work = work(
                target.clone(),
                Arc::clone(&caller),
                Arc::clone(&clock),
                Arc::clone(&tally),
                task,
                bench.keys,
            );
            tokio::spawn(work)
        })
        .collect();
    for task in tasks {
        let _ = task.await;
    }
    let what = format!(
        "POST /v1/check at {}, {} keys, {} connections, {} client threads",
        bench.target.join(", "),
        bench.keys,
        bench.concurrency,
        bench.threads
    );
    Ok(tally.report(what, bench.limit, clock.now()))
}

/// Returns the header with the caller token; empty if there is no token.
fn caller(bench: &Bench) -> Result<String, Failure> {
    let token = caller_token(bench)?;
    Ok(token.map_or_else(String::new, |token| {
        format!("x-palisade-caller: {token}\r\n")
    }))
}

/// The caller token, if there is one.
pub(super) fn caller_token(bench: &Bench) -> Result<Option<String>, Failure> {
    let token = offline::token(bench.token_file.as_deref(), TOKEN_VARIABLE)?;
    let is_odd = |token: &str| token.bytes().any(|byte| byte.is_ascii_control());
    match token {
        Some(token) if is_odd(&token) => Err(Failure::usage(
            "the caller token cannot be sent",
            "it must be one line of plain text",
        )),
        token => Ok(token.map(|token| token.to_string())),
    }
}

async fn work(
    target: String,
    caller: Arc<str>,
    clock: Arc<dyn Clock>,
    tally: Arc<Tally>,
    task: u32,
    keys: u32,
) {
    let mut buffer = vec![0; ANSWER_BYTES_MAX];
    // A hash of the task's number: the tasks start at keys that lie far apart.
    let mut key = task.wrapping_mul(2_654_435_761) % keys;
    while !tally.is_over(clock.now()) {
        let Ok(mut connection) = TcpStream::connect(&target).await else {
            tally.errors.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            continue;
        };
        let _ = connection.set_nodelay(true);
        while !tally.is_over(clock.now()) {
            let started = clock.now();
            let request = request(key, &caller);
            if connection.write_all(request.as_bytes()).await.is_err() {
                break;
            }
            let Some(allowed) = answer(&mut connection, &mut buffer).await else {
                tally.errors.fetch_add(1, Ordering::Relaxed);
                break;
            };
            tally.decided(key, allowed, clock.now().since(started));
            key = key.wrapping_add(1) % keys;
        }
    }
}

/// Returns a request from an address in 10.0.0.0/8 that is made of the key, so that each key is a
/// caller of its own.
fn request(key: u32, caller: &str) -> String {
    let [_, b, c, d] = key.to_be_bytes();
    let body = format!(r#"{{"ip":"10.{b}.{c}.{d}","method":"GET","path":"/bench"}}"#);
    format!(
        "POST /v1/check HTTP/1.1\r\nhost: bench\r\n{caller}content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Reads one answer. Returns whether it admits; `None` if it is no answer.
async fn answer(connection: &mut TcpStream, buffer: &mut [u8]) -> Option<bool> {
    let mut filled = 0;
    loop {
        let read = connection.read(buffer.get_mut(filled..)?).await.ok()?;
        if read == 0 {
            return None;
        }
        filled += read;
        let seen = buffer.get(..filled)?;
        let Some(head) = find(seen, b"\r\n\r\n") else {
            continue;
        };
        let length = content_length(seen.get(..head)?)?;
        if filled >= head + 4 + length {
            let body = seen.get(head + 4..head + 4 + length)?;
            let is_decision = seen.starts_with(b"HTTP/1.1 200");
            return is_decision.then(|| find(body, br#""decision":"allow""#).is_some());
        }
    }
}

fn content_length(head: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(head).ok()?;
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse().ok())?
    })
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len())
        .position(|window| window == wanted)
}
