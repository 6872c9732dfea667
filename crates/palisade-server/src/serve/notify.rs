//! Messages to a supervisor like systemd: that the service is ready, that it is alive, and that it
//! stops. Each is a datagram to the socket that `NOTIFY_SOCKET` names; without that variable none
//! is sent.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use palisade_policy::Env;

/// A sender of messages to the supervisor.
pub(crate) struct Supervisor {
    line: Option<(UnixDatagram, SocketAddr)>,
    /// Interval of the messages that the service is alive, if the supervisor wants any.
    every: Option<Duration>,
}

impl Supervisor {
    /// The supervisor that the environment names, if there is one.
    pub(crate) fn of(env: &Env) -> Self {
        let line = env.get("NOTIFY_SOCKET").and_then(address);
        let socket = UnixDatagram::unbound().ok();
        let line = socket.zip(line);
        Self {
            every: line.as_ref().and_then(|_| watchdog(env)),
            line,
        }
    }

    /// Tells the supervisor that the service accepts requests.
    pub(crate) fn ready(&self) {
        self.tell("READY=1\nSTATUS=answering decisions");
    }

    /// Tells the supervisor that the service finishes open requests and then ends.
    pub(crate) fn stopping(&self) {
        self.tell("STOPPING=1\nSTATUS=answering what is under way");
    }

    /// Tells the supervisor that the service is alive, twice in the time that the supervisor waits
    /// and for as long as `is_alive` returns true. Never completes.
    pub(crate) async fn live(&self, is_alive: impl Fn() -> bool) {
        let Some(every) = self.every else {
            return std::future::pending().await;
        };
        loop {
            if is_alive() {
                self.tell("WATCHDOG=1");
            }
            tokio::time::sleep(every / 2).await;
        }
    }

    /// Sends a message. Failures are ignored: a supervisor that gets no messages acts by itself,
    /// and the service goes on.
    fn tell(&self, what: &str) {
        if let Some((socket, address)) = &self.line {
            let _ = socket.send_to_addr(what.as_bytes(), address);
        }
    }
}

/// Parses a socket address: a path, or the name of an abstract socket after an `@`.
fn address(name: &str) -> Option<SocketAddr> {
    match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name).ok(),
        None if name.starts_with('/') => SocketAddr::from_pathname(name).ok(),
        None => None,
    }
}

/// The time in `WATCHDOG_USEC`, unless `WATCHDOG_PID` names another process.
fn watchdog(env: &Env) -> Option<Duration> {
    let is_other = |pid: &str| pid.parse() != Ok(std::process::id());
    if env.get("WATCHDOG_PID").is_some_and(is_other) {
        return None;
    }
    let every = Duration::from_micros(env.get("WATCHDOG_USEC")?.parse().ok()?);
    (!every.is_zero()).then_some(every)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(socket: &UnixDatagram) -> String {
        let mut bytes = [0; 256];
        let count = socket.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    }

    #[tokio::test]
    async fn a_supervisor_hears_that_the_service_is_ready_lives_and_ends() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let own = std::process::id().to_string();
        let env = Env::from([
            ("NOTIFY_SOCKET", path.to_str().unwrap()),
            ("WATCHDOG_USEC", "20000"),
            ("WATCHDOG_PID", &own),
        ]);
        let supervisor = Supervisor::of(&env);
        supervisor.ready();
        assert!(heard(&socket).starts_with("READY=1\n"));
        let lives = supervisor.live(|| true);
        let _ = tokio::time::timeout(Duration::from_millis(50), lives).await;
        assert_eq!(heard(&socket), "WATCHDOG=1");
        assert_eq!(heard(&socket), "WATCHDOG=1");
        supervisor.stopping();
        while heard(&socket) == "WATCHDOG=1" {}
    }

    #[tokio::test]
    async fn who_is_not_asked_or_does_not_live_says_nothing() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut env = Env::from([
            ("NOTIFY_SOCKET", path.to_str().unwrap()),
            ("WATCHDOG_USEC", "10000"),
        ]);
        let dead = Supervisor::of(&env);
        let lives = dead.live(|| false);
        let _ = tokio::time::timeout(Duration::from_millis(30), lives).await;
        env.set("WATCHDOG_PID", "1");
        assert_eq!(Supervisor::of(&env).every, None);
        Supervisor::of(&Env::default()).ready();
        assert!(socket.recv(&mut [0; 8]).is_err());
    }
}
