//! What the benchmarks of the service share: Palisade as a child, bare services beside it on
//! the same layout of runtimes, and figures.
#![allow(dead_code, reason = "every benchmark uses a part of it")]

use std::future::Future;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use socket2::{Domain, Protocol, Socket, Type};

/// `sysconf(_SC_CLK_TCK)` on Linux.
const TICK_US: f64 = 10_000.0;
/// Threads that serve, of Palisade by the number of cores and of everything beside it.
pub(crate) const WORKERS: usize = 2;
/// The secret, as `env:KEY`.
const KEY: &str = "0123456789abcdef0123456789abcdef0123456789abcdef";
/// Names another build of Palisade to measure instead of this one.
const BINARY: &str = "PALISADE_BINARY";
const ANY: &str = "127.0.0.1:0";

/// A started service, ended when dropped.
pub(crate) struct Service {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Service {
    /// Palisade on this configuration, which is written to `folder`; says nothing but errors.
    /// Of its addresses the one on the row that begins with `row` is kept.
    pub(crate) fn palisade(folder: &Path, config: &str, args: &[&str], row: &str) -> Self {
        let config = format!("{config}\n[log]\nlevel = \"error\"\n");
        std::fs::write(folder.join("palisade.toml"), config).unwrap();
        let built = || env!("CARGO_BIN_EXE_palisade").into();
        let mut command = Command::new(std::env::var_os(BINARY).unwrap_or_else(built));
        command
            .args(["serve", "--config", "palisade.toml"])
            .args(["--listen", ANY, "--admin", ANY])
            .args(args)
            .env("KEY", KEY)
            .current_dir(folder);
        Self::start(&mut command, row)
    }

    /// This benchmark once more, as the process of a service beside Palisade: it prints its
    /// address as [`serve`] does.
    pub(crate) fn beside(args: &[&str]) -> Self {
        Self::start(
            Command::new(std::env::current_exe().unwrap()).args(args),
            "beside",
        )
    }

    fn start(command: &mut Command, row: &str) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let found = lines
            .by_ref()
            .map_while(Result::ok)
            .find(|line| line.trim_start().starts_with(row))
            .expect("the row of the address");
        let address = found
            .split_whitespace()
            .find_map(|word| word.rsplit('/').next()?.parse().ok())
            .expect("an address");
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Self { child, address }
    }

    /// Its processor time so far.
    pub(crate) fn processor_us(&self) -> f64 {
        processor_us(self.child.id())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// User and system time of a process so far.
pub(crate) fn processor_us(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name = stat.rsplit(')').next().unwrap();
    let ticks = after_name.split_whitespace().skip(11).take(2);
    let ticks: f64 = ticks.map(|ticks| ticks.parse::<f64>().unwrap()).sum();
    ticks * TICK_US
}

pub(crate) fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Serves on Palisade's layout, one current-thread runtime and one socket of the same port
/// per worker, and prints the address. Does not return.
pub(crate) fn serve<F: Future<Output = ()>>(
    service: impl Fn(tokio::net::TcpListener) -> F + Clone + Send + 'static,
) -> ! {
    let first = listener(ANY.parse().unwrap());
    let address = first.local_addr().unwrap();
    let rest = (1..WORKERS).map(|_| listener(address));
    for listener in std::iter::once(first).chain(rest) {
        let service = service.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                service(tokio::net::TcpListener::from_std(listener).unwrap()).await;
            });
        });
    }
    println!("beside Palisade   http://{address}");
    loop {
        std::thread::park();
    }
}

/// Serves on one runtime of as many threads that share a socket and all work, and prints the
/// address. Does not return.
pub(crate) fn serve_on_one<F: Future<Output = ()>>(
    service: impl FnOnce(tokio::net::TcpListener) -> F,
) -> ! {
    let listener = listener(ANY.parse().unwrap());
    println!(
        "beside Palisade   http://{}",
        listener.local_addr().unwrap()
    );
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        service(tokio::net::TcpListener::from_std(listener).unwrap()).await;
    });
    unreachable!("it serves until the process ends")
}

fn listener(address: SocketAddr) -> std::net::TcpListener {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
    socket.set_reuse_port(true).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket.bind(&address.into()).unwrap();
    socket.listen(1024).unwrap();
    socket.into()
}
