//! `palisade policy`: shows the policy in force.

use std::fmt::Write;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use palisade_core::path::normalise;
use palisade_core::policy::{Host, Limit, PolicySet, TenantPolicy};
use palisade_policy::document::Figure;
use palisade_policy::{Env, Place};
use palisade_server::config::{self, Config, words};
use palisade_server::failure::{CommandStatus, Failure};
use palisade_server::output;
use palisade_server::serve::Elsewhere;
use serde_json::{Value, json};

use super::offline;
use super::serve::Flags;
use super::table::Table;

/// Shows the policy in force and the origin of each setting.
///
/// With `--path`, shows the class, limits and buckets of such a request. Accepts the flags of
/// `serve`, to show the policy with which it would run.
#[derive(Debug, Args)]
pub(crate) struct Policy {
    /// Configuration and policy file [default: the embedded policy]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Show the policy with the settings of this organisation
    #[arg(long, value_name = "ORG")]
    tenant: Option<String>,
    /// Show the limits of a request to this path
    #[arg(long)]
    path: Option<String>,
    /// Method of that request
    #[arg(long, default_value = "GET", requires = "path")]
    method: String,
    /// Host of that request, for routes that name hosts
    #[arg(long, requires = "path")]
    host: Option<String>,
    /// Also show settings that have their default
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    flags: Flags,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A policy to show.
struct PolicyView {
    config: Config,
    figures: Vec<Figure>,
    tenant: Option<Arc<TenantPolicy>>,
}

impl Policy {
    pub(crate) fn run(self) -> Result<CommandStatus, Failure> {
        let env = Env::from_process();
        let read = |path| Target::read(&self.method, self.host.as_deref(), path);
        let target = self.path.as_deref().map(read).transpose()?;
        let (config, figures) =
            config::list(self.config.as_deref(), &env, &self.flags.overrides())?;
        let tenant = match &self.tenant {
            Some(org) => offline::runtime()?.block_on(tenant(&config, org))?,
            None => None,
        };
        let shown = PolicyView {
            config,
            figures,
            tenant,
        };
        match (&target, self.json) {
            (None, false) => output::print(&shown.whole(self.all)),
            (None, true) => output::json(&shown.whole_as_json()),
            (Some(target), false) => output::print(&shown.request(target)?),
            (Some(target), true) => output::json(&shown.request_as_json(target)?),
        }
        Ok(CommandStatus::Done)
    }
}

/// The request to show the limits of.
struct Target<'a> {
    method: &'a str,
    host: Option<Host>,
    path: &'a str,
}

impl<'a> Target<'a> {
    fn read(method: &'a str, host: Option<&str>, path: &'a str) -> Result<Self, Failure> {
        let not_a_host = || Failure::usage("`--host` is not a host name", "such as `shop.example`");
        let parse = |host| Host::parse(host).ok_or_else(not_a_host);
        Ok(Self {
            method,
            host: host.map(parse).transpose()?,
            path,
        })
    }
}

/// Returns a tenant's own limits, from the file or the policy source.
async fn tenant(config: &Config, org: &str) -> Result<Option<Arc<TenantPolicy>>, Failure> {
    let source = Elsewhere::of(&config.source).await?;
    let found = source.fetch(&config.source, org).await?;
    match found {
        None => Ok(config.bundle.tenants.find(org)),
        Some(document) => match document.check(config.policy()) {
            Ok(policy) => Ok(Some(Arc::new(policy))),
            Err(refused) => Err(Failure::usage(
                format!("the tenant's policy is refused: {refused}"),
                "correct it in the policy source",
            )),
        },
    }
}

impl PolicyView {
    fn policy(&self) -> &PolicySet {
        self.config.policy()
    }

    /// Returns the figure in force and its origin.
    fn figure(&self, limit: &Limit) -> (String, String) {
        let own = self.tenant.as_ref().and_then(|tenant| tenant.spec(limit));
        match own {
            Some(spec) => (words::figure(limit, spec), "tenant".to_owned()),
            None => (
                words::figure(limit, &limit.def.spec),
                origin(
                    &self
                        .config
                        .places
                        .of_key(&format!("limit.{}.rate", limit.name)),
                ),
            ),
        }
    }

    fn source(&self) -> String {
        let file = self.config.path.as_ref().map(|path| path.display());
        match (file, self.config.source.defaults) {
            (Some(file), true) => format!("{file} over the embedded defaults"),
            (Some(file), false) => format!("{file} alone"),
            (None, _) => "the embedded default policy".to_owned(),
        }
    }

    fn whole(&self, all: bool) -> String {
        let policy = self.policy();
        let mut text = format!("{}\n", self.source());
        if !policy.enabled {
            text.push_str("ENFORCEMENT IS OFF: `RATE_LIMIT_ENABLED` is false\n");
        }
        let _ = writeln!(text, "guard: {}\n", words::guard(policy));
        let mut table = Table::new([
            "LIMIT",
            "RATE",
            "BUCKET",
            "APPLIES TO",
            "STORE DOWN",
            "FROM",
        ]);
        for limit in policy.limits() {
            let (rate, from) = self.figure(limit);
            table.row([
                limit.name.to_string(),
                rate,
                words::bucket(limit),
                words::applies_to(limit),
                words::failure(limit).to_owned(),
                from,
            ]);
        }
        text.push_str(&table.text());
        text.push_str(&self.figures(all));
        text
    }

    fn figures(&self, all: bool) -> String {
        let mut table = Table::new(["FIGURE", "VALUE", "FROM"]);
        let changed = self
            .figures
            .iter()
            .filter(|figure| all || !figure.place.is_default());
        for figure in changed {
            table.row([
                figure.key.clone(),
                figure.value.clone().unwrap_or_else(|| "-".to_owned()),
                origin(&figure.place),
            ]);
        }
        match (table.is_empty(), all) {
            (true, _) => "\nevery other figure is the default (`--all` lists them)\n".to_owned(),
            (false, true) => format!("\n{}", table.text()),
            (false, false) => format!(
                "\n{}every other figure is the default (`--all` lists them)\n",
                table.text()
            ),
        }
    }

    fn whole_as_json(&self) -> Value {
        let policy = self.policy();
        let figure = |figure: &Figure| json!({"key": figure.key, "value": figure.value, "from": origin(&figure.place)});
        json!({
            "source": self.source(),
            "enabled": policy.enabled,
            "revision": policy.revision,
            "guard": words::guard(policy),
            "limits": policy.limits().iter().map(|limit| self.limit(limit)).collect::<Vec<_>>(),
            "figures": self.figures.iter().map(figure).collect::<Vec<_>>(),
        })
    }

    fn limit(&self, limit: &Limit) -> Value {
        let (rate, from) = self.figure(limit);
        let def = &limit.def;
        json!({
            "name": &*limit.name,
            "rate": rate,
            "from": from,
            "by": def.by.iter().map(words::dimension).collect::<Vec<_>>(),
            "class": def.classes,
            "operation": def.operations,
            "applies_to": words::applies_to(limit),
            "bucket": words::bucket(limit),
            "cost": def.cost,
            "failure": words::failure(limit),
        })
    }

    fn met(&self, target: &Target<'_>) -> Result<MatchedRules<'_>, Failure> {
        let policy = self.policy();
        let slash = policy.settings.encoded_slash;
        let normal = normalise(target.path.as_bytes(), slash).map_err(|error| {
            Failure::usage(
                error.to_string(),
                "such a request is refused before any limit is asked",
            )
        })?;
        let path = normal.judged().to_owned();
        let method = target.method.to_ascii_uppercase();
        let route = policy.routes().find(&method, target.host.as_ref(), &path);
        let class = route.class.map(ToString::to_string);
        let operation = route.operation.map(ToString::to_string);
        let of = |filter: &[String], value: &Option<String>| {
            filter.is_empty() || value.as_ref().is_some_and(|value| filter.contains(value))
        };
        let limits = policy.limits().iter().filter(|limit| {
            !route.exempt
                && limit.is_of_requests()
                && of(&limit.def.classes, &class)
                && of(&limit.def.operations, &operation)
        });
        Ok(MatchedRules {
            limits: limits.collect(),
            pattern: route.pattern.map(ToOwned::to_owned),
            scope: route.scope.map(ToOwned::to_owned),
            api_key: route.api_key_required,
            cost: route.cost.map_or(1, NonZeroU32::get),
            exempt: route.exempt,
            class,
            operation,
            method,
            path,
        })
    }

    fn request(&self, target: &Target<'_>) -> Result<String, Failure> {
        let met = self.met(target)?;
        let mut text = format!("{} {}\n", met.method, met.path);
        let mut row = |name: &str, value: String| {
            let _ = writeln!(text, "  {name:<11}{value}");
        };
        row("route", met.pattern.unwrap_or_else(|| "none".to_owned()));
        match &met.class {
            Some(class) => {
                let kind = self.policy().class_kind(class);
                row("class", format!("{class} ({})", words::class(kind)));
            }
            None => row("class", "none".to_owned()),
        }
        row(
            "operation",
            met.operation.unwrap_or_else(|| "none".to_owned()),
        );
        if let Some(scope) = met.scope {
            row("needs", format!("the scope {scope}"));
        }
        if met.api_key {
            row("needs", "an API key".to_owned());
        }
        if met.cost > 1 {
            row("cost", met.cost.to_string());
        }
        let mut table = Table::new(["LIMIT", "RATE", "BUCKET", "FOR", "FROM"]);
        for limit in &met.limits {
            let (rate, from) = self.figure(limit);
            table.row([
                limit.name.to_string(),
                rate,
                words::bucket(limit),
                words::applies_to(limit),
                from,
            ]);
        }
        match table.is_empty() {
            true if met.exempt => {
                text.push_str("\nthe route is exempt: no limit counts it while the store answers\n")
            }
            true => text.push_str("\nno limit counts it: it is answered with 503\n"),
            false => {
                let _ = write!(
                    text,
                    "\nin this order, as far as the request says who it is:\n{}",
                    table.text()
                );
            }
        }
        Ok(text)
    }

    fn request_as_json(&self, target: &Target<'_>) -> Result<Value, Failure> {
        let met = self.met(target)?;
        let limits: Vec<Value> = met.limits.iter().map(|limit| self.limit(limit)).collect();
        Ok(json!({
            "method": met.method,
            "path": met.path,
            "route": met.pattern,
            "class": met.class,
            "operation": met.operation,
            "scope": met.scope,
            "api_key_required": met.api_key,
            "cost": met.cost,
            "exempt": met.exempt,
            "limits": limits,
        }))
    }
}

/// The route, limits and cost that apply to a request.
struct MatchedRules<'a> {
    method: String,
    path: String,
    pattern: Option<String>,
    class: Option<String>,
    operation: Option<String>,
    scope: Option<String>,
    api_key: bool,
    cost: u32,
    exempt: bool,
    limits: Vec<&'a Limit>,
}

/// Returns the origin of a figure in a word.
fn origin(place: &Place) -> String {
    match place {
        place if place.is_default() => "default".to_owned(),
        Place::File { path, line, .. } => format!("{}:{line}", path.display()),
        place => place.to_string(),
    }
}
