//! Whatever is written, reading it ends in a configuration or in errors.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

use std::path::Path;

use palisade_core::limit::FIGURE_MAX;
use palisade_policy::{Env, Overrides, Rate, load_text};
use proptest::prelude::*;

fn keys() -> Vec<String> {
    let tables: Vec<_> = palisade_policy::schemas().collect();
    palisade_policy::document::reference::keys(&tables)
}

fn read(
    text: &str,
    env: &Env,
) -> Result<palisade_policy::PolicyBundle, palisade_policy::ConfigErrors> {
    load_text(Path::new("p.toml"), text, env, &Overrides::default())
}

/// TOML that is mostly right: real tables and keys, any value.
fn almost_a_policy() -> impl Strategy<Value = String> {
    let keys = keys();
    let value = prop_oneof![
        Just("true".to_owned()),
        any::<i64>().prop_map(|n| n.to_string()),
        any::<f64>().prop_map(|n| format!("{n:?}")),
        "[a-z0-9/:.*%-]{0,12}".prop_map(|text| format!("\"{text}\"")),
        Just("[]".to_owned()),
        Just("[1, \"a\", [], {}]".to_owned()),
        Just("{ key = 1 }".to_owned()),
        Just("1979-05-27".to_owned()),
        "[0-9]{1,12}/[0-9]{0,3}(ms|s|min|h|day|month)".prop_map(|text| format!("\"{text}\"")),
    ];
    let line = (prop::sample::select(keys), value, any::<bool>());
    prop::collection::vec(line, 0..8).prop_map(|lines| {
        let mut text = String::new();
        for (key, value, array) in lines {
            let (table, name) = key.rsplit_once('.').unwrap_or(("policy", "reload"));
            let (open, close) = if array { ("[[", "]]") } else { ("[", "]") };
            text.push_str(&format!("{open}{table}{close}\n{name} = {value}\n"));
        }
        text
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_text_is_read_without_a_panic(text in "\\PC*") {
        let _ = read(&text, &Env::default());
    }

    #[test]
    fn any_almost_policy_is_read_without_a_panic(text in almost_a_policy()) {
        if let Err(errors) = read(&text, &Env::default()) {
            prop_assert!(!errors.errors().is_empty());
            prop_assert!(!errors.to_string().contains("this is a defect"), "{errors}");
        }
    }

    #[test]
    fn any_variable_is_read_without_a_panic(
        key in prop::sample::select(keys()),
        value in "\\PC{0,20}",
    ) {
        let name = format!("PALISADE_{}", key.replace('.', "__").to_ascii_uppercase());
        let env: Env = [(name.clone(), value)].into_iter().collect();
        if let Err(errors) = read("", &env) {
            prop_assert!(errors.to_string().contains(&name), "{errors}");
        }
    }

    #[test]
    fn a_rate_that_is_read_is_the_one_that_was_written(
        n in prop_oneof![1..1_u64 << 32, 1..=FIGURE_MAX, Just(FIGURE_MAX)],
        count in 1_u64..1000,
    ) {
        let rate = Rate::parse(&format!("{n}/{count}s")).map_err(TestCaseError::fail)?;
        prop_assert_eq!(rate.limit.get(), n);
        prop_assert_eq!(rate.window, palisade_core::limit::Window::Span(count * 1_000_000));
    }

    #[test]
    fn a_value_is_never_repeated(key in prop::sample::select(keys())) {
        let (table, name) = key.rsplit_once('.').unwrap_or_default();
        for (open, close) in [("[", "]"), ("[[", "]]")] {
            let text = format!("{open}{table}{close}\n{name} = \"canary-value\"\n");
            if let Err(errors) = read(&text, &Env::default()) {
                prop_assert!(!errors.to_string().contains("canary"), "{errors}");
            }
        }
    }
}
