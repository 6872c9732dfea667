//! docs/api.md is written from the served document, and its examples are asked.
//!
//! `UPDATE=1 cargo test -p palisade-cli --test openapi the_page` writes it anew.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use serde_json::Value;

use crate::TOKEN;
use crate::common::{Client, Options, Server};

/// SHA-256 of `key-1`.
const KEY: &str = "be2974546978e3739e6d6da85c4be9f334ce32df2b9fd4b6ff1b55c0d57e9d44";
/// The header of a credential.
const HEADER: &str = "authorization";
const LOGIN: &str = r#"{"ip":"203.0.113.5","account":"a1","username":"ann@example.com"}"#;
/// Something that can be given back.
const JOB: &str = r#"{"op":"job.enqueue","org":"acme","cost":5}"#;
const RESERVE: &str = r#"{"ip":"203.0.113.5","method":"POST","path":"/reports","hold":"90s"}"#;
const REQUEST: &str = r#"{"ip":"203.0.113.5","method":"POST","path":"/auth/token"}"#;

/// What is asked of each operation that needs a body or a path: method, path, example.
fn examples() -> Vec<(&'static str, &'static str, String)> {
    let batch = format!("{{\"checks\":[{REQUEST}]}}");
    let explain = format!("{{\"request\":{REQUEST}}}");
    let entry = r#"{"type":"cidr","identifier":"198.51.100.0/24","reason":"office"}"#;
    let gone = r#"{"type":"cidr","identifier":"198.51.100.0/24"}"#;
    let reset = r#"{"subjects":[{"ip":"203.0.113.5"}],"reason":"support case"}"#;
    [
        ("POST", "/v1/check", REQUEST),
        ("POST", "/v1/peek", REQUEST),
        ("POST", "/v1/batch", batch.as_str()),
        ("POST", "/v1/refund", r#"{"receipt":"RECEIPT"}"#),
        ("POST", "/v1/reserve", RESERVE),
        (
            "POST",
            "/v1/extend",
            r#"{"reservation":"RESERVATION","hold":"2min"}"#,
        ),
        (
            "POST",
            "/v1/settle",
            r#"{"reservation":"RESERVATION","costs":{"requests":1}}"#,
        ),
        ("POST", "/v1/release", r#"{"reservation":"RESERVATION"}"#),
        ("POST", "/v1/guard/login/check", LOGIN),
        ("POST", "/v1/guard/login/failure", LOGIN),
        ("POST", "/v1/guard/login/success", LOGIN),
        ("POST", "/v1/guard/login/unknown", LOGIN),
        ("POST", "/v1/guard/otp/check", LOGIN),
        ("POST", "/v1/guard/otp/failure", LOGIN),
        ("POST", "/v1/guard/otp/success", LOGIN),
        ("POST", "/v1/guard/otp/unknown", LOGIN),
        (
            "POST",
            "/v1/guard/otp/send",
            r#"{"ip":"203.0.113.5","account":"a1","destination":"+34600123456","channel":"sms"}"#,
        ),
        ("POST", "/v1/guard/api/hit", r#"{"ip":"203.0.113.5"}"#),
        (
            "POST",
            "/v1/challenge",
            r#"{"flow":"login","ip":"203.0.113.5","account":"a1"}"#,
        ),
        (
            "POST",
            "/v1/challenge/verify",
            r#"{"flow":"login","ip":"203.0.113.5","account":"a1","solution":"eyJhbGdvcml0aG0iOi…"}"#,
        ),
        ("POST", "/v1/guard/sessions", r#"{"account":"a1"}"#),
        ("DELETE", "/v1/guard/sessions", r#"{"account":"a1"}"#),
        ("POST", "/admin/rate-limit/allowlist", entry),
        ("DELETE", "/admin/rate-limit/allowlist", gone),
        ("POST", "/admin/rate-limit/reset", reset),
        (
            "POST",
            "/admin/rate-limit/quota/{key}/reset",
            r#"{"reason":"support case"}"#,
        ),
        (
            "PUT",
            "/admin/rate-limit/quota/{key}/tier",
            r#"{"tier":"business"}"#,
        ),
        (
            "POST",
            "/admin/rate-limit/keys",
            r#"{"name":"billing","tier":"starter"}"#,
        ),
        (
            "POST",
            "/admin/rate-limit/keys/{key}/rotate",
            r#"{"overlap_seconds":3600}"#,
        ),
        (
            "POST",
            "/admin/rate-limit/keys/{key}/revoke",
            r#"{"reason":"leaked"}"#,
        ),
        (
            "POST",
            "/admin/rate-limit/clients",
            r#"{"id":"mobile","type":"confidential"}"#,
        ),
        ("DELETE", "/admin/rate-limit/clients", r#"{"id":"mobile"}"#),
        (
            "POST",
            "/admin/reservations/{id}/release",
            r#"{"reason":"the job was cancelled"}"#,
        ),
        ("POST", "/admin/explain", explain.as_str()),
        ("POST", "/admin/lookup", r#"{"account":"a1"}"#),
        ("POST", "/admin/cache/invalidate", "{}"),
        (
            "PUT",
            "/admin/attack",
            r#"{"mode":"auto","class":"auth","reason":"drill"}"#,
        ),
        (
            "DELETE",
            "/admin/blocks",
            r#"{"account":"a1","reason":"support case"}"#,
        ),
    ]
    .map(|(method, path, body)| (method, path, body.to_owned()))
    .into()
}

/// One method of a path.
struct Operation<'a> {
    method: String,
    path: &'a str,
    says: &'a Value,
}

impl Operation<'_> {
    fn is_admin(&self) -> bool {
        !self.path.starts_with("/v1/") && self.path != "/forward-auth"
    }

    fn body(&self) -> Option<String> {
        let asked = examples();
        let found = asked
            .iter()
            .find(|(method, path, _)| *method == self.method && *path == self.path);
        found.map(|(_, _, body)| body.clone())
    }

    fn needs_body(&self) -> bool {
        let content = &self.says["requestBody"]["content"];
        content["application/json"].is_object()
    }

    fn example(&self) -> String {
        let port = if self.is_admin() { 9090 } else { 8080 };
        let path = self
            .path
            .replace("{key}", "KEY")
            .replace("{id}", "ID")
            .replace("{tenant}", "acme");
        let mut line = format!("curl -s localhost:{port}{path}");
        if self.method != "GET" && (self.method != "POST" || self.body().is_none()) {
            let _ = write!(line, " -X {}", self.method);
        }
        if self.path.starts_with("/admin") || self.path.starts_with("/debug") {
            line.push_str(" -H \"Authorization: Bearer $PALISADE_ADMIN_TOKEN\"");
        }
        if self.path == "/forward-auth" {
            line.push_str(" -H 'X-Forwarded-Uri: /auth/token'");
        }
        if let Some(body) = self.body() {
            let _ = write!(line, " -d '{body}'");
        }
        line
    }
}

fn operations(document: &Value) -> Vec<Operation<'_>> {
    let paths = document["paths"].as_object().unwrap().iter();
    let mut found: Vec<Operation<'_>> = paths
        .flat_map(|(path, methods)| {
            let methods = methods.as_object().unwrap().iter();
            let methods = methods.filter(|(_, says)| says["responses"].is_object());
            methods.map(move |(method, says)| Operation {
                method: method.to_uppercase(),
                path,
                says,
            })
        })
        .collect();
    found.sort_by_key(|one| (one.is_admin(), one.path, one.method.clone()));
    found
}

/// The page.
fn page(document: &Value) -> String {
    let mut text = String::from(
        "# The HTTP API\n\nEvery path with its request, its answer and an example. This page is generated from the\n\
         OpenAPI document that the admin address serves at `/openapi.json`, and a test sends every\n\
         example. [errors.md](errors.md) explains errors, and [decisions.md](decisions.md) \
         decisions.\n\nThe decision API listens on 127.0.0.1:8080. Administration listens on \
         127.0.0.1:9090 and\nneeds a credential ([commands.md](commands.md#while-it-runs)).\n",
    );
    let mut used = BTreeSet::new();
    for one in operations(document) {
        text.push_str(&operation(&one, &mut used));
    }
    text.push_str("\n## Types\n");
    let mut written = BTreeSet::new();
    while let Some(name) = used.difference(&written).next().cloned() {
        written.insert(name.clone());
        // What a type names is written too, wherever it stands in the alphabet.
        let _ = members(&document["components"]["schemas"][&name], &mut used);
    }
    for name in written {
        let schema = &document["components"]["schemas"][&name];
        let says = sentence(schema["description"].as_str().unwrap_or_default());
        let _ = write!(text, "\n### {name}\n");
        if !says.is_empty() {
            let _ = write!(text, "\n{says}\n");
        }
        text.push_str(&members(schema, &mut used));
    }
    text
}

fn operation(one: &Operation<'_>, used: &mut BTreeSet<String>) -> String {
    let mut text = format!("\n## {} {}\n\n", one.method, one.path);
    let summary = one.says["summary"]
        .as_str()
        .or(one.says["description"].as_str());
    let _ = writeln!(text, "{}", sentence(summary.unwrap_or_default()));
    for parameter in one.says["parameters"].as_array().into_iter().flatten() {
        let (name, place) = (&parameter["name"], &parameter["in"]);
        let says = sentence(parameter["description"].as_str().unwrap_or_default());
        let (name, place) = (name.as_str().unwrap(), place.as_str().unwrap());
        let _ = write!(text, "\n- `{name}` ({place}): {says}");
    }
    if one.says["parameters"].is_array() {
        text.push('\n');
    }
    if one.needs_body() {
        let schema = &one.says["requestBody"]["content"]["application/json"]["schema"];
        let _ = write!(text, "\nRequest: {}.\n", kind(schema, used));
    }
    let content = &one.says["responses"]["200"]["content"]["application/json"];
    if content.is_object() {
        let _ = write!(text, "\nAnswer: {}.\n", kind(&content["schema"], used));
    }
    let others = one.says["responses"].as_object().unwrap().keys();
    let others: Vec<String> = others
        .filter(|code| *code != "200")
        .map(|code| format!("`{code}`"))
        .collect();
    if !others.is_empty() {
        let _ = write!(text, "\nOther statuses: {}.\n", others.join(", "));
    }
    let _ = write!(text, "\n```sh\n{}\n```\n", one.example());
    text
}

/// Members of an object as a table, or what else it may be.
fn members(schema: &Value, used: &mut BTreeSet<String>) -> String {
    let Some(properties) = schema["properties"].as_object() else {
        return format!("\n{}\n", kind(schema, used));
    };
    let required = |name: &String| {
        let names = schema["required"].as_array().into_iter().flatten();
        names.into_iter().any(|one| one == name)
    };
    let mut text = String::from("\n| member | type | |\n| --- | --- | --- |\n");
    for (name, member) in properties {
        let says = member["description"].as_str();
        let says = says.or_else(|| member["oneOf"][0]["description"].as_str());
        let says = sentence(says.unwrap_or_default());
        let star = if required(name) { "" } else { ", optional" };
        let kind = kind(member, used);
        let _ = writeln!(text, "| `{name}` | {kind}{star} | {says} |");
    }
    text
}

/// A type in words, with links.
fn kind(schema: &Value, used: &mut BTreeSet<String>) -> String {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.rsplit('/').next().unwrap();
        used.insert(name.to_owned());
        return format!("[{name}](#{})", name.to_lowercase());
    }
    for any in ["oneOf", "anyOf", "allOf"] {
        if let Some(choices) = schema[any].as_array() {
            let choices: Vec<String> = choices.iter().map(|one| kind(one, used)).collect();
            return choices.join(" or ");
        }
    }
    if let Some(words) = schema["enum"].as_array() {
        let words: Vec<String> = words
            .iter()
            .map(|word| format!("`{}`", word.as_str().unwrap_or("null")))
            .collect();
        return words.join(", ");
    }
    match &schema["type"] {
        Value::Array(types) => {
            let types: Vec<&str> = types.iter().filter_map(Value::as_str).collect();
            types.join(" or ")
        }
        Value::String(one) if one == "array" => {
            format!("list of {}", kind(&schema["items"], used))
        }
        Value::String(one) => one.clone(),
        _ => "any JSON".to_owned(),
    }
}

/// On one line, with its full stop.
fn sentence(text: &str) -> String {
    let text = text
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .replace('|', "\\|");
    match text.chars().last() {
        None | Some('.') => text,
        Some(_) => text + ".",
    }
}

fn started() -> Server {
    let config = format!(
        "[admin]\ntoken = \"env:ADMIN_TOKEN\"\n[[api_key]]\nhash = \"{KEY}\"\ntier = \"starter\"\n"
    );
    Server::with(&Options {
        config: Some(&config),
        env: &[("ADMIN_TOKEN", TOKEN)],
        ..Options::default()
    })
}

fn document(server: &Server) -> Value {
    let bearer = format!("Bearer {TOKEN}");
    let headers = [(HEADER, bearer.as_str())];
    Client::connect(server.admin)
        .send("GET", "/openapi.json", &headers, b"")
        .json()
}

#[test]
fn the_page_says_what_the_document_says() {
    let server = started();
    let written = page(&document(&server));
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/api.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&file, &written).unwrap();
    }
    let there = std::fs::read_to_string(&file).unwrap_or_default();
    let differs = there
        .lines()
        .zip(written.lines())
        .find(|(one, other)| one != other);
    assert!(there == written, "run this test with UPDATE=1: {differs:?}");
}

#[test]
fn every_example_of_the_page_is_answered() {
    let server = started();
    let document = document(&server);
    let bearer = format!("Bearer {TOKEN}");
    let receipt = server.post("/v1/check", JOB).json()["receipt"].clone();
    let reserved = server.post("/v1/reserve", RESERVE).json()["reservation"].clone();
    // Another one, for an operator to release.
    server.post("/v1/reserve", RESERVE);
    let listed = Client::connect(server.admin).send(
        "GET",
        "/admin/reservations",
        &[(HEADER, bearer.as_str())],
        b"",
    );
    let held = listed.json()["reservations"][1]["id"].clone();
    let created = Client::connect(server.admin).send(
        "POST",
        "/admin/rate-limit/keys",
        &[(HEADER, bearer.as_str())],
        br#"{"name":"reports","tier":"starter"}"#,
    );
    let created = created.json()["registration"]["key"].clone();
    let mut all = operations(&document);
    // What is taken away has to be there.
    all.sort_by_key(|one| one.method == "DELETE" || one.path.ends_with("/revoke"));
    for one in all {
        assert!(
            !one.needs_body() || one.body().is_some(),
            "no example of {}",
            one.path
        );
        // A key of the policy file is replaced in the file.
        let key = match one.path.starts_with("/admin/rate-limit/keys/") {
            true => created.as_str().unwrap_or_default(),
            false => KEY,
        };
        let path = one.path.replace("{key}", key).replace("{tenant}", "acme");
        let path = path.replace("{id}", held.as_str().unwrap_or_default());
        let body = one.body().unwrap_or_default();
        let body = body.replace("RECEIPT", receipt.as_str().unwrap_or_default());
        let body = body.replace("RESERVATION", reserved.as_str().unwrap_or_default());
        let headers = [
            (HEADER, bearer.as_str()),
            ("x-forwarded-uri", "/auth/token"),
        ];
        let headers = if one.is_admin() {
            &headers[..1]
        } else {
            &headers[1..]
        };
        let address = if one.is_admin() {
            server.admin
        } else {
            server.listen
        };
        let reply = Client::connect(address).send(&one.method, &path, headers, body.as_bytes());
        // Nothing is cached, nobody is blocked and there is no candidate here: the operation is
        // there, and says so.
        let may_be_none = ["/debug/cache/{tenant}", "/admin/blocks", "/admin/candidate"];
        let gone = may_be_none.contains(&one.path);
        let expected = matches!(reply.status, 200 | 201) || (gone && reply.status == 404);
        assert!(
            expected,
            "{} {}: {} {}",
            one.method,
            one.path,
            reply.status,
            reply.text()
        );
    }
}
