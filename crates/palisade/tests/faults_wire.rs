//! The engine over a real store behind a wire that goes wrong: silent, slow, garbled or
//! cut in the middle of an answer.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]
#![recursion_limit = "256"]

mod faults_support;
#[path = "../../palisade-store/tests/common/postgres_server.rs"]
mod postgres_server;
#[path = "../../palisade-store/tests/common/redis_server.rs"]
mod redis_server;

use std::path::PathBuf;

use faults_support::{Bench, DEADLINE, Data};
use palisade::store::postgres::{PostgresConfig, PostgresStore, SchemaPolicy};
use palisade::store::redis::{RedisConfig, RedisStore};
use postgres_server::PostgresServer;
use redis_server::RedisServer;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;

/// Behaviour of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    /// Bytes pass unchanged.
    Fair,
    /// Connections are accepted, and nothing is answered.
    Silent,
    /// Answers come after the deadline.
    Slow,
    /// Other bytes replace the answer.
    Garbled,
    /// Half of an answer arrives, then the connection ends.
    CutOff,
}

#[derive(Clone)]
enum Behind {
    Port(u16),
    Socket(PathBuf),
}

/// A wire to a server, with its behaviour.
struct Wire {
    port: u16,
    manner: watch::Sender<Manner>,
}

impl Wire {
    async fn to(behind: Behind) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (manner, seen) = watch::channel(Manner::Fair);
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let (behind, seen) = (behind.clone(), seen.clone());
                tokio::spawn(async move {
                    match behind {
                        Behind::Port(port) => {
                            let server = TcpStream::connect(("127.0.0.1", port)).await;
                            connected(client, server.unwrap(), seen).await;
                        }
                        Behind::Socket(path) => {
                            let server = UnixStream::connect(path).await;
                            connected(client, server.unwrap(), seen).await;
                        }
                    }
                });
            }
        });
        Self { port, manner }
    }

    fn becomes(&self, manner: Manner) {
        self.manner.send_replace(manner);
    }
}

/// Forwards one connection until either side ends it, or until it has lost bytes.
async fn connected<S: AsyncRead + AsyncWrite + Unpin>(
    mut client: TcpStream,
    mut server: S,
    mut manner: watch::Receiver<Manner>,
) {
    let (mut asked, mut answered) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
    let mut has_lost = false;
    loop {
        let now = *manner.borrow();
        tokio::select! {
            read = client.read(&mut asked) => match read {
                Ok(0) | Err(_) => return,
                Ok(_) if now == Manner::Silent => has_lost = true,
                Ok(size) => if server.write_all(&asked[..size]).await.is_err() { return },
            },
            read = server.read(&mut answered) => {
                let Ok(size @ 1..) = read else { return };
                match now {
                    Manner::Fair => {}
                    Manner::Silent => { has_lost = true; continue }
                    Manner::Slow => tokio::time::sleep(DEADLINE * 2).await,
                    Manner::Garbled => {
                        has_lost = true;
                        let _ = client.write_all(b"\x16\x03 what? \r\n\xff\x00\r\n").await;
                        continue;
                    }
                    Manner::CutOff => {
                        let _ = client.write_all(&answered[..size / 2]).await;
                        return;
                    }
                }
                if client.write_all(&answered[..size]).await.is_err() { return }
            },
            // A connection that has lost bytes cannot be continued.
            _ = manner.changed() => if has_lost { return },
        }
    }
}

async fn goes_wrong(bench: &Bench, wire: &Wire, manner: Manner) {
    bench.healthy().await;
    wire.becomes(manner);
    bench.broken().await;
    wire.becomes(Manner::Fair);
    bench.recovered(Data::Kept).await;
}

async fn redis_behind(manner: Manner) {
    let server = RedisServer::start();
    let wire = Wire::to(Behind::Port(server.port)).await;
    let config = RedisConfig {
        deadline: DEADLINE,
        ..RedisConfig::new(format!("redis://127.0.0.1:{}", wire.port))
    };
    let bench = Bench::new(RedisStore::new(config).unwrap());
    goes_wrong(&bench, &wire, manner).await;
}

async fn postgres_behind(manner: Manner) {
    let server = PostgresServer::start(&[]).await;
    let direct = server.database().await;
    PostgresStore::connect(&direct).await.unwrap();
    let socket = server.folder().join(".s.PGSQL.5432");
    let wire = Wire::to(Behind::Socket(socket)).await;
    let address = format!(
        "host=127.0.0.1 port={} user=palisade dbname={} sslmode=disable",
        wire.port,
        server.last_database()
    );
    let mut config = PostgresConfig::parse(&address).unwrap();
    config.schema = SchemaPolicy::Migrate;
    config.deadline = DEADLINE;
    config.sweep = None;
    let bench = Bench::new(PostgresStore::open(&config, None).unwrap());
    goes_wrong(&bench, &wire, manner).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_closed_a_redis_that_accepts_and_is_silent() {
    redis_behind(Manner::Silent).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_closed_a_redis_that_answers_too_late() {
    redis_behind(Manner::Slow).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_closed_a_redis_that_answers_garbage() {
    redis_behind(Manner::Garbled).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_closed_a_redis_that_is_cut_off_in_the_middle_of_an_answer() {
    redis_behind(Manner::CutOff).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_closed_a_postgres_that_accepts_and_is_silent() {
    postgres_behind(Manner::Silent).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_closed_a_postgres_that_answers_too_late() {
    postgres_behind(Manner::Slow).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_closed_a_postgres_that_answers_garbage() {
    postgres_behind(Manner::Garbled).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_closed_a_postgres_that_is_cut_off_in_the_middle_of_an_answer() {
    postgres_behind(Manner::CutOff).await;
}
