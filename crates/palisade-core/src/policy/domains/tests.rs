//! The limit that answers a descriptor, and the bucket that it charges.

use super::*;
use crate::limit::FIGURE_MAX;
use crate::policy::{EntryMatch, PolicyParts, RlsSettings, Settings};
use crate::time::{DAY, MINUTE};

fn entry(written: &str) -> EntryMatch {
    let (key, value) = written.split_once('=').unwrap_or((written, "*"));
    let value = match value.strip_suffix('*') {
        Some("") => ValueMatch::Any,
        Some(prefix) => ValueMatch::Prefix(prefix.into()),
        None => ValueMatch::Exact(value.into()),
    };
    EntryMatch {
        key: key.into(),
        value,
    }
}

/// A limit of ten a minute in the domain `edge`: `"name: key=value, key"`.
fn limit(written: &str) -> LimitDef {
    let (name, entries) = written.split_once(": ").unwrap();
    let entries: Box<[EntryMatch]> = entries.split(", ").map(entry).collect();
    let open = entries.iter().filter(|entry| entry.value.is_open());
    let by = open.map(|entry| Dimension::Descriptor(entry.key.clone()));
    let ten = NonZeroU64::new(10).unwrap();
    let window = Window::Span(MINUTE);
    let spec = BucketSpec::new(Algorithm::SlidingLog, ten, window, None).unwrap();
    let mut def = LimitDef::new(name, by.collect(), spec);
    def.descriptor = Some(DescriptorRule {
        domain: "edge".into(),
        entries,
        standing: Standing::Counted,
        replaces: [].into(),
    });
    def
}

fn policy_of(limits: Vec<LimitDef>, rls: RlsSettings) -> PolicySet {
    let parts = PolicyParts {
        enabled: true,
        settings: Settings {
            rls,
            ..Settings::default()
        },
        routes: vec![],
        classes: vec![],
        limits,
        clients: HashMap::new(),
        api_keys: HashMap::new(),
        tiers: vec![],
        bot_patterns: vec![],
    };
    PolicySet::new(1, parts).unwrap()
}

fn policy(limits: &[&str]) -> PolicySet {
    let limits = limits.iter().map(|written| limit(written)).collect();
    policy_of(limits, RlsSettings::default())
}

fn keyring() -> Keyring {
    Keyring::new(&[7; 32], None).unwrap()
}

/// A descriptor as `"key=value, key=value"`.
fn descriptor(written: &str) -> Descriptor<'_> {
    Descriptor::new(
        written
            .split(", ")
            .map(|entry| entry.split_once('=').unwrap()),
    )
}

/// The limit and bucket of each charge, for a call with these descriptors.
fn charged(policy: &PolicySet, descriptors: &[&str]) -> Vec<(String, u128)> {
    let descriptors = descriptors.iter().map(|written| descriptor(written));
    let facts = DescriptorFacts::new("edge", descriptors.collect()).unwrap();
    let plan = resolve_descriptors(policy, Instead::default(), &keyring(), &facts);
    let name = |charge: &Charge<'_>| (charge.limit.name.to_string(), charge.id.0);
    plan.charges.iter().map(name).collect()
}

fn answers(policy: &PolicySet, written: &str) -> String {
    let charged = charged(policy, &[written]);
    charged.first().map_or("-".to_owned(), |one| one.0.clone())
}

#[test]
fn r_domain_only_limits_of_the_domain_answer() {
    let policy = policy(&["a: k"]);
    let ask = |domain: &str| {
        let facts = DescriptorFacts::new(domain, vec![descriptor("k=v")]).unwrap();
        let plan = resolve_descriptors(&policy, Instead::default(), &keyring(), &facts);
        (plan.charges.len(), plan.domain.is_some())
    };
    assert_eq!(ask("edge"), (1, true));
    assert_eq!(ask("Edge"), (0, false));
    assert_eq!(ask("other"), (0, false));
    let names: Vec<&str> = policy.domains().map(|name| &**name).collect();
    assert_eq!(names, ["edge"]);
}

#[test]
fn r_depth_as_many_entries_in_their_order_and_case() {
    let policy = policy(&["one: path", "two: path, ip"]);
    assert_eq!(answers(&policy, "path=/a"), "one");
    assert_eq!(answers(&policy, "path=/a, ip=192.0.2.1"), "two");
    assert_eq!(answers(&policy, "ip=192.0.2.1, path=/a"), "-");
    assert_eq!(answers(&policy, "path=/a, ip=192.0.2.1, x=y"), "-");
    assert_eq!(answers(&policy, "Path=/a"), "-");
}

#[test]
fn r_value_the_most_specific_limit_answers_entry_by_entry() {
    let policy = policy(&[
        "any: path, ip",
        "short: path=/a*, ip",
        "long: path=/a/b*, ip",
        "exact: path=/a/b, ip",
        "later: path, ip=192.0.2.1",
    ]);
    assert_eq!(answers(&policy, "path=/a/b, ip=192.0.2.1"), "exact");
    assert_eq!(answers(&policy, "path=/a/b/c, ip=192.0.2.1"), "long");
    assert_eq!(answers(&policy, "path=/a/c, ip=192.0.2.1"), "short");
    assert_eq!(answers(&policy, "path=/x, ip=192.0.2.1"), "later");
    assert_eq!(answers(&policy, "path=/x, ip=192.0.2.2"), "any");
    assert_eq!(answers(&policy, "path=/A/b, ip=192.0.2.2"), "any");
}

#[test]
fn r_value_an_open_value_has_a_bucket_of_its_own_and_a_shared_one_has_not() {
    let mut shared = limit("shared: path=/api/*");
    shared.by = [].into();
    let policy = policy_of(vec![limit("own: ip"), shared], RlsSettings::default());
    let buckets = charged(
        &policy,
        &["ip=a", "ip=b", "ip=a", "path=/api/x", "path=/api/y"],
    );
    let ids: Vec<u128> = buckets.iter().map(|(_, id)| *id).collect();
    assert!(ids[0] != ids[1] && ids[0] == ids[2]);
    assert_eq!(ids[3], ids[4]);
}

#[test]
fn r_value_of_a_key_that_stands_twice_the_open_value_has_the_bucket() {
    for (written, one, other) in [
        ("twice: b=x, b=x*", "b=x, b=x", "b=x, b=xy"),
        ("twice: b=x*, b=x", "b=x, b=x", "b=xy, b=x"),
        ("twice: b=x, c, b", "b=x, c=1, b=1", "b=x, c=1, b=2"),
    ] {
        let policy = policy(&[written]);
        let buckets = charged(&policy, &[one, one, other]);
        assert_eq!(buckets[0], buckets[1], "{written}");
        assert_ne!(buckets[0], buckets[2], "{written}");
    }
}

#[test]
fn r_value_two_values_are_told_apart_from_their_concatenation() {
    let policy = policy(&["pair: a, b"]);
    let buckets = charged(&policy, &["a=x, b=yz", "a=xy, b=z"]);
    assert_ne!(buckets[0].1, buckets[1].1);
}

#[test]
fn r_ids_a_bucket_is_named_by_a_digest_and_never_by_a_value() {
    let policy = policy(&["own: ip"]);
    let facts = DescriptorFacts::new("edge", vec![descriptor("ip=canary")]).unwrap();
    let plan = resolve_descriptors(&policy, Instead::default(), &keyring(), &facts);
    let key = plan.charges[0].key();
    assert!(
        key.starts_with("rl:{descriptor:") && key.ends_with(":name:own:w60s"),
        "{key}"
    );
    assert!(!format!("{key}{plan:?}").contains("canary"));
    let other = Keyring::new(&[8; 32], None).unwrap();
    let under_another = resolve_descriptors(&policy, Instead::default(), &other, &facts);
    assert_ne!(key, under_another.charges[0].key());
}

#[test]
fn r_ids_a_value_that_is_no_text_counts_as_its_bytes() {
    let policy = policy(&["own: ip"]);
    let of = |value: &'static [u8]| {
        let entries = [(b"ip".as_slice(), value)];
        let facts = DescriptorFacts::new("edge", vec![Descriptor::new(entries)]).unwrap();
        resolve_descriptors(&policy, Instead::default(), &keyring(), &facts).charges[0].id
    };
    assert_eq!(of(b"\xff\xfe"), of(b"\xff\xfe"));
    assert_ne!(of(b"\xff\xfe"), of(b"\xff\xfd"));
}

#[test]
fn r_replaces_the_replaced_limit_is_not_in_the_plan() {
    let mut replacing = limit("special: user=vip");
    replacing.descriptor.as_mut().unwrap().replaces = ["all".into()].into();
    let policy = policy_of(vec![limit("all: ip"), replacing], RlsSettings::default());
    let names = |written: &[&str]| -> Vec<String> {
        charged(&policy, written)
            .into_iter()
            .map(|one| one.0)
            .collect()
    };
    assert_eq!(names(&["ip=a", "user=vip"]), ["special"]);
    assert_eq!(names(&["ip=a", "user=eve"]), ["all"]);
}

/// Checks the plan of a call to one limit of this standing.
fn planned(standing: Standing, check: impl Fn(DescriptorPlan<'_>)) {
    let mut def = limit("own: k");
    def.descriptor.as_mut().unwrap().standing = standing;
    let policy = policy_of(vec![def], RlsSettings::default());
    let facts = DescriptorFacts::new("edge", vec![descriptor("k=v")]).unwrap();
    let plan = resolve_descriptors(&policy, Instead::default(), &keyring(), &facts);
    assert!(plan.charges.is_empty());
    check(plan);
}

#[test]
fn r_zero_is_denied_without_a_store_call() {
    planned(Standing::Denies, |plan| {
        assert_eq!(plan.denied.len(), 1);
        assert_eq!(plan.denied[0].shown_limit(), 0);
    });
}

#[test]
fn r_unlimited_is_admitted_without_a_store_call() {
    planned(Standing::Admits, |plan| {
        assert!(plan.denied.is_empty());
        assert!(
            matches!(plan.asked[0], DescriptorTreatment::Unlimited(limit) if &*limit.name == "own")
        );
    });
}

#[test]
fn r_shadow_one_limit_or_all_of_them_only_report() {
    let mut shadow = limit("shadow: k=s");
    shadow.on_exceed = OnExceed::Report;
    let on_exceed = |rls: RlsSettings| -> Vec<OnExceed> {
        let policy = policy_of(vec![limit("plain: k=p"), shadow.clone()], rls);
        let facts = [descriptor("k=p"), descriptor("k=s")].to_vec();
        let facts = DescriptorFacts::new("edge", facts).unwrap();
        let plan = resolve_descriptors(&policy, Instead::default(), &keyring(), &facts);
        plan.charges.iter().map(|charge| charge.on_exceed).collect()
    };
    let off = RlsSettings::default();
    assert_eq!(on_exceed(off.clone()), [OnExceed::Deny, OnExceed::Report]);
    let on = RlsSettings {
        shadow: true,
        ..off
    };
    assert_eq!(on_exceed(on), [OnExceed::Report; 2]);
}

fn with(figures: &[Option<Limit>]) -> Instead<'_> {
    Instead {
        figures,
        tenants: &[],
    }
}

fn with_hits(hits: Hits) -> Descriptor<'static> {
    Descriptor {
        hits: Some(hits),
        ..descriptor("k=v")
    }
}

#[test]
fn r_hits_charge_look_refund_and_too_many() {
    let policy = policy(&["own: k"]);
    let three = NonZeroU64::new(3).unwrap();
    let eleven = NonZeroU64::new(11).unwrap();
    let asked = [
        with_hits(Hits::Charge(three)),
        with_hits(Hits::Look),
        with_hits(Hits::Refund(three)),
        with_hits(Hits::Charge(eleven)),
    ];
    let facts = DescriptorFacts::new("edge", asked.to_vec()).unwrap();
    let plan = resolve_descriptors(&policy, Instead::default(), &keyring(), &facts);
    let costs = |charges: &[Charge<'_>]| charges.iter().map(|c| c.cost).collect::<Vec<_>>();
    assert_eq!(costs(&plan.charges), [3]);
    assert_eq!(costs(&plan.looks), [1]);
    assert_eq!(costs(&plan.refunds), [3]);
    assert_eq!(costs(&plan.denied), [11]);
}

#[test]
fn r_hits_more_than_can_be_counted_are_denied_by_the_largest_limit_too() {
    let mut largest = limit("own: k");
    let window = Window::Span(MINUTE);
    let most = NonZeroU64::new(FIGURE_MAX).unwrap();
    let spec = BucketSpec::new(Algorithm::FixedWindow, most, window, None);
    largest.spec = spec.unwrap();
    let policy = policy_of(vec![largest], RlsSettings::default());
    let asked = [Hits::Charge(NonZeroU64::MAX), Hits::Charge(most)].map(with_hits);
    let facts = DescriptorFacts::new("edge", asked.to_vec()).unwrap();
    let plan = resolve_descriptors(&policy, Instead::default(), &keyring(), &facts);
    assert_eq!((plan.denied.len(), plan.charges.len()), (1, 1));
}

#[test]
fn r_override_a_figure_replaces_the_policys_and_names_the_bucket() {
    let policy = policy(&["own: k"]);
    let bucket = |amount: u64, window: Window| {
        let mut one = descriptor("k=v");
        one.figure = Some(OwnFigure { amount, window });
        let facts = DescriptorFacts::new("edge", vec![one]).unwrap();
        let figures = own_figures(&policy, &facts);
        let plan = resolve_descriptors(&policy, with(&figures), &keyring(), &facts);
        plan.charges.first().map(|charge| {
            (
                charge.spec.limit(),
                charge.limit.name.to_string(),
                charge.id,
                charge.key(),
            )
        })
    };
    let day = Window::Span(DAY);
    let (limit, name, id, key) = bucket(500, day).unwrap();
    assert_eq!((limit, &*name), (500, "own"));
    assert!(key.ends_with(":name:own:q500:w1d"), "{key}");
    assert_eq!(bucket(500, day).unwrap().2, id);
    assert_ne!(bucket(501, day).unwrap().2, id);
    assert_ne!(bucket(500, Window::Month).unwrap().2, id);
    assert_ne!(charged(&policy, &["k=v"])[0].1, id.0);
    assert!(bucket(0, day).is_none());
}

#[test]
fn r_override_without_a_limit_that_matches_limits_nothing() {
    let policy = policy(&["own: k"]);
    let mut one = descriptor("other=v");
    one.figure = Some(OwnFigure {
        amount: 1,
        window: Window::Span(MINUTE),
    });
    let facts = DescriptorFacts::new("edge", vec![one]).unwrap();
    let figures = own_figures(&policy, &facts);
    let plan = resolve_descriptors(&policy, with(&figures), &keyring(), &facts);
    assert!(plan.charges.is_empty() && matches!(plan.asked[0], DescriptorTreatment::Nothing));
}

#[test]
fn t_org_a_tenants_figure_holds_where_the_policy_says_which_entry_names_it() {
    let settings = RlsSettings {
        org_key: Some("org".into()),
        ..RlsSettings::default()
    };
    let policy = policy_of(vec![limit("per-org: org")], settings);
    let facts = [descriptor("org=acme"), descriptor("org=other")].to_vec();
    let facts = DescriptorFacts::new("edge", facts).unwrap();
    let orgs = orgs_of(&policy, &facts);
    assert_eq!(orgs, [Some("acme"), Some("other")]);
    let hundred = NonZeroU64::new(100).unwrap();
    let spec = BucketSpec::new(Algorithm::SlidingLog, hundred, Window::Span(MINUTE), None);
    let limit = policy.limit("per-org").unwrap();
    let own = TenantPolicy::new(1, [(limit, spec.unwrap())]);
    let tenants = [Some(Arc::new(own)), None];
    let instead = Instead {
        figures: &[],
        tenants: &tenants,
    };
    let plan = resolve_descriptors(&policy, instead, &keyring(), &facts);
    let figures: Vec<u64> = plan.charges.iter().map(|c| c.spec.limit()).collect();
    assert_eq!(figures, [100, 10]);
}
