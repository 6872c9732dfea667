//! The policy file, from any text: a checked policy, or errors that say where.

use std::path::Path;

use palisade_policy::{Env, Overrides, Place, load_text};

/// Reads `data` as a policy file. What follows a NUL byte is the value of a variable.
pub(crate) fn policy_parser(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let (text, variable) = text.split_once('\0').unwrap_or((text, ""));
    let mut env = Env::default();
    if !variable.is_empty() {
        env.set("PALISADE_LIMIT__IP_AUTH__RATE", variable);
    }
    let path = Path::new("policy.toml");
    match load_text(path, text, &env, &Overrides::default()) {
        Ok(config) => {
            for limit in config.policy.limits() {
                assert!(u64::from(limit.def.cost.get()) <= limit.def.spec.capacity());
            }
        }
        Err(errors) => {
            assert!(!errors.errors().is_empty());
            for error in errors.errors() {
                assert!(!error.message.contains("cannot be used"), "{error}");
                if let Place::File { line, column, .. } = error.place {
                    assert!(line >= 1 && column >= 1);
                }
            }
        }
    }
}
