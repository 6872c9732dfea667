//! A Postgres server for a test: a child process with its data in a temporary folder; both end
//! with the value.

#![allow(dead_code, reason = "each test file uses its part")]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a server that does not start fails the test"
)]

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use palisade_store::postgres::{PostgresConfig, SchemaPolicy};
use tempfile::TempDir;

const MISSING: &str =
    "these tests need a Postgres server: install the package `postgresql` (15 or later)";
const READY_WITHIN: Duration = Duration::from_secs(60);

/// A running server, reached by its Unix socket.
pub(crate) struct PostgresServer {
    folder: TempDir,
    child: Child,
    databases: AtomicU32,
    settings: Vec<String>,
    port: u16,
}

impl PostgresServer {
    /// Starts a server with these additional settings (`name=value`).
    pub(crate) async fn start(settings: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        give_to_server(folder.path());
        let data = folder.path().join("data");
        let made = as_server("initdb")
            .args(["--no-sync", "-A", "trust", "-U", "palisade", "-E", "UTF8"])
            .args(["--locale=C", "-D"])
            .arg(&data)
            .stdout(Stdio::null())
            .status()
            .expect(MISSING);
        assert!(made.success(), "initdb failed");
        let port = settings.iter().find_map(|one| one.strip_prefix("port="));
        let port = port.map_or(5432, |port| port.parse().unwrap());
        let settings: Vec<String> = settings.iter().map(|one| (*one).to_owned()).collect();
        let child = spawn(folder.path(), &settings);
        let server = Self {
            folder,
            child,
            databases: AtomicU32::new(0),
            settings,
            port,
        };
        server.ready().await;
        server
    }

    /// The folder of the socket.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn address(&self, database: &str) -> String {
        format!(
            "host={} port={} user=palisade dbname={database}",
            self.folder.path().display(),
            self.port
        )
    }

    /// Address of a new, empty database, for another process.
    pub(crate) async fn url(&self) -> String {
        let name = self.create().await;
        let folder = self.folder.path().display().to_string();
        let socket = folder.replace('/', "%2F");
        format!("postgres://palisade@{socket}:{}/{name}", self.port)
    }

    async fn create(&self) -> String {
        let name = format!("t{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.sql("postgres", &format!("CREATE DATABASE {name}"))
            .await;
        name
    }

    /// Configuration for a new, empty database, with the schema made on first use. Machines that
    /// run tests are slow: the deadline is generous.
    pub(crate) async fn database(&self) -> PostgresConfig {
        let name = self.create().await;
        let mut config = PostgresConfig::parse(&self.address(&name)).unwrap();
        config.schema = SchemaPolicy::Migrate;
        config.deadline = Duration::from_secs(20);
        config.connect_timeout = config.deadline;
        config.sweep = None;
        config
    }

    /// Name of the database that was made last.
    pub(crate) fn last_database(&self) -> String {
        format!("t{}", self.databases.load(Ordering::Relaxed) - 1)
    }

    /// Runs statements and returns the text of the first column of every row.
    pub(crate) async fn sql(&self, database: &str, sql: &str) -> Vec<String> {
        self.try_sql(database, sql).await.unwrap()
    }

    async fn try_sql(
        &self,
        database: &str,
        sql: &str,
    ) -> Result<Vec<String>, tokio_postgres::Error> {
        let (client, connection) =
            tokio_postgres::connect(&self.address(database), tokio_postgres::NoTls).await?;
        let task = tokio::spawn(connection);
        let messages = client.simple_query(sql).await;
        drop(client);
        let _ = task.await;
        let rows = messages?.into_iter().filter_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => {
                Some(row.get(0).unwrap_or_default().to_owned())
            }
            _ => None,
        });
        Ok(rows.collect())
    }

    async fn ready(&self) {
        let answers = async {
            while self.try_sql("postgres", "SELECT 1").await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(READY_WITHIN, answers)
            .await
            .unwrap_or_else(|_| panic!("the server did not start:\n{}", self.log()));
    }

    /// Seconds of processor time that the server has used, ended sessions included.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        let parent = self.child.id();
        let sessions = children(parent);
        let ticks: u64 = sessions.iter().map(|pid| ticks(*pid, 13..15)).sum();
        (ticks + self::ticks(parent, 13..17)) as f64 / 100.0
    }

    /// The server's log.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Ends the server at once, with its connections.
    pub(crate) fn kill(&mut self) {
        // SIGQUIT: an immediate end, of the server's children too.
        signal("QUIT", self.child.id());
        let _ = self.child.wait();
    }

    /// Starts the server again on the same data.
    pub(crate) async fn restart(&mut self) {
        self.child = spawn(self.folder.path(), &self.settings);
        self.ready().await;
    }

    /// Freezes the server and its backends.
    pub(crate) fn pause(&self) {
        self.each_process("STOP");
    }

    /// Lets the server and its backends go on.
    pub(crate) fn resume(&self) {
        self.each_process("CONT");
    }

    fn each_process(&self, name: &str) {
        let parent = self.child.id();
        signal(name, parent);
        for child in children(parent) {
            signal(name, child);
        }
    }
}

/// A real pgbouncer in front of a server, on a port of its own.
pub(crate) struct PgBouncer {
    child: Child,
    port: u16,
}

impl PgBouncer {
    /// Starts one that hands out sessions as `mode` says: `session` or `transaction`.
    pub(crate) async fn start(server: &PostgresServer, mode: &str) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let (folder, server_port) = (server.folder.path(), server.port);
        let file = folder.join(format!("pgbouncer-{mode}.ini"));
        let text = format!(
            "[databases]\n* = host={} port={server_port} user=palisade\n[pgbouncer]\n\
             listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = any\npool_mode = {mode}\nmax_client_conn = 200\n\
             default_pool_size = 30\n",
            folder.display()
        );
        fs::write(&file, text).unwrap();
        change_owner(&file);
        let mut command = as_server("/usr/sbin/pgbouncer");
        let child = command
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = child.spawn().expect(
            "`pgbouncer` is needed for this test; on Debian install it with `apt-get install pgbouncer`",
        );
        let answers = async {
            while tokio::net::TcpStream::connect(("127.0.0.1", port))
                .await
                .is_err()
            {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(READY_WITHIN, answers).await.unwrap();
        Self { child, port }
    }

    /// Address of this database through the pooler.
    pub(crate) fn url(&self, database: &str) -> String {
        format!("postgres://palisade@127.0.0.1:{}/{database}", self.port)
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.resume();
        self.kill();
    }
}

fn children(parent: u32) -> Vec<u32> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    fs::read_to_string(path)
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .collect()
}

/// Sum of fields of `/proc/PID/stat` (counted from 0), in hundredths of a second.
pub(crate) fn ticks(pid: u32, fields: std::ops::Range<usize>) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The second field is a name in parentheses, which may hold spaces.
    let rest = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    rest.split(' ')
        .skip(fields.start - 2)
        .take(fields.len())
        .filter_map(|field| field.parse::<u64>().ok())
        .sum()
}

fn signal(name: &str, pid: u32) {
    let _ = Command::new("kill")
        .args(["-s", name, &pid.to_string()])
        .stderr(Stdio::null())
        .status();
}

fn spawn(folder: &Path, settings: &[String]) -> Child {
    let log = File::options()
        .create(true)
        .append(true)
        .open(folder.join("log"))
        .unwrap();
    let _ = fs::remove_file(folder.join("data/postmaster.pid"));
    let mut server = as_server("postgres");
    server
        .arg("-D")
        .arg(folder.join("data"))
        .arg("-k")
        .arg(folder)
        .args(["-p", "5432", "-c", "listen_addresses="])
        .args(["-c", "fsync=off", "-c", "max_connections=100"])
        .args(["-c", "shared_buffers=64MB", "-c", "autovacuum_naptime=5s"]);
    for setting in settings {
        server.args(["-c", setting]);
    }
    server
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect(MISSING)
}

/// User and group that the server runs as; `None` for our own. Postgres refuses to run as root.
fn server_user() -> Option<(u32, u32)> {
    if !fs::metadata("/proc/self").is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == 0) {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let user = users
        .lines()
        .find(|line| line.starts_with("postgres:"))
        .expect(MISSING);
    let mut fields = user.split(':').skip(2);
    let mut id = || fields.next().unwrap().parse().unwrap();
    Some((id(), id()))
}

fn give_to_server(folder: &Path) {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    change_owner(folder);
}

/// Gives a file to the server's user.
pub(crate) fn change_owner(path: &Path) {
    if let Some((user, group)) = server_user() {
        chown(path, Some(user), Some(group)).unwrap();
    }
}

fn as_server(program: &str) -> Command {
    let mut command = Command::new(binary(program));
    if let Some((user, group)) = server_user() {
        command.uid(user).gid(group);
    }
    command.current_dir("/");
    command
}

/// Path of a program of the newest installed server, or its name alone, to be found in the search
/// path.
pub(crate) fn binary(program: &str) -> PathBuf {
    let mut versions: Vec<(u32, PathBuf)> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin").join(program)))
        })
        .filter(|(_, path)| path.exists())
        .collect();
    versions.sort();
    versions
        .pop()
        .map_or_else(|| PathBuf::from(program), |(_, path)| path)
}
