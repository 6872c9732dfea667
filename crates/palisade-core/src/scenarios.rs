//! Behaviour scripts, in the file of the rule that they prove.

use crate::support::{World, script, without};

/// Makes one test of each script. The script must hold, and must fail once its rule is left out.
macro_rules! scenarios {
    ($(#[test] fn $name:ident() proves $rule:literal { $script:literal })*) => {
        $(#[test] fn $name() {
            $crate::scenarios::prove(stringify!($name), $rule, $script);
        })*
    };
}
pub(crate) use scenarios;

pub(crate) fn prove(name: &str, rule: &str, script: &str) {
    let family = rule.split('-').next().unwrap().to_lowercase();
    assert!(name.starts_with(&family), "{name} proves {rule}");
    script::check(&mut World::proving(rule), script).unwrap();
    let found = script::check(&mut without::world(rule), script);
    assert!(found.is_err(), "{name} holds without {rule}");
}
