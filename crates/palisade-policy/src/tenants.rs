//! `[[tenant]]` → [`TenantPolicy`]: overrides that stand in the policy file itself.

use std::collections::HashMap;
use std::sync::Arc;

use palisade_core::policy::{PolicySet, TenantPolicy};
use serde_json::{Map, Value};

use crate::error::Sink;
use crate::resolve::member_origin;
use crate::schema::read_array;
use crate::sections::PolicyTable;
use crate::source::tenants::Document;
use crate::tables::TenantTable;
use crate::tree::Table;
use crate::values::SourceUrl;

/// Tenants' policies of one revision of the file.
#[derive(Clone, Default)]
pub struct FileTenants(HashMap<Box<str>, Arc<TenantPolicy>>);

impl FileTenants {
    /// The policy of a tenant.
    #[must_use]
    pub fn find(&self, tenant: &str) -> Option<Arc<TenantPolicy>> {
        self.0.get(tenant).cloned()
    }

    /// How many tenants have one.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if no tenant has one.
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
