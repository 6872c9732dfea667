//! What each source is turned into, and what is refused.

use super::{Scratch, fixture, run, text};

/// Paths differ from machine to machine.
fn without_paths(policy: &str, folder: &str) -> String {
    policy.replace(folder, "")
}

fn shown(args: &[&str], file: &str) -> String {
    let file = fixture(file);
    let folder = &file[..=file.rfind('/').unwrap()];
    let output = run(&[&["import"], args, &[&file]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    without_paths(text(&output.stdout), folder)
}

#[test]
fn envoy_ratelimit_becomes_a_policy_with_its_comments_and_differences() {
    insta::assert_snapshot!(
        "import_envoy_ratelimit",
        shown(&["envoy-ratelimit"], "ratelimit.yaml")
    );
    let kept = shown(&["envoy-ratelimit", "--keep-windows"], "ratelimit.yaml");
    insta::assert_snapshot!("import_envoy_ratelimit_kept", kept);
}

#[test]
fn limitador_becomes_a_policy_with_its_comments_and_differences() {
    insta::assert_snapshot!("import_limitador", shown(&["limitador"], "limits.yaml"));
}

#[test]
fn nginx_becomes_a_policy_with_its_comments_and_differences() {
    insta::assert_snapshot!("import_nginx", shown(&["nginx"], "nginx/nginx.conf"));
}

#[test]
fn n13_each_difference_is_said_once_with_the_limits_that_it_concerns() {
    for (source, file) in [
        ("envoy-ratelimit", "ratelimit.yaml"),
        ("limitador", "limits.yaml"),
        ("nginx", "nginx/nginx.conf"),
    ] {
        let output = run(&["import", source, &fixture(file)]);
        let (policy, said) = (text(&output.stdout), text(&output.stderr));
        let (_, end) = policy
            .split_once("# Differences from the original")
            .unwrap();
        let listed: Vec<&str> = end
            .lines()
            .filter_map(|line| line.strip_prefix("# - "))
            .collect();
        assert!(listed.len() > 2, "{source}: {end}");
        let count = format!("{} differences", listed.len());
        assert!(said.contains(&count), "{source}: {said}");
        let all = format!("{policy}{said}");
        for difference in listed {
            let (_, what) = difference.split_once(": ").unwrap();
            assert_eq!(all.matches(what).count(), 1, "{source}: {what}");
        }
        for line in policy.lines().filter(|line| line.starts_with("# left out")) {
            let (_, why) = line.split_once("): ").unwrap();
            assert!(said.contains(why), "{source}: {why}");
        }
    }
}

#[test]
fn cases_show_each_nginx_limit_deny_one_past_its_figure() {
    let scratch = Scratch::new();
    let (_, cases) = scratch.import(&["nginx", &fixture("nginx/nginx.conf")]);
    assert_eq!(cases.matches("\"deny\"").count(), 2, "{cases}");
    scratch.cases_hold();
}

#[test]
fn cases_show_each_limit_of_a_domain_deny_one_past_its_figure() {
    let scratch = Scratch::new();
    for (source, file, denied) in [
        ("envoy-ratelimit", "ratelimit.yaml", 3),
        ("limitador", "limits.yaml", 3),
    ] {
        let (_, cases) = scratch.import(&[source, &fixture(file)]);
        assert_eq!(cases.matches("\"deny\"").count(), denied, "{cases}");
        scratch.cases_hold();
    }
}

#[test]
fn limits_that_replace_each_other_are_refused_or_left_to_count() {
    let scratch = Scratch::new();
    let limit = |key: &str, name: &str, replaced: &str| {
        format!(
            "  - key: {key}\n    rate_limit: {{unit: hour, requests_per_unit: 2, name: {name}, \
             replaces: [{{name: {replaced}}}]}}\n"
        )
    };
    let descriptors = [
        limit("a", "one", "two"),
        limit("b", "two", "one"),
        limit("c", "three", "one"),
    ];
    let yaml = format!("domain: d\ndescriptors:\n{}", descriptors.concat());
    let file = scratch.file("f.yaml", &yaml);
    let said = scratch.try_import(&["envoy-ratelimit", &file]).unwrap_err();
    for line in [3, 5] {
        let place = format!("{file}:{line}: `replaces` leads from this limit back to it");
        assert!(said.contains(&place), "{said}");
    }
    assert!(!said.contains(&format!("{file}:7")), "{said}");
    let (policy, _) = scratch.import(&["envoy-ratelimit", &file, "--skip-unsupported"]);
    assert_eq!(policy.matches("\nreplaces = ").count(), 1, "{policy}");
    scratch.cases_hold();
}

#[test]
fn a_folder_is_read_in_the_order_of_its_names() {
    let scratch = Scratch::new();
    let limit = "descriptors: [{key: a, rate_limit: {unit: second, requests_per_unit: 1}}]\n";
    scratch.file("b.yaml", &format!("domain: second\n{limit}"));
    scratch.file("a.yml", &format!("domain: first\n{limit}"));
    scratch.file("c.txt", "not YAML: [");
    let folder = scratch.path("").to_str().unwrap().to_owned();
    let (policy, _) = scratch.import(&["envoy-ratelimit", &folder]);
    let at = |domain: &str| policy.find(&format!("domain = \"{domain}\"")).unwrap();
    assert!(at("first") < at("second"));
}

#[test]
fn a_config_map_is_read_like_the_files_in_it() {
    let scratch = Scratch::new();
    let map = |unit: &str| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\ndata:\n  config.yaml: |\n    domain: d\n    descriptors:\n      # each path\n      - key: PATH\n        rate_limit:\n          unit: {unit}\n          requests_per_unit: 2\n"
        )
    };
    let file = scratch.file("map.yaml", &map("minute"));
    let (policy, _) = scratch.import(&["envoy-ratelimit", &file]);
    assert!(policy.contains("# each path\n"), "{policy}");
    assert!(policy.contains("rate = \"2/min\""), "{policy}");
    let said = refused("envoy-ratelimit", "map.yaml", &map("fortnight"));
    assert!(
        said.contains("map.yaml:10: `unit` is missing or unknown"),
        "{said}"
    );
}

#[test]
fn a_file_that_is_there_is_left_alone() {
    let scratch = Scratch::new();
    let there = scratch.file("policy.toml", "mine");
    let output = run(&[
        "import",
        "limitador",
        &fixture("limits.yaml"),
        "--out",
        &there,
    ]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("is there already"));
    assert_eq!(std::fs::read_to_string(there).unwrap(), "mine");
}

#[test]
fn json_tells_limits_and_differences() {
    let file = fixture("limits.yaml");
    let output = run(&["import", "limitador", &file, "--json"]);
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["limits"], 3);
    assert!(told["policy"].as_str().unwrap().contains("[[limit]]"));
    assert!(!told["differences"].as_array().unwrap().is_empty());
}

/// Imports a text and gives what was said about it.
fn refused(source: &str, file: &str, content: &str) -> String {
    let scratch = Scratch::new();
    let path = scratch.file(file, content);
    let output = run(&["import", source, &path]);
    assert_eq!(output.status.code(), Some(2), "{content}");
    assert!(output.stdout.is_empty());
    let said = text(&output.stderr);
    without_paths(said, &path[..=path.rfind('/').unwrap()])
}

#[test]
fn what_is_refused_names_file_line_and_what_to_do() {
    let rate = "rate_limit: {unit: second, requests_per_unit: 1}";
    let one = |line: &str| format!("domain: d\ndescriptors:\n  - {line}\n");
    let cases = [
        (
            "descriptors: []\n".to_owned(),
            "f.yaml:1: `domain` is missing",
        ),
        (one("value: v"), "f.yaml:3: `key` is missing"),
        (one("{key: a*}"), "f.yaml:3: `key` ends in `*`"),
        (
            one("{key: a, value: x*y}"),
            "f.yaml:3: `value` has a `*` before its end",
        ),
        (
            one("{key: a, ratelimit: {}}"),
            "f.yaml:3: `ratelimit` is not known here",
        ),
        (
            one("{key: a, rate_limit: {unit: m, requests_per_unit: 1}}"),
            "f.yaml:3: `unit` is missing or unknown",
        ),
        (
            one("{key: a, rate_limit: {unit: day, requests_per_unit: -1}}"),
            "f.yaml:3: `requests_per_unit` must be a whole number",
        ),
        (
            one("{key: a, rate_limit: {unlimited: true, unit: day}}"),
            "f.yaml:3: `unlimited` and `unit` exclude",
        ),
        (
            one("{key: a, quota_mode: true}"),
            "f.yaml:3: `quota_mode` has no counterpart",
        ),
        (
            format!(
                "{}  - {{key: a, {rate}}}\n",
                one(&format!("{{key: a, {rate}}}"))
            ),
            "f.yaml:4: the same `key` and `value`",
        ),
        (
            one("{key: a, shadow_mode: maybe}"),
            "f.yaml:3: `shadow_mode` must be `true` or `false`",
        ),
        ("domain: [\n".to_owned(), "f.yaml:"),
    ];
    for (content, expected) in cases {
        let said = refused("envoy-ratelimit", "f.yaml", &content);
        assert!(said.contains(expected), "{content}: {said}");
        assert!(said.contains("hint: "), "{said}");
    }
}

#[test]
fn what_limitador_says_and_descriptors_cannot_is_refused_or_left_out() {
    let limit = |condition: &str| {
        format!(
            "- namespace: n\n  max_value: 1\n  seconds: 1\n  conditions: [\"{condition}\"]\n  variables: []\n"
        )
    };
    let cases = [
        (
            limit("a == 'x' || b == 'y'"),
            "f.yaml:1: a condition or variable says more",
        ),
        (
            limit("a == 'x' && a == 'y'"),
            "f.yaml:1: its conditions on one key exclude each other",
        ),
        (
            format!("{}{}", limit("a != 'x'"), limit("a == 'y'")),
            "f.yaml:6: this limit and one before it answer the same",
        ),
        (
            format!(
                "{}{}",
                limit("a != 'x' && b == 'y'"),
                limit("a == 'x' && b.startsWith('y')")
            ),
            "f.yaml:1: what this limit leaves out with `!=` is in part what another limit counts",
        ),
        (
            limit("a == ''"),
            "f.yaml:1: a condition or variable says more",
        ),
        (
            "- namespace: n\n  max_value: 1\n  seconds: 1\n".to_owned(),
            "f.yaml:1: the limit has neither conditions nor variables",
        ),
        (
            "- max_value: 1\n  seconds: 0\n".to_owned(),
            "f.yaml:1: `namespace` is missing",
        ),
        (
            "a: b\n".to_owned(),
            "f.yaml:1: the file must be a list of limits",
        ),
    ];
    for (content, expected) in cases {
        let said = refused("limitador", "f.yaml", &content);
        assert!(said.contains(expected), "{content}: {said}");
    }
    let scratch = Scratch::new();
    let both = format!("{}{}", limit("a == 'x' || b == 'y'"), limit("a == 'y'"));
    let file = scratch.file("f.yaml", &both);
    let (policy, _) = scratch.import(&["limitador", &file, "--skip-unsupported"]);
    assert_eq!(policy.matches("[[limit]]").count(), 1, "{policy}");
    assert_eq!(policy.matches("# left out (").count(), 1, "{policy}");
}

#[test]
fn limitador_limits_fit_the_descriptor_that_envoy_sends() {
    let scratch = Scratch::new();
    let file = scratch.file(
        "f.yaml",
        "- namespace: n\n  max_value: 7\n  seconds: 90\n  variables: [user]\n",
    );
    let args = ["limitador", file.as_str(), "--entries", "method,user"];
    let (policy, _) = scratch.import(&args);
    let expected = "descriptor = [{ key = \"method\" }, { key = \"user\" }]\nby = [\"descriptor:user\"]\nrate = \"7/90s\"\n";
    assert!(policy.contains(expected), "{policy}");
    assert!(!policy.contains("among others"), "{policy}");
}

#[test]
fn what_nginx_says_and_requests_do_not_have_is_refused() {
    let zone = |key: &str| format!("limit_req_zone {key} zone=z:1m rate=1r/s;\n");
    let server = "server {\nlocation / { limit_req zone=z; }\n}\n";
    let cases = [
        (
            format!("{}{server}", zone("$http_x_tenant")),
            "f.conf:3: the key of its zone has a variable",
        ),
        (
            format!(
                "geo $limited {{ default 1; }}\n{}{server}",
                zone("$limited")
            ),
            "palisade allowlist add",
        ),
        (
            format!(
                "{}server {{\nlocation ~ \\.php$ {{ limit_req zone=z; }}\n}}\n",
                zone("$remote_addr")
            ),
            "f.conf:3: a location with a regular expression",
        ),
        (
            format!("{}{server}{server}", zone("$remote_addr")),
            "f.conf:5: another `server` has limits too",
        ),
        (
            "limit_req_zone $remote_addr zone=z:1m;\n".to_owned(),
            "f.conf:1: `limit_req_zone` cannot be read",
        ),
        (
            "limit_req zone=nowhere;\n".to_owned(),
            "f.conf:1: `limit_req` cannot be read",
        ),
        (
            "include missing.conf;\n".to_owned(),
            "f.conf:1: the included file cannot be read",
        ),
        (
            "include f.conf;\n".to_owned(),
            "too many files include each other",
        ),
        ("a \"b;\n".to_owned(), "f.conf:1: a quote is not closed"),
    ];
    for (content, expected) in cases {
        let said = refused("nginx", "f.conf", &content);
        assert!(said.contains(expected), "{content}: {said}");
    }
}
