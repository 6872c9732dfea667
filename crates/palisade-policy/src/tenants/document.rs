//! Turns a tenant's document into a [`TenantPolicy`], checked against the policy it overrides.
//!
//! Reasons name fields and limits, never a value.

use std::num::NonZeroU64;

use palisade_core::limit::{Algorithm, BucketSpec, FIGURE_MAX};
use palisade_core::policy::{Dimension, Limit, PolicySet, TenantPolicy};
use serde_json::{Map, Value};

use crate::document::error::{nearest, shown};
use crate::policy::values::Rate;

/// Most limits that one tenant overrides.
const LIMITS_MAX: usize = 100;

/// Fields that a document may have; the identity and the times are not checked.
const FIELDS: [&str; 6] = [
    "_id",
    "tenant_id",
    "version",
    "limits",
    "updated_at",
    "note",
];

/// A tenant's policy as a source delivers it: `version` and `limits`.
#[derive(Clone)]
pub struct Document {
    /// The tenant.
    pub tenant: Box<str>,
    /// The document's fields.
    pub body: Map<String, Value>,
}

/// The reason why a document cannot be used, without identifiers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DocumentError(pub(super) String);

fn refuse<T>(field: &str, problem: &str) -> Result<T, DocumentError> {
    Err(DocumentError(format!("`{field}` {problem}")))
}

impl Document {
    /// The version as it is written; 0 without one.
    pub(super) fn stated_version(&self) -> u64 {
        self.body
            .get("version")
            .and_then(Value::as_u64)
            .unwrap_or(0)
    }

    /// Checks the whole document; a single wrong limit refuses all of it.
    ///
    /// # Errors
    /// The first problem.
    pub fn check(&self, base: &PolicySet) -> Result<TenantPolicy, DocumentError> {
        if let Some(field) = self.body.keys().find(|key| !FIELDS.contains(&&***key)) {
            let hint = match nearest(field, FIELDS) {
                Some(name) => format!("is no field of a policy: did you mean `{name}`?"),
                None => "is no field of a policy".to_owned(),
            };
            return refuse(&shown(field), &hint);
        }
        let version = version(self.body.get("version"))?;
        let limits = match self.body.get("limits") {
            Some(Value::Object(limits)) => limits,
            Some(_) => return refuse("limits", "must map names of limits to rates"),
            None => return refuse("limits", "is missing"),
        };
        if limits.len() > LIMITS_MAX {
            return refuse("limits", &format!("must not have more than {LIMITS_MAX}"));
        }
        let checked: Result<Vec<_>, _> = limits
            .iter()
            .map(|(name, figure)| {
                let limit = overridable(base, name)?;
                Ok((limit, spec(limit, figure)?))
            })
            .collect();
        Ok(TenantPolicy::new(version, checked?))
    }
}

fn version(value: Option<&Value>) -> Result<u64, DocumentError> {
    match value {
        None | Some(Value::Null) => Ok(0),
        Some(value) => match value.as_u64() {
            Some(version) => Ok(version),
            None => refuse("version", "must be a whole number, not below 0"),
        },
    }
}

/// Finds a limit that tenants may override: one that counts separately for each organisation. A
/// bucket that several organisations share would be judged by the override of each.
fn overridable<'p>(base: &'p PolicySet, name: &str) -> Result<&'p Limit, DocumentError> {
    let field = format!("limits.{}", shown(name));
    let Some(limit) = base.limit(name) else {
        let names = base.limits().iter().map(|limit| &*limit.name);
        return match nearest(name, names) {
            Some(near) => refuse(&field, &format!("is no limit: did you mean `{near}`?")),
            None => refuse(&field, "is no limit of the policy in force"),
        };
    };
    let org_key = base.settings.rls.org_key.as_ref();
    let per_org = limit.def.by.iter().any(|one| match one {
        // Users and tokens are counted within their organisation.
        Dimension::Org | Dimension::User | Dimension::Token => limit.is_of_requests(),
        Dimension::Descriptor(key) => org_key == Some(key),
        _ => false,
    });
    if per_org && !limit.def.throttle {
        Ok(limit)
    } else {
        refuse(&field, "is not counted by organisation, user or token")
    }
}

fn spec(limit: &Limit, figure: &Value) -> Result<BucketSpec, DocumentError> {
    let field = |key: &str| format!("limits.{}{key}", limit.name);
    let (rate, burst) = match figure {
        Value::String(rate) => (rate, None),
        Value::Object(members) => {
            if let Some(key) = members
                .keys()
                .find(|key| !["rate", "burst"].contains(&&***key))
            {
                return refuse(&field(&format!(".{}", shown(key))), "is not known");
            }
            match members.get("rate") {
                Some(Value::String(rate)) => (rate, members.get("burst")),
                _ => return refuse(&field(".rate"), "must be a rate such as \"250/min\""),
            }
        }
        _ => return refuse(&field(""), "must be a rate such as \"250/min\""),
    };
    let rate = match Rate::parse(rate) {
        Ok(rate) => rate,
        Err(problem) => return refuse(&field(".rate"), &problem),
    };
    let base = &limit.def.spec;
    if limit.def.concurrency {
        return refuse(&field(""), "counts what is in progress, which has no rate");
    }
    if rate.window != base.window() {
        let own = base.window().label();
        let problem = format!("must count over the limit's own window, `{own}`");
        return refuse(&field(".rate"), &problem);
    }
    let algorithm = match base.algorithm() {
        // A log keeps every use, so it suits low limits only: the override's own rate decides.
        Algorithm::SlidingLog | Algorithm::SlidingWheel => Algorithm::default_for(rate.limit.get()),
        other => other,
    };
    let spec = match BucketSpec::new(algorithm, rate.limit, rate.window, burst_of(limit, burst)?) {
        Ok(spec) => spec,
        Err(error) => return refuse(&field(".rate"), &format!("cannot be: {error}")),
    };
    if spec.capacity() < u64::from(limit.def.cost.get()) {
        return refuse(&field(".rate"), "is below what a single request costs");
    }
    Ok(spec)
}

fn burst_of(limit: &Limit, burst: Option<&Value>) -> Result<Option<NonZeroU64>, DocumentError> {
    let Some(burst) = burst else { return Ok(None) };
    let field = format!("limits.{}.burst", limit.name);
    if limit.def.spec.algorithm() != Algorithm::TokenBucket {
        return refuse(&field, "only means something to a token bucket");
    }
    let burst = burst.as_u64().filter(|burst| *burst <= FIGURE_MAX);
    match burst.and_then(NonZeroU64::new) {
        Some(burst) => Ok(Some(burst)),
        None => refuse(&field, &format!("must be 1 to {FIGURE_MAX}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Env, Overrides};

    fn base() -> PolicySet {
        let text = r#"
            [[limit]]
            name = "smooth"
            by = ["org"]
            rate = "10/s"
            burst = 20
            cost = 3
        "#;
        let path = std::path::Path::new("test.toml");
        let config = crate::load_text(path, text, &Env::default(), &Overrides::default());
        (*config.unwrap().policy).clone()
    }

    fn check(body: &str) -> Result<TenantPolicy, String> {
        let document = Document {
            tenant: "hidden-tenant".into(),
            body: serde_json::from_str(body).unwrap(),
        };
        document.check(&base()).map_err(|refused| refused.0)
    }

    #[test]
    fn a_document_overrides_what_is_counted_by_organisation() {
        let body = r#"{"_id": 7, "tenant_id": "x", "version": 3, "limits": {
            "org-burst": "12000/min", "org-day": {"rate": "5/day"}, "user-burst": "9/min",
            "smooth": {"rate": "20/s", "burst": 50}}}"#;
        let policy = check(body).unwrap();
        assert_eq!(policy.version, 3);
        let base = base();
        let spec = |name: &str| *policy.spec(base.limit(name).unwrap()).unwrap();
        assert_eq!(spec("org-burst").limit(), 12_000);
        assert_eq!(spec("org-burst").algorithm(), Algorithm::SlidingWheel);
        assert_eq!(spec("user-burst").algorithm(), Algorithm::SlidingLog);
        assert_eq!(spec("org-day").algorithm(), Algorithm::FixedWindow);
        assert_eq!(spec("smooth").capacity(), 50);
        assert!(policy.spec(base.limit("token-burst").unwrap()).is_none());
    }

    #[test]
    fn a_wrong_document_is_refused_with_its_field_and_without_its_value() {
        let cases = [
            (r#"{}"#, "`limits` is missing"),
            (r#"{"limits": 5}"#, "`limits` must map"),
            (r#"{"limit": {}}"#, "did you mean `limits`?"),
            (r#"{"limits": {}, "version": -1}"#, "`version` must be"),
            (
                r#"{"limits": {"org-brst": "1/min"}}"#,
                "did you mean `org-burst`?",
            ),
            (
                r#"{"limits": {"ip-auth": "1/min"}}"#,
                "is not counted by organisation",
            ),
            (
                r#"{"limits": {"org-burst": "hunter2"}}"#,
                "`limits.org-burst.rate` must be `N/window`",
            ),
            (r#"{"limits": {"org-burst": "0/min"}}"#, "must not be zero"),
            (r#"{"limits": {"org-burst": "9/s"}}"#, "own window, `w60s`"),
            (r#"{"limits": {"org-burst": 9}}"#, "must be a rate"),
            (
                r#"{"limits": {"org-burst": {"rate": "9/min", "burst": 2}}}"#,
                "token bucket",
            ),
            (
                r#"{"limits": {"smooth": {"rate": "9/s", "burst": 0}}}"#,
                "burst` must be 1",
            ),
            (
                r#"{"limits": {"smooth": "2/s"}}"#,
                "below what a single request costs",
            ),
            (
                r#"{"limits": {"smooth": {"rate": "9/s", "brst": 2}}}"#,
                "is not known",
            ),
        ];
        for (body, expected) in cases {
            let message = check(body).unwrap_err();
            assert!(message.contains(expected), "{body}: {message}");
            assert!(
                !message.contains("hunter2") && !message.contains("hidden"),
                "{message}"
            );
        }
    }

    /// Whether an override of `org-burst` is used once the limit was changed to this.
    fn is_used_under(changed: &str) -> bool {
        let policy = check(r#"{"limits": {"org-burst": "7/min"}}"#).unwrap();
        assert!(policy.spec(base().limit("org-burst").unwrap()).is_some());
        let text = format!("[[limit]]\nname = \"org-burst\"\n{changed}\n");
        let path = std::path::Path::new("test.toml");
        let (env, flags) = (Env::default(), Overrides::default());
        let changed = crate::load_text(path, &text, &env, &flags).unwrap().policy;
        policy.spec(changed.limit("org-burst").unwrap()).is_some()
    }

    #[test]
    fn an_override_waits_while_the_limit_counts_over_another_window() {
        assert!(!is_used_under("by = [\"org\"]\nrate = \"5/s\""));
    }

    #[test]
    fn t_org_an_override_waits_while_the_limit_counts_by_something_else() {
        assert!(is_used_under("by = [\"org\"]\nrate = \"5/min\""));
        for by in ["[]", "[\"ip\"]", "[\"user\"]", "[\"org\", \"endpoint\"]"] {
            let changed = format!("by = {by}\nrate = \"5/min\"");
            assert!(!is_used_under(&changed), "{by}");
        }
    }

    #[test]
    fn t_org_an_override_waits_while_the_limit_counts_what_is_in_progress() {
        let slots = "by = [\"org\"]\nconcurrency = 5\nhold = \"60s\"";
        assert!(!is_used_under(slots));
    }
}
