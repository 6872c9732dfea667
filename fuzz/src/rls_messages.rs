//! A call of the rate-limit service, from any bytes: refused by name, or planned.

#[path = "../../crates/palisade-server/src/surfaces/rls/decode.rs"]
mod decode;
#[allow(dead_code, reason = "answers are written elsewhere")]
#[path = "../../crates/palisade-server/src/surfaces/rls/messages.rs"]
mod messages;

use std::path::Path;
use std::sync::LazyLock;

use palisade_core::policy::{Instead, PolicySet, own_figures, resolve_descriptors};
use palisade_core::{FieldError, Keyring};
use palisade_policy::{Env, Overrides, load};
use prost::Message;

static POLICY: LazyLock<std::sync::Arc<PolicySet>> = LazyLock::new(|| {
    let path = Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../conformance/rls/policy.toml"
    ));
    load(Some(path), &Env::default(), &Overrides::default())
        .expect("the policy of the cases")
        .policy
});

static KEYRING: LazyLock<Keyring> = LazyLock::new(|| Keyring::new(&[7; 32], None).expect("a secret"));

/// Reads `data` as a request and plans it.
pub(crate) fn rls_messages(data: &[u8]) {
    let Ok(request) = messages::Request::decode(data) else {
        return;
    };
    match decode::facts(&request) {
        Ok(facts) => {
            let figures = own_figures(&POLICY, &facts);
            let instead = Instead {
                figures: &figures,
                tenants: &[],
            };
            let plan = resolve_descriptors(&POLICY, instead, &KEYRING, &facts);
            assert_eq!(plan.asked.len(), facts.descriptors().len());
        }
        Err(FieldError { field, problem }) => assert!(field.len() + problem.len() < 100),
    }
}
