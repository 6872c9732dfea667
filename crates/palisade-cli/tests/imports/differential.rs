//! Generated configurations and traffic: the imported policy decides as the original.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::Scratch;
use super::reference::{Announced, Changed, Limit, Node, Service, UNITS, yaml};
use super::replayed::{self, BEGIN, Descriptor, denials};

fn limit() -> impl Strategy<Value = Limit> {
    let figure = prop_oneof![
        8 => (0_u32..4, select(&UNITS[..])).prop_map(Some),
        1 => Just(None),
    ];
    let name = proptest::option::weighted(0.8, select(&["one", "two"][..]));
    let replaces = vec(select(&["one", "two", "three"][..]), 0..3);
    (figure, name, replaces).prop_map(|(figure, name, mut replaces)| {
        // In one direction only: what replaces each other is refused.
        replaces.retain(|other| name.is_none_or(|name| name < *other));
        Limit {
            figure,
            name,
            replaces,
        }
    })
}

const VALUES: [Option<&str>; 7] = [
    None,
    Some("x"),
    Some("xy"),
    Some("x*"),
    Some("xy*"),
    Some("*"),
    Some("y"),
];

/// Keys of each level: a descriptor may have one of them twice.
const KEYS: [[&str; 2]; 3] = [["a", "b"], ["b", "c"], ["c", "d"]];

fn level(depth: usize) -> BoxedStrategy<Vec<Node>> {
    let nested = match depth + 1 {
        deeper if deeper < KEYS.len() => {
            prop_oneof![1 => Just(Vec::new()), 1 => level(deeper)].boxed()
        }
        _ => Just(Vec::new()).boxed(),
    };
    let node = (
        select(&KEYS[depth][..]),
        select(&VALUES[..]),
        proptest::option::weighted(0.7, limit()),
        proptest::bool::weighted(0.1),
        proptest::bool::weighted(0.3),
        nested,
    );
    let node = node.prop_map(|(key, value, limit, shadow, share, nested)| Node {
        key,
        value,
        limit,
        shadow,
        share,
        nested,
    });
    vec(node, 1..5)
        .prop_map(|mut nodes| {
            // The original refuses a file that says the same twice.
            let mut seen = std::collections::BTreeSet::new();
            nodes.retain(|node| seen.insert((node.key, node.value)));
            nodes
        })
        .boxed()
}

fn call() -> impl Strategy<Value = Vec<Descriptor>> {
    let entry = |depth: usize| {
        let value = select(&["x", "xy", "xyz", "xq", "y", "z"][..]);
        (select(&KEYS[depth][..]), value)
    };
    let descriptor = (1..=KEYS.len(), (entry(0), entry(1), entry(2)));
    let descriptor = descriptor.prop_map(|(length, (one, two, three))| {
        let mut entries = vec![one, two, three];
        entries.truncate(length);
        entries
    });
    vec(descriptor, 1..4)
}

/// Milliseconds that pass before a call, most often none.
fn pause() -> impl Strategy<Value = u64> {
    select(&[0, 0, 0, 0, 400, 1_000, 45_000, 3_000_000, 2_000_000_000][..])
}

/// What the import makes of it; `None` if it refuses what it cannot say.
fn policy(nodes: &[Node], options: &[&str]) -> Option<String> {
    const REFUSED: &str = "`share_threshold` on one of several entries with the same key";
    let scratch = Scratch::new();
    let file = scratch.file("f.yaml", &yaml(nodes));
    match scratch.try_import(&[&["envoy-ratelimit", &file], options].concat()) {
        Err(said) if said.contains(REFUSED) => None,
        Err(said) => panic!("{said}"),
        Ok((policy, _)) => {
            scratch.cases_hold();
            Some(policy)
        }
    }
}

/// Whether the imported policy denies, call by call.
fn ours(policy: &str, traffic: &[(u64, Vec<Descriptor>)]) -> Vec<bool> {
    let events = traffic
        .iter()
        .map(|(pause, asked)| (*pause, replayed::call(asked)));
    denials(policy, events)
}

fn theirs(nodes: &[Node], traffic: &[(u64, Vec<Descriptor>)]) -> Vec<bool> {
    let mut service = Service::default();
    let mut now = BEGIN * 1_000;
    let decide = |(pause, call): &(u64, Vec<Descriptor>)| {
        now += pause;
        service.is_over(nodes, call, now / 1_000)
    };
    traffic.iter().map(decide).collect()
}

fn as_announced(nodes: &[Node], policy: &str, traffic: &[(u64, Vec<Descriptor>)]) -> Vec<bool> {
    let mut changed = Changed::new(nodes, Announced::in_policy(policy));
    let mut now = BEGIN * 1_000;
    let decide = |(pause, call): &(u64, Vec<Descriptor>)| {
        now += pause;
        changed.is_over(call, now)
    };
    traffic.iter().map(decide).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_imported_configuration_with_its_windows_kept_decides_as_the_original(
        nodes in level(0),
        traffic in vec((pause(), call()), 1..60),
    ) {
        let policy = policy(&nodes, &["--keep-windows"]);
        prop_assume!(policy.is_some());
        let policy = policy.unwrap();
        prop_assert_eq!(ours(&policy, &traffic), theirs(&nodes, &traffic), "{}\n{}", yaml(&nodes), policy);
    }

    /// Wherever it decides otherwise than the original, that was said of the limit.
    #[test]
    fn an_imported_configuration_differs_from_the_original_only_as_it_was_announced(
        nodes in level(0),
        traffic in vec((pause(), call()), 1..60),
    ) {
        let policy = policy(&nodes, &[]);
        prop_assume!(policy.is_some());
        let policy = policy.unwrap();
        let expected = as_announced(&nodes, &policy, &traffic);
        prop_assert_eq!(ours(&policy, &traffic), expected, "{}\n{}", yaml(&nodes), policy);
    }
}
