//! One call to the admin API.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::uri::Authority;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_rustls::HttpsConnectorBuilder;
use palisade_server::connect::{self, NamedFile};
use palisade_server::failure::{CommandStatus, Failure};
use palisade_server::output;
use rustls::ClientConfig;
use serde_json::Value;
use tower_service::Service;

use super::super::offline;
use super::unanswered::CallFailure;

/// Longest time for a call.
const PATIENCE: Duration = Duration::from_secs(10);
/// Admin address of a server, unless configured otherwise.
const ADMIN_DEFAULT: &str = "127.0.0.1:9090";
/// Variable with the token, unless a file is named.
const TOKEN_VARIABLE: &str = "PALISADE_ADMIN_TOKEN";
/// Largest answer that is read.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The server to ask, and the form of the output.
#[derive(Clone, Debug, Args)]
pub(crate) struct Server {
    /// Admin address of the running server; https://HOST:PORT if it speaks TLS [default:
    /// 127.0.0.1:9090]
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<String>,
    /// Authority of the server's certificate, in PEM [default: the system's]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Client certificate to present to the server, in PEM
    #[arg(long, value_name = "FILE", requires = "cert_key")]
    cert: Option<PathBuf>,
    /// Private key of `--cert`, in PEM
    #[arg(long, value_name = "FILE", requires = "cert")]
    cert_key: Option<PathBuf>,
    /// File with the admin token [default: the variable `PALISADE_ADMIN_TOKEN`]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Server {
    /// Calls the server and prints its answer: unchanged with `--json`, else as formatted by
    /// `show`.
    pub(crate) fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        show: impl FnOnce(&Value) -> String,
    ) -> Result<CommandStatus, Failure> {
        self.ask_then(method, path, body, show, |_| CommandStatus::Done)
    }

    /// Like [`Server::ask`], with the ending that `ending` reads from the answer.
    pub(super) fn ask_then(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        show: impl FnOnce(&Value) -> String,
        ending: impl FnOnce(&Value) -> CommandStatus,
    ) -> Result<CommandStatus, Failure> {
        let (status, answer) = self.call(method, path, body)?;
        if status.is_success() {
            if self.json {
                output::json(&answer);
            } else {
                output::print(&show(&answer));
            }
            return Ok(ending(&answer));
        }
        if status == StatusCode::NOT_FOUND {
            output::error_line(message(&answer));
            return Ok(CommandStatus::Negative);
        }
        Err(refused(status, &answer))
    }

    /// Calls the server, and returns its answer.
    pub(crate) fn get(&self, path: &str) -> Result<Value, Failure> {
        let (status, answer) = self.call(Method::GET, path, None)?;
        match status.is_success() {
            true => Ok(answer),
            false => Err(refused(status, &answer)),
        }
    }

    pub(crate) const fn prints_json(&self) -> bool {
        self.json
    }

    /// This server, at this address unless another was named.
    pub(in super::super) fn or_at(mut self, admin: String) -> Self {
        self.admin.get_or_insert(admin);
        self
    }

    fn admin(&self) -> &str {
        self.admin.as_deref().unwrap_or(ADMIN_DEFAULT)
    }

    /// The answer at a path, as text.
    pub(in super::super) fn text(&self, path: &str) -> Result<(StatusCode, String), Failure> {
        let (status, bytes) = self.fetch(Method::GET, path, None)?;
        Ok((status, String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// The server's answer to a body.
    pub(in super::super) fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        let (status, answer) = self.call(Method::POST, path, Some(body))?;
        match status.is_success() {
            true => Ok(answer),
            false => Err(refused(status, &answer)),
        }
    }

    /// Sends a request to another address, and returns its answer; redirects are not followed.
    pub(in super::super) fn send_to(
        &self,
        method: Method,
        url: &str,
        headers: &[(HeaderName, String)],
        body: String,
    ) -> Result<Response<Bytes>, Failure> {
        let mut request = Request::builder().method(method).uri(url);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(Bytes::from(body)));
        let request = request.map_err(|_| {
            Failure::usage("the address cannot be asked", "write host:port, or a URL")
        })?;
        self.deliver(request, url)
    }

    fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(StatusCode, Value), Failure> {
        let (status, bytes) = self.fetch(method, path, body)?;
        let value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        Ok((status, value))
    }

    fn fetch(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(StatusCode, Bytes), Failure> {
        let mut request = Request::builder()
            .method(method)
            .uri(self.url(path))
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(token) = offline::token(self.token_file.as_deref(), TOKEN_VARIABLE)? {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let body = body.map_or_else(Bytes::new, |body| Bytes::from(body.to_string()));
        let request = request.body(Full::new(body)).map_err(|_| {
            Failure::usage(
                "the address or the token cannot be sent",
                "`--admin` takes host:port; the token must be one line of plain text",
            )
        })?;
        let answer = self.deliver(request, &format!("the admin API at {}", self.admin()))?;
        Ok((answer.status(), answer.into_body()))
    }

    fn deliver(
        &self,
        request: Request<Full<Bytes>>,
        whom: &str,
    ) -> Result<Response<Bytes>, Failure> {
        let tls = self.tls()?;
        let runtime = offline::runtime()?;
        runtime
            .block_on(async { tokio::time::timeout(PATIENCE, send(tls, request)).await })
            .unwrap_or(Err(CallFailure::Nobody))
            .map_err(|unanswered| unanswered.failure(whom))
    }

    fn url(&self, path: &str) -> String {
        let admin = self.admin();
        match admin.contains("://") {
            true => format!("{}{path}", admin.trim_end_matches('/')),
            false => format!("http://{admin}{path}"),
        }
    }

    fn tls(&self) -> Result<ClientConfig, Failure> {
        let authority = self
            .ca
            .as_deref()
            .map(|path| NamedFile { name: "--ca", path });
        let pair = self.cert.as_deref().zip(self.cert_key.as_deref());
        let pair = pair.map(|(cert, key)| {
            (
                NamedFile {
                    name: "--cert",
                    path: cert,
                },
                NamedFile {
                    name: "--cert-key",
                    path: key,
                },
            )
        });
        connect::client(authority, pair)
    }
}

/// Sends one request on a connection of its own: no pool, and no HTTP/2.
async fn send(
    tls: ClientConfig,
    request: Request<Full<Bytes>>,
) -> Result<Response<Bytes>, CallFailure> {
    let mut connector = HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_http1()
        .build();
    let stream = connector.call(request.uri().clone()).await?;
    let (mut sender, connection) = http1::handshake(stream).await?;
    tokio::spawn(connection);
    let answer = sender.send_request(addressed(request)?).await?;
    let (parts, body) = answer.into_parts();
    let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await?;
    Ok(Response::from_parts(parts, body.to_bytes()))
}

/// Returns the request in origin form: the server in `Host` unless it says another one, the path as
/// the target.
fn addressed(mut request: Request<Full<Bytes>>) -> http::Result<Request<Full<Bytes>>> {
    let uri = std::mem::take(request.uri_mut()).into_parts();
    let host = uri.authority.as_ref().map_or("", Authority::as_str);
    let host = HeaderValue::from_str(host)?;
    let headers = request.headers_mut();
    headers.entry(header::HOST).or_insert(host);
    *request.uri_mut() = uri.path_and_query.map(Uri::from).unwrap_or_default();
    Ok(request)
}

/// The text of an answer: administration has a `message`, the rest a problem's `title`.
fn message(answer: &Value) -> &str {
    let said = answer["message"].as_str().or(answer["title"].as_str());
    said.unwrap_or("the server refused")
}

fn refused(status: StatusCode, answer: &Value) -> Failure {
    let mut text = message(answer).to_owned();
    for (field, problem) in answer["details"].as_object().into_iter().flatten() {
        text.push_str(&format!(
            "\n  `{field}` {}",
            problem.as_str().unwrap_or("is wrong")
        ));
    }
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Failure::usage(
            text,
            "set PALISADE_ADMIN_TOKEN to the token of `[admin]`, or pass --token-file; a server whose configuration has no `[admin] token` or `jwt` refuses everybody, and shows its health to `server.caller_token`",
        ),
        StatusCode::BAD_REQUEST => Failure::usage(text, "correct the named fields"),
        _ => Failure::unavailable(text, "look at /health/dependencies of the server"),
    }
}
