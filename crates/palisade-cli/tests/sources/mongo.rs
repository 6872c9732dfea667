//! A mongod of one's own: a child process with its data in a temporary folder.

#![allow(dead_code, reason = "each test file uses its part")]

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use mongodb::Client;
use mongodb::bson::{Document, doc};
use mongodb::options::ClientOptions;
use tempfile::TempDir;

const MISSING: &str = "these tests need mongod: `scripts/test` installs one";
const READY_WITHIN: Duration = Duration::from_secs(60);

/// A running server.
pub(crate) struct MongoServer {
    folder: TempDir,
    child: Child,
    port: u16,
}

impl MongoServer {
    pub(crate) async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
        let port = port.unwrap().port();
        let child = spawn(folder.path(), port);
        let server = Self {
            folder,
            child,
            port,
        };
        server.ready().await;
        server
    }

    pub(crate) fn url(&self) -> String {
        format!("mongodb://127.0.0.1:{}/palisade", self.port)
    }

    async fn client(&self) -> Client {
        // Journaled: what was written survives the kill that follows.
        let url = format!("{}?journal=true", self.url());
        let mut options = ClientOptions::parse(url).await.unwrap();
        options.server_selection_timeout = Some(Duration::from_secs(20));
        Client::with_options(options).unwrap()
    }

    async fn ready(&self) {
        let client = self.client().await;
        let answers = async {
            let database = client.database("admin");
            while database.run_command(doc! { "ping": 1 }).await.is_err() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(READY_WITHIN, answers)
            .await
            .unwrap_or_else(|_| panic!("mongod did not start:\n{}", self.log()));
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Replaces a tenant's document; `limits` is JSON.
    pub(crate) async fn put(&self, tenant: &str, version: u32, limits: &str) {
        let limits: serde_json::Value = serde_json::from_str(limits).unwrap();
        let limits = mongodb::bson::serialize_to_bson(&limits).unwrap();
        let document = doc! {
            "tenant_id": tenant,
            "version": i64::from(version),
            "limits": limits,
            "updated_at": mongodb::bson::DateTime::from_millis(0),
        };
        let client = self.client().await;
        let documents = client
            .database("palisade")
            .collection::<Document>("rate_limit_policies");
        let put = documents.replace_one(doc! { "tenant_id": tenant }, document);
        put.upsert(true).await.unwrap();
    }

    pub(crate) fn signal(&self, name: &str) {
        crate::common::signal(self.child.id(), name);
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub(crate) async fn restart(&mut self) {
        self.child = spawn(self.folder.path(), self.port);
        self.ready().await;
    }
}

impl Drop for MongoServer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(folder: &Path, port: u16) -> Child {
    let data = folder.join("data");
    std::fs::create_dir_all(&data).unwrap();
    Command::new(binary())
        .args(["--bind_ip", "127.0.0.1", "--nounixsocket", "--port"])
        .arg(port.to_string())
        .args(["--wiredTigerCacheSizeGB", "0.25", "--dbpath"])
        .arg(data)
        .args(["--logappend", "--logpath"])
        .arg(folder.join("log"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect(MISSING)
}

/// Where `scripts/test` puts it, or whatever the path has.
fn binary() -> PathBuf {
    let installed = Path::new(env!("CARGO_BIN_EXE_palisade"))
        .ancestors()
        .map(|folder| folder.join("test-servers/fiftyone/db/bin/mongod"))
        .find(|path| path.exists());
    installed.unwrap_or_else(|| PathBuf::from("mongod"))
}
