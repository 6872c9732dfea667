//! `palisade explain`: says why a subject is blocked or throttled now.

use clap::Args;
use http::Method;
use palisade_server::failure::{CommandStatus, Failure};
use serde_json::{Map, Value, json};

use super::{Server, looked_up};

/// Explains why a subject is blocked or throttled now, with rule ids.
///
/// Nothing is counted. `--account` and `--username` ask the guard, `--path` asks the limits of
/// requests, and `--domain` those of Envoy's descriptors.
#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// Client address; without it, blocks of addresses and lockouts are not looked up
    #[arg(long, required_unless_present_any = ["domain", "account"])]
    ip: Option<String>,
    /// Account of a login, as typed or as the application knows it
    #[arg(long)]
    account: Option<String>,
    /// Name or email, for the lockout at `--ip`
    #[arg(long, requires = "ip")]
    username: Option<String>,
    /// The device's client id
    #[arg(long, value_name = "ID")]
    device: Option<String>,
    /// The device's fingerprint
    #[arg(long)]
    fingerprint: Option<String>,
    /// User agent
    #[arg(long)]
    user_agent: Option<String>,
    /// Path of a request
    #[arg(long)]
    path: Option<String>,
    /// Method of a request
    #[arg(long, default_value = "GET")]
    method: String,
    /// User of a request
    #[arg(long)]
    user: Option<String>,
    /// Organisation of a request
    #[arg(long)]
    org: Option<String>,
    /// Domain of a call of Envoy
    #[arg(long, requires = "descriptor", conflicts_with_all = ["ip", "account", "username", "path"])]
    domain: Option<String>,
    /// Descriptor of the call, with its entries separated by commas; may be given several times. If
    /// a value contains commas: a JSON list, `[{"key":"K","value":"V"}]`
    #[arg(long, value_name = "KEY=VALUE,…", requires = "domain")]
    descriptor: Vec<String>,
    /// Hits of the call
    #[arg(long, requires = "domain", default_value_t = 1)]
    hits: u32,
    #[command(flatten)]
    server: Server,
}

impl Explain {
    pub(crate) fn run(self) -> Result<CommandStatus, Failure> {
        let mut subject = json!({});
        if let Some(domain) = &self.domain {
            let descriptors: Result<Vec<Value>, Failure> = self
                .descriptor
                .iter()
                .map(|text| descriptor(text))
                .collect();
            subject["rls"] =
                json!({"domain": domain, "descriptors": descriptors?, "hits": self.hits});
        } else if self.account.is_some() || self.username.is_some() || self.path.is_none() {
            subject["guard"] = self.guard();
        }
        if let Some(path) = &self.path {
            subject["request"] = fields([
                ("ip", self.ip.as_ref()),
                ("method", Some(&self.method)),
                ("path", Some(path)),
                ("user", self.user.as_ref()),
                ("org", self.org.as_ref()),
                ("user_agent", self.user_agent.as_ref()),
            ]);
        }
        self.server
            .ask(Method::POST, "/admin/explain", Some(&subject), shown)
    }

    fn guard(&self) -> Value {
        let mut guard = fields([
            ("ip", self.ip.as_ref()),
            ("account", self.account.as_ref()),
            ("username", self.username.as_ref()),
            ("user_agent", self.user_agent.as_ref()),
        ]);
        guard["device"] = fields([
            ("client_id", self.device.as_ref()),
            ("fingerprint", self.fingerprint.as_ref()),
        ]);
        guard
    }
}

fn fields<const N: usize>(list: [(&str, Option<&String>); N]) -> Value {
    let given = list
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), json!(value?))));
    Value::Object(given.collect::<Map<_, _>>())
}

/// Parses `path=/login,remote_address=203.0.113.5` into entries.
fn descriptor(text: &str) -> Result<Value, Failure> {
    let wrong = || {
        let hint = "write `--descriptor KEY=VALUE,KEY=VALUE`, or a JSON list of entries where a \
            value has a comma";
        Failure::usage("`--descriptor` is no list of entries", hint)
    };
    if text.starts_with('[') {
        return serde_json::from_str(text).map_err(|_| wrong());
    }
    let entry = |part: &str| {
        let (key, value) = part.split_once('=')?;
        Some(json!({"key": key, "value": value}))
    };
    let entries: Option<Vec<Value>> = text.split(',').map(entry).collect();
    entries.map(Value::Array).ok_or_else(wrong)
}

fn shown(answer: &Value) -> String {
    let mut text = format!("{}\n", answer["decision"].as_str().unwrap_or("-"));
    text.push_str(&looked_up(answer));
    for finding in answer["findings"].as_array().into_iter().flatten() {
        text.push_str(&format!("- {}", finding["words"].as_str().unwrap_or("-")));
        if let Some(rule) = finding["rule"].as_str() {
            text.push_str(&format!(" [{rule}]"));
        }
        text.push('\n');
        if let Some(help) = finding["help"].as_str() {
            text.push_str(&format!("  to end it now: {help}\n"));
        }
    }
    text
}
