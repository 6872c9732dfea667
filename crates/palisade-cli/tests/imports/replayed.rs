//! What an imported policy decides on traffic, in virtual time.

use std::path::Path;
use std::sync::Arc;

use palisade::cases::{Replayer, parse_event};
use palisade_core::key::Keyring;
use palisade_policy::{Env, Overrides, load_text};
use serde_json::{Value, json};

/// An instant that is no window's edge but a second's.
pub(crate) const BEGIN: u64 = 1_767_225_600;

/// Entries of a descriptor.
pub(crate) type Descriptor = Vec<(&'static str, &'static str)>;

/// A call of Envoy to the domain `d`, as a case has it.
pub(crate) fn call(descriptors: &[Descriptor]) -> Value {
    let entries = |one: &Descriptor| {
        let entry = |(key, value): &(&str, &str)| json!({"key": key, "value": value});
        one.iter().map(entry).collect::<Vec<_>>()
    };
    let descriptors: Vec<_> = descriptors.iter().map(entries).collect();
    json!({"op": "rls", "domain": "d", "descriptors": descriptors})
}

/// Whether the policy denies, event by event; each comes so many milliseconds after the one
/// before it.
pub(crate) fn denials(policy: &str, events: impl Iterator<Item = (u64, Value)>) -> Vec<bool> {
    let path = Path::new("policy.toml");
    let bundle = load_text(path, policy, &Env::default(), &Overrides::default()).unwrap();
    let keyring = Keyring::new(&[7; 32], None).unwrap();
    let mut replayer = Replayer::new(Arc::clone(&bundle.policy), keyring);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut now = BEGIN * 1_000;
    let mut decisions = Vec::new();
    for (pause, mut line) in events {
        now += pause;
        line["at"] = instant(now).into();
        let event = parse_event(&line.to_string()).unwrap();
        let step = runtime.block_on(replayer.step(event)).unwrap();
        decisions.push(step.answer.unwrap()["decision"] == "deny");
    }
    decisions
}

fn instant(millis: u64) -> String {
    let seconds = i64::try_from(millis / 1_000).unwrap();
    let at = time::OffsetDateTime::from_unix_timestamp(seconds).unwrap();
    let (date, clock) = (at.date(), at.time());
    let (h, m, s) = clock.as_hms();
    format!("{date}T{h:02}:{m:02}:{s:02}.{:03}Z", millis % 1_000)
}
