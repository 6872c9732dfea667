//! `[rls]` and the limits of Envoy domains, as a policy writes them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

use std::path::Path;

use palisade_core::plan::OnExceed;
use palisade_core::policy::{Dimension, LimitDef, RlsSettings, Standing, ValueMatch};
use palisade_policy::{Env, Overrides, PolicyBundle, load_text};

fn read(text: &str) -> Result<PolicyBundle, String> {
    let path = Path::new("policy.toml");
    let read = load_text(path, text, &Env::default(), &Overrides::default());
    read.map_err(|errors| errors.to_string())
}

fn limit(rest: &str) -> LimitDef {
    let text = format!("[[limit]]\nname = \"a\"\ndomain = \"edge\"\n{rest}\n");
    let bundle = read(&text).unwrap_or_else(|errors| panic!("{errors}"));
    bundle.policy.limit("a").unwrap().def.clone()
}

fn errors(rest: &str) -> String {
    match read(&format!(
        "[[limit]]\nname = \"a\"\ndomain = \"edge\"\n{rest}\n"
    )) {
        Ok(_) => "no error".to_owned(),
        Err(errors) => errors,
    }
}

const OPEN: &str = "descriptor = [{ key = \"path\", value = \"/api/*\" }, { key = \"ip\" }]\n";

#[test]
fn r_value_an_open_value_counts_each_of_its_own_unless_it_is_shared() {
    let own = limit(&format!("{OPEN}rate = \"5/s\""));
    let descriptor = |key: &str| Dimension::Descriptor(key.into());
    assert_eq!(*own.by, [descriptor("path"), descriptor("ip")]);
    let rule = own.descriptor.unwrap();
    assert_eq!(rule.entries[0].value, ValueMatch::Prefix("/api/".into()));
    assert_eq!(rule.entries[1].value, ValueMatch::Any);
    let shared = limit(&format!("{OPEN}rate = \"5/s\"\nshare = true"));
    assert!(shared.by.is_empty());
    let star = limit("descriptor = [{ key = \"ip\", value = \"*\" }]\nrate = \"5/s\"");
    assert_eq!(star.descriptor.unwrap().entries[0].value, ValueMatch::Any);
}

#[test]
fn r_zero_r_unlimited_a_limit_may_deny_or_admit_everything() {
    let standing = |rest: &str| limit(&format!("{OPEN}{rest}")).descriptor.unwrap().standing;
    assert_eq!(standing("rate = \"0/s\""), Standing::Denies);
    assert_eq!(standing("unlimited = true"), Standing::Admits);
    assert_eq!(standing("rate = \"1/s\""), Standing::Counted);
    let refused = read("[[limit]]\nname = \"a\"\nby = [\"ip\"]\nrate = \"0/s\"\n").unwrap_err();
    assert!(
        refused.contains("`limit.rate` must not be zero"),
        "{refused}"
    );
}

#[test]
fn r_shadow_r_atomic_r_meta_the_whole_service_has_switches() {
    let off = read("").unwrap().policy.settings.rls.clone();
    assert_eq!(off, RlsSettings::default());
    let text = "[rls]\nshadow = true\ncount_denied = true\nmetadata = true\nrefunds = true\n";
    let on = read(text).unwrap().policy.settings.rls.clone();
    assert!(on.shadow && on.count_denied && on.metadata && on.refunds);
    let one = limit(&format!("{OPEN}rate = \"5/s\"\nshadow = true"));
    assert_eq!(one.on_exceed, OnExceed::Report);
}

#[test]
fn b_overdraft_a_limit_may_be_overdrawn() {
    for (written, expected) in [
        ("true", (OnExceed::Overdraft, false)),
        ("\"always\"", (OnExceed::Overdraft, true)),
        ("false", (OnExceed::Deny, false)),
    ] {
        let one = limit(&format!("{OPEN}rate = \"5/s\"\noverdraft = {written}"));
        assert_eq!((one.on_exceed, one.charged_anyway), expected, "{written}");
    }
    // L-COST is about limits that refuse what does not fit.
    let dear = format!("{OPEN}rate = \"5/s\"\ncost = 9");
    assert!(errors(&dear).contains("is above the limit itself"));
    assert_eq!(errors(&format!("{dear}\noverdraft = true")), "no error");
}

#[test]
fn b_overdraft_says_where_it_cannot_be_and_repeats_no_value() {
    let refused = errors(&format!("{OPEN}rate = \"5/s\"\noverdraft = \"s3cret\""));
    let expected = "`limit.overdraft` must be `true`, `false` or `\"always\"`";
    assert!(refused.contains(expected), "{refused}");
    assert!(!refused.contains("s3cret"), "{refused}");
    for (beside, expected) in [
        (
            "rate = \"5/s\"\nshadow = true",
            "`limit.overdraft` and `shadow` exclude each other",
        ),
        (
            "unlimited = true",
            "`limit.overdraft` and `unlimited` exclude each other",
        ),
        (
            "rate = \"5/s\"\naccuracy = \"leased\"",
            "`limit.accuracy` must not be `leased` beside `overdraft`",
        ),
    ] {
        let refused = errors(&format!("{OPEN}{beside}\noverdraft = true"));
        assert!(refused.contains(expected), "{refused}");
    }
    for beside in [
        "by = []\nrate = \"5/s\"\nthrottle = true",
        "by = [\"ip\"]\nconcurrency = 5\nhold = \"5s\"",
    ] {
        let text = format!("[[limit]]\nname = \"a\"\noverdraft = \"always\"\n{beside}\n");
        let refused = read(&text).unwrap_err();
        assert!(refused.contains("`limit.overdraft` and `"), "{refused}");
    }
}

#[test]
fn r_replaces_names_limits_of_its_own_domain() {
    let two = |domain: &str, name: &str| {
        read(&format!(
            "[[limit]]\nname = \"all\"\ndomain = \"edge\"\ndescriptor = [{{ key = \"ip\" }}]\nrate = \"5/s\"\n\
             [[limit]]\nname = \"b\"\ndomain = \"{domain}\"\ndescriptor = [{{ key = \"x\" }}]\nrate = \"5/s\"\nreplaces = [\"{name}\"]\n"
        ))
    };
    let bundle = two("edge", "all").unwrap();
    let rule = bundle.policy.limit("b").unwrap().def.descriptor.clone();
    assert_eq!(&*rule.unwrap().replaces[0], "all");
    for (domain, name) in [
        ("edge", "al"),
        ("other", "all"),
        ("edge", "b"),
        ("edge", "ip-auth"),
    ] {
        let refused = two(domain, name).unwrap_err();
        assert!(
            refused.contains("names no other limit of its domain"),
            "{refused}"
        );
    }
}

/// A limit of the domain `edge`, in six lines if it replaces others; `key` is its name as well.
fn replacing(key: &str, replaced: &str) -> String {
    let replaces = match replaced {
        "" => String::new(),
        names => format!("replaces = [{names}]\n"),
    };
    format!(
        "[[limit]]\nname = \"{key}\"\ndescriptor = [{{ key = \"{key}\" }}]\n\
         domain = \"edge\"\nrate = \"5/s\"\n{replaces}"
    )
}

#[test]
fn r_replaces_a_circle_is_refused_at_each_of_its_places() {
    let errors = |limits: &[(&str, &str)]| {
        let text: String = limits.iter().map(|(key, of)| replacing(key, of)).collect();
        read(&text).map_or_else(|errors| errors, |_| "no error".to_owned())
    };
    let two = errors(&[("a", "\"b\""), ("b", "\"a\"")]);
    for place in [
        "policy.toml:6:12: error: `limit.replaces` of `a` leads back to it (`a` → `b` → `a`)",
        "policy.toml:12:12: error: `limit.replaces` of `b` leads back to it (`b` → `a` → `b`)",
    ] {
        assert!(two.contains(place), "{two}");
    }
    let three = errors(&[
        ("a", "\"b\""),
        ("b", "\"c\""),
        ("c", "\"a\", \"d\""),
        ("d", ""),
    ]);
    assert!(three.contains("(`c` → `a` → `b` → `c`)"), "{three}");
    assert_eq!(three.matches("leads back to it").count(), 3, "{three}");
    // A limit that leads into a circle is not part of it, and two ways to one limit are no circle.
    let into = errors(&[("a", "\"b\""), ("b", "\"c\""), ("c", "\"b\"")]);
    assert!(!into.contains("of `a` leads back"), "{into}");
    let fan = errors(&[("a", "\"b\", \"c\""), ("b", "\"c\""), ("c", "")]);
    assert_eq!(fan, "no error");
}

#[test]
fn what_a_domain_cannot_mean_is_refused() {
    let entries = |count: usize| {
        format!(
            "descriptor = [{}]\n",
            "{ key = \"k\", value = \"v\" },".repeat(count)
        )
    };
    for (rest, expected) in [
        (
            format!("{OPEN}rate = \"5/s\"\nunlimited = true"),
            "`limit.unlimited` and `rate` exclude",
        ),
        (
            format!("{}rate = \"5/s\"\nshare = true", entries(1)),
            "`limit.share` only means something",
        ),
        (
            format!("{OPEN}rate = \"5/s\"\nshare = true\nby = [\"descriptor:ip\"]"),
            "`limit.share` and `by` exclude",
        ),
        (
            format!("{}rate = \"5/s\"", entries(17)),
            "has more than 16 entries",
        ),
        (
            "descriptor = [{ key = \"k\", value = \"a*b\" }]\nrate = \"5/s\"".to_owned(),
            "`*` before its end",
        ),
        (
            format!(
                "descriptor = [{}]\nrate = \"5/s\"",
                "{ key = \"k\" },".repeat(9)
            ),
            "entries with an open value",
        ),
        (OPEN.to_owned(), "`limit.rate` is missing"),
    ] {
        let errors = errors(&rest);
        assert!(errors.contains(expected), "{rest}: {errors}");
    }
    let without = "[[limit]]\nname = \"a\"\nby = [\"ip\"]\n";
    for (rest, expected) in [
        (
            "unlimited = true",
            "`limit.unlimited` only means something with `domain`",
        ),
        (
            "rate = \"5/s\"\nshare = true",
            "`limit.share` needs `domain`",
        ),
        (
            "rate = \"5/s\"\nreplaces = \"x\"",
            "`limit.replaces` needs `domain`",
        ),
    ] {
        let refused = read(&format!("{without}{rest}\n")).unwrap_err();
        assert!(refused.contains(expected), "{refused}");
    }
}

#[test]
fn two_limits_that_answer_the_same_descriptor_are_refused() {
    let one = |name: &str, value: &str| {
        format!(
            "[[limit]]\nname = \"{name}\"\ndomain = \"edge\"\ndescriptor = [{{ key = \"k\", value = \"{value}\" }}]\nrate = \"5/s\"\n"
        )
    };
    assert!(read(&(one("a", "x") + &one("b", "x*"))).is_ok());
    let refused = read(&(one("a", "x") + &one("b", "x"))).unwrap_err();
    assert!(refused.contains("is the same as that of `a`"), "{refused}");
}

#[test]
fn a_unit_as_people_write_it_gets_the_right_hint() {
    for (rate, meant) in [
        ("10/5m", "min"),
        ("10/m", "min"),
        ("10/minute", "min"),
        ("10/sec", "s"),
        ("10/hour", "h"),
        ("10/2d", "day"),
        ("10/months", "month"),
        ("10/years", "year"),
    ] {
        let text = format!("[[limit]]\nname = \"a\"\nby = [\"ip\"]\nrate = \"{rate}\"\n");
        let refused = read(&text).unwrap_err();
        assert!(
            refused.contains(&format!("did you mean `{meant}`?")),
            "{rate}: {refused}"
        );
    }
    let refused = read("[lockout]\nlock = \"15m\"\n").unwrap_err();
    assert!(
        refused.contains("did you mean the unit `min`?"),
        "{refused}"
    );
    assert!(read("[[limit]]\nname = \"a\"\nby = [\"ip\"]\nrate = \"10/week\"\n").is_ok());
    assert!(read("[[limit]]\nname = \"a\"\nby = [\"ip\"]\nrate = \"10/year\"\n").is_ok());
}
