//! Reads `[[tenant]]` into [`TenantPolicy`]: overrides that stand in the policy file itself.

use std::collections::HashMap;
use std::sync::Arc;

use palisade_core::policy::{PolicySet, TenantPolicy};
use serde_json::{Map, Value};

use super::Document;
use crate::document::error::Sink;
use crate::document::schema::read_array;
use crate::document::tree::{Table, member_origin};
use crate::policy::sections::PolicyTable;
use crate::policy::tables::TenantTable;
use crate::policy::values::SourceUrl;

/// Tenants' policies of one revision of the file.
#[derive(Clone, Default)]
pub struct FileTenants(HashMap<Box<str>, Arc<TenantPolicy>>);

impl FileTenants {
    /// The policy of a tenant.
    #[must_use]
    pub fn find(&self, tenant: &str) -> Option<Arc<TenantPolicy>> {
        self.0.get(tenant).cloned()
    }

    /// Number of tenants with a policy of their own.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if no tenant has a policy of its own.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Reads all tenants, each checked against the policy it overrides.
pub(crate) fn read(
    root: &Table,
    source: Option<&PolicyTable>,
    policy: &PolicySet,
    sink: &mut Sink,
) -> FileTenants {
    let tenants = read_array::<TenantTable>(root, sink);
    let elsewhere = source.is_some_and(|source| source.source != SourceUrl::File);
    if let Some((_, item)) = tenants.first().filter(|_| elsewhere) {
        sink.report_with(
            &item.origin,
            "`[[tenant]]` stands in the file, and `policy.source` names another place",
            "move it there, or set `source = \"file\"`",
        );
    }
    let mut read = HashMap::with_capacity(tenants.len());
    for (tenant, item) in tenants {
        let document = Document {
            tenant: tenant.id.into_boxed_str(),
            body: Map::from_iter([
                ("version".to_owned(), policy.revision.into()),
                ("limits".to_owned(), Value::Object(tenant.limits.0)),
            ]),
        };
        match document.check(policy) {
            Ok(checked) => {
                read.insert(document.tenant, Arc::new(checked));
            }
            Err(refused) => {
                let origin = member_origin(item, "limits");
                sink.report(&origin, format!("`tenant`: {refused}"));
            }
        }
    }
    FileTenants(read)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::{ConfigErrors, Env, Overrides, PolicyBundle};

    fn load(text: &str) -> Result<PolicyBundle, ConfigErrors> {
        let path = Path::new("test.toml");
        crate::load_text(path, text, &Env::default(), &Overrides::default())
    }

    #[test]
    fn a_tenant_in_the_file_overrides_its_limits() {
        let text = "[[tenant]]\nid = \"acme\"\n[tenant.limits]\norg-burst = \"7/min\"\n\
                    org-day = { rate = \"9/day\" }\n";
        let bundle = load(text).unwrap();
        let acme = bundle.tenants.find("acme").unwrap();
        let limit = |name: &str| {
            acme.spec(bundle.policy.limit(name).unwrap())
                .unwrap()
                .limit()
        };
        assert_eq!((limit("org-burst"), limit("org-day")), (7, 9));
        assert_eq!((acme.version, bundle.tenants.len()), (1, 1));
        assert!(bundle.tenants.find("other").is_none());
    }

    #[test]
    fn a_wrong_tenant_is_an_error_with_its_place_and_without_its_name() {
        let tenant = |limits: &str| format!("[[tenant]]\nid = \"hidden\"\nlimits = {limits}\n");
        let cases = [
            (
                tenant("{ org-burst = \"0/min\" }"),
                "test.toml:3:10: error: `tenant`: `limits.org-burst.rate`",
            ),
            (
                tenant("{ ip-auth = \"1/min\" }"),
                "is not counted by organisation",
            ),
            (tenant("5"), "`tenant.limits` must map names"),
            (
                "[[tenant]]\nid = \"hidden\"\n".to_owned(),
                "`tenant.limits` is missing",
            ),
            (format!("{0}{0}", tenant("{}")), "duplicate `tenant.id`"),
            (
                format!("[policy]\nsource = \"postgres://db/p\"\n{}", tenant("{}")),
                "`policy.source` names another place",
            ),
        ];
        for (text, expected) in cases {
            let message = load(&text).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
            assert!(!message.contains("hidden"), "{message}");
        }
    }
}
