//! `palisade client add|remove|list`.

use clap::{Args, Subcommand, ValueEnum};
use http::Method;
use palisade_server::failure::{CommandStatus, Failure};
use serde_json::{Value, json};

use super::super::table::Table;
use super::{Server, with_query};

const PATH: &str = "/admin/rate-limit/clients";

/// Registers, removes and lists OAuth clients of a running server.
#[derive(Debug, Args)]
pub(crate) struct Client {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Add(ClientAdd),
    Remove(ClientRemove),
    List(ClientList),
}

/// Whether a client can keep a secret.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum ClientKind {
    Public,
    Confidential,
}

/// Registers an OAuth client, on every node within a second.
#[derive(Debug, Args)]
struct ClientAdd {
    /// The client's `client_id`
    id: String,
    /// Whether the client can keep a secret
    #[arg(long = "type", value_enum)]
    kind: ClientKind,
    /// Reason, recorded in the audit
    #[arg(long)]
    reason: Option<String>,
    #[command(flatten)]
    server: Server,
}

/// Removes an OAuth client that was registered with `add`.
#[derive(Debug, Args)]
struct ClientRemove {
    /// The client's `client_id`
    id: String,
    /// Reason, recorded in the audit
    #[arg(long)]
    reason: Option<String>,
    #[command(flatten)]
    server: Server,
}

/// Lists OAuth clients and where each is registered.
#[derive(Debug, Args)]
struct ClientList {
    /// Continue after this client, which the previous page printed
    #[arg(long, value_name = "ID")]
    after: Option<String>,
    #[command(flatten)]
    server: Server,
}

fn table(clients: &[Value]) -> String {
    let mut table = Table::new(["CLIENT", "TYPE", "ORIGIN", "IN FORCE"]);
    for client in clients {
        let text = |name: &str| client[name].as_str().unwrap_or("-").to_owned();
        let in_force = match client["in_force"].as_bool() {
            Some(true) => "yes",
            _ => "no",
        };
        table.row([
            text("id"),
            text("type"),
            text("origin"),
            in_force.to_owned(),
        ]);
    }
    match table.is_empty() {
        true => "no clients\n".to_owned(),
        false => table.text(),
    }
}

fn listed(answer: &Value) -> String {
    let clients = answer["clients"].as_array().map_or(&[][..], Vec::as_slice);
    let more = match answer["next"].as_str() {
        Some(next) => format!("there are more: pass `--after {next}`\n"),
        None => String::new(),
    };
    table(clients) + &more
}

fn body(id: &str, reason: Option<&String>) -> Value {
    let mut body = json!({"id": id});
    if let Some(reason) = reason {
        body["reason"] = json!(reason);
    }
    body
}

impl Client {
    pub(crate) fn run(self) -> Result<CommandStatus, Failure> {
        match self.command {
            Command::Add(command) => command.run(),
            Command::Remove(command) => command.run(),
            Command::List(command) => command.run(),
        }
    }
}

impl ClientAdd {
    fn run(self) -> Result<CommandStatus, Failure> {
        let mut body = body(&self.id, self.reason.as_ref());
        body["type"] = json!(match self.kind {
            ClientKind::Public => "public",
            ClientKind::Confidential => "confidential",
        });
        let shown = |answer: &Value| table(std::slice::from_ref(answer));
        self.server.ask(Method::POST, PATH, Some(&body), shown)
    }
}

impl ClientRemove {
    fn run(self) -> Result<CommandStatus, Failure> {
        let body = body(&self.id, self.reason.as_ref());
        let said = |_: &Value| "removed\n".to_owned();
        self.server.ask(Method::DELETE, PATH, Some(&body), said)
    }
}

impl ClientList {
    fn run(self) -> Result<CommandStatus, Failure> {
        let path = with_query(PATH, &[("after", self.after.as_deref())]);
        self.server.ask(Method::GET, &path, None, listed)
    }
}
