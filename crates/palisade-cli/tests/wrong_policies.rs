//! Policy files as a newcomer writes them: what `palisade check` says about each must be
//! enough to correct it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod common;

use std::path::Path;

use common::palisade;

/// Exit code and everything that is printed about a file.
fn check_in(folder: &Path, args: &[&str], env: &[(&str, &str)]) -> String {
    let output = palisade()
        .current_dir(folder)
        .args(["check", "policy.toml"])
        .args(args)
        .envs(env.iter().copied())
        .output()
        .unwrap();
    let said = [output.stderr, output.stdout].concat();
    let said = String::from_utf8(said).unwrap();
    format!("exit {}\n{said}", output.status.code().unwrap())
}

fn check(text: &str, args: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("policy.toml"), text).unwrap();
    check_in(folder.path(), args, &[])
}

#[test]
fn typing_errors() {
    insta::assert_snapshot!(check(
        r#"
[server]
lisen = "127.0.0.1:8080"

[[limit]]
name = "login"
by = ["adress"]
clas = "auth"
rate = "10/min"

[guard.logn]
enabled = true
"#,
        &[]
    ));
}

#[test]
fn wrong_types() {
    insta::assert_snapshot!(check(
        r#"
[server]
listen = 8080
trusted_proxies = "10.0.0.0/8"

[store]
timeout = 100

[[limit]]
name = "login"
by = "ip"
rate = 10
shadow = "yes"
"#,
        &[]
    ));
}

#[test]
fn duplicates() {
    insta::assert_snapshot!(check(
        r#"
[[limit]]
name = "login"
by = ["ip"]
rate = "10/min"

[[limit]]
name = "login"
by = ["ip"]
rate = "20/min"

[[client]]
id = "canary"
type = "public"

[[client]]
id = "canary"
type = "public"
"#,
        &[]
    ));
}

#[test]
fn a_key_twice() {
    insta::assert_snapshot!(check(
        "[[limit]]\nname = \"login\"\nby = [\"ip\"]\nrate = \"10/min\"\nrate = \"20/min\"\n",
        &[]
    ));
}

#[test]
fn limits_that_cannot_be() {
    insta::assert_snapshot!(check(
        r#"
[[limit]]
name = "zero"
by = ["ip"]
rate = "0/min"

[[limit]]
name = "dear"
by = ["ip"]
rate = "10/min"
cost = 20

[[limit]]
name = "nobody"
by = ["ip"]
class = "reports"
rate = "10/min"

[[limit]]
name = "login-hour"
by = ["ip"]
class = "auth"
rate = "5/h"

[[limit]]
name = "login-minute"
by = ["ip"]
class = "auth"
rate = "10/min"
"#,
        &[]
    ));
}

#[test]
fn b_fair_b_warn_queues_and_thresholds_that_cannot_be() {
    insta::assert_snapshot!(check(
        r#"
[[limit]]
name = "no-wait"
by = ["ip"]
concurrency = 8
hold = "30s"
queue = 10

[[limit]]
name = "endless"
by = ["ip"]
concurrency = 8
hold = "30s"
queue = 10
wait = "1min"

[[limit]]
name = "crowd"
by = ["ip"]
concurrency = 8
hold = "30s"
queue = 1001
wait = "2s"

[[limit]]
name = "no-slots"
by = ["ip"]
rate = "10/min"
queue = 10
wait = "2s"

[[limit]]
name = "beyond"
by = ["ip"]
rate = "10/min"
warn_at = [0.8, 1.2]

[[limit]]
name = "descending"
by = ["ip"]
rate = "10/min"
warn_at = [1.0, 0.8]
"#,
        &[]
    ));
}

#[test]
fn b_share_b_expire_b_bound_keys_that_cannot_be() {
    insta::assert_snapshot!(check(
        r#"
[[limit]]
name = "more-than-all"
by = ["org"]
rate = "10/min"
max_share = 1.5

[[limit]]
name = "nothing"
by = ["org"]
rate = "10/min"
max_share = 0

[[limit]]
name = "places"
by = ["org"]
concurrency = 8
hold = "90s"
max_share = 0.5
on_expiry = "release"

[[limit]]
name = "global"
by = []
rate = "1000/s"
throttle = true
max_share = 0.5

[[limit]]
name = "leased"
by = ["org"]
rate = "1000/min"
accuracy = "leased"
max_share = 0.5

[[limit]]
name = "monthly"
by = ["org"]
rate = "1000/month"
on_expiry = "release"

[[limit]]
name = "forgotten"
by = ["org"]
rate = "1000/h"
on_expiry = "forget"

[[limit]]
name = "tokens"
by = ["org"]
rate = "1000/min"
unit = "tokens"
"#,
        &[]
    ));
}

#[test]
fn b_fair_nobody_waits_longer_than_an_answer_may_take() {
    let said = check(
        r#"
[server]
request_timeout = "2s"

[[limit]]
name = "jobs"
by = ["ip"]
concurrency = 8
hold = "30s"
queue = 10
wait = "2s"
"#,
        &[],
    );
    assert!(
        said.contains("`server.request_timeout` is not longer than the `wait`"),
        "{said}"
    );
    assert!(said.contains("`jobs`"), "{said}");
}

#[test]
fn bad_toml() {
    insta::assert_snapshot!(check(
        "[server\nlisten = 127.0.0.1:8080\n\n[[limit]]\nname = login\nby = [\"ip\"\n",
        &[]
    ));
}

#[test]
fn units() {
    insta::assert_snapshot!(check(
        r#"
[store]
timeout = "1sec"

[[limit]]
name = "a"
by = ["ip"]
rate = "10/5m"

[[limit]]
name = "b"
by = ["ip"]
rate = "10 per hour"

[[limit]]
name = "c"
by = ["ip"]
rate = "1000/day, 10/min"

[lockout]
lock = "15m"
"#,
        &[]
    ));
}

#[test]
fn overlaps() {
    insta::assert_snapshot!(check(
        r#"
[[route]]
path = "/login"
method = "POST"
class = "auth"

[[route]]
path = "/login/"
method = "post"
class = "write"

[[limit]]
name = "login-hour"
by = ["ip"]
class = "auth"
rate = "5/h"

[[limit]]
name = "login-minute"
by = ["ip"]
class = "auth"
rate = "10/min"
"#,
        &[]
    ));
    // Alone, a limit that another makes pointless is a warning.
    insta::assert_snapshot!(check(
        r#"
[[limit]]
name = "login-hour"
by = ["ip"]
class = "auth"
rate = "5/h"

[[limit]]
name = "login-minute"
by = ["ip"]
class = "auth"
rate = "10/min"
"#,
        &["--strict"]
    ));
}

#[test]
fn missing_secrets() {
    insta::assert_snapshot!(check(
        r#"
[server]
listen = "0.0.0.0:8080"

[store]
url = "redis://user:canary@redis:6379"

[admin]
token = "env:NO_SUCH_VARIABLE"

[jwt]
key = "canary-that-is-the-secret-itself"
algorithm = "HS256"
"#,
        &[]
    ));
    insta::assert_snapshot!(check(
        "[server]\nlisten = \"0.0.0.0:8080\"\n\n[store]\nurl = \"redis://redis:6379\"\n\n[admin]\ntoken = \"env:NO_SUCH_VARIABLE\"\n",
        &[]
    ));
}

#[test]
fn what_is_wrong_with_one_table_hides_nothing_of_another_and_makes_nothing_up() {
    let said = check(
        r#"
[server]
listen = "0.0.0.0:8080"
caller_token = "env:NO_SUCH_VARIABLE"

[tls]
insecure = "yes"

[store]
url = "memory:"
timeout = "soon"

[proxy]
upstream = 5

[[route]]
path = "/login"
method = "POST"
class = "auth"
outcome = "status"
username = "form:user"
success_cookie = "session"

[[limit]]
name = "zero"
by = ["ip"]
rate = "0/min"
"#,
        &[],
    );
    for expected in [
        "`server.caller_token` refers to the variable",
        "`tls.insecure` must be",
        "`store.timeout` must be",
        "`proxy.upstream` must be",
        "`limit.rate` must not be zero",
        "policy.toml: 5 errors",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    for made_up in ["no `tls.cert`", "keeps nothing", "no proxy to see it"] {
        assert!(!said.contains(made_up), "{made_up}: {said}");
    }
}

#[test]
fn what_does_not_answer_is_told_beside_everything_else() {
    let folder = tempfile::tempdir().unwrap();
    let text = "[server]\ntrusted_proxies = [\"0.0.0.0/0\"]\n\
                [store]\nurl = \"redis://127.0.0.1:1\"\n\
                [policy]\nsource = \"postgres://u:canary@127.0.0.1:1/p\"\n";
    std::fs::write(folder.path().join("policy.toml"), text).unwrap();
    let key = [("PALISADE_KEY", "0123456789abcdef0123456789abcdef")];
    let asked = |args: &[&str]| check_in(folder.path(), args, &key);
    let said = asked(&["--connect"]);
    assert!(said.starts_with("exit 3\n"), "{said}");
    for expected in [
        "warning: `server.trusted_proxies`",
        "the store:",
        "policy source",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    assert!(asked(&["--connect", "--strict"]).starts_with("exit 1\n"));
    let said = asked(&["--connect", "--json"]);
    let json = said.strip_prefix("exit 3\n").unwrap();
    let json: serde_json::Value = serde_json::from_str(json).unwrap();
    assert_eq!(json["valid"], true);
    assert_eq!(json["warnings"].as_array().unwrap().len(), 1);
    assert_eq!(json["unavailable"].as_array().unwrap().len(), 2, "{json}");
    assert!(!said.contains("canary"), "{said}");
    let broken = text.replace("[store]", "[metrics]\norgs_max = \"many\"\n[store]");
    std::fs::write(folder.path().join("policy.toml"), broken).unwrap();
    let said = asked(&["--connect"]);
    assert!(said.starts_with("exit 1\n"), "{said}");
    for expected in [
        "`metrics.orgs_max`",
        "the store:",
        "`server.trusted_proxies`",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
}

/// The binary as a user to whom modes of files mean something: root without its power over
/// them.
fn without_power_over_modes() -> std::process::Command {
    let mut command = std::process::Command::new("setpriv");
    command
        .args(["--bounding-set=-dac_override,-dac_read_search", "--"])
        .arg(env!("CARGO_BIN_EXE_palisade"))
        .env_clear();
    command
}

#[test]
fn a_file_that_this_user_may_not_read_says_so() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.toml");
    std::fs::write(&path, "").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).unwrap();
    let mut command = match std::fs::read(&path) {
        Ok(_) => without_power_over_modes(),
        Err(_) => palisade(),
    };
    let output = command
        .current_dir(folder.path())
        .args(["check", "policy.toml"])
        .output()
        .expect("root needs `setpriv` of the package util-linux");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("this user may not read the file"), "{said}");
    assert!(said.contains("hint: give it permission"), "{said}");
}

#[test]
fn unreadable_files() {
    let folder = tempfile::tempdir().unwrap();
    let mut said = check_in(folder.path(), &[], &[]);
    std::fs::create_dir(folder.path().join("policy.toml")).unwrap();
    said.push_str(&check_in(folder.path(), &[], &[]));
    std::fs::remove_dir(folder.path().join("policy.toml")).unwrap();
    std::fs::write(folder.path().join("policy.toml"), b"name = \"\xff\"\n").unwrap();
    said.push_str(&check_in(folder.path(), &[], &[]));
    insta::assert_snapshot!(said);
}

#[test]
fn risky_settings_are_warnings_unless_strict() {
    let text = r#"
[server]
trusted_proxies = ["0.0.0.0/0"]

[store]
url = "memory:"

[guard.otp.thresholds]
soft = 6
"#;
    insta::assert_snapshot!(check(text, &[]));
    assert!(check(text, &[]).starts_with("exit 0\n"));
    assert!(check(text, &["--strict"]).starts_with("exit 1\n"));
}

#[test]
fn l_durable_a_limit_over_a_long_time_that_a_restart_forgets_is_warned_of() {
    let said = |accuracy: &str, rate: &str| {
        let limit = "[[limit]]\nname = \"few\"\nby = [\"ip\"]";
        let text = format!("{limit}\nrate = \"{rate}\"\naccuracy = \"{accuracy}\"\n");
        check(&text, &[])
    };
    let warned = said("local", "5/h");
    let warning = "policy.toml:5:12: warning: `limit.accuracy` of `few` is `local`";
    assert!(
        warned.starts_with("exit 0\n") && warned.contains(warning),
        "{warned}"
    );
    for (accuracy, rate) in [("local", "5/min"), ("leased", "5/h"), ("exact", "5/h")] {
        let said = said(accuracy, rate);
        assert!(!said.contains("at every restart"), "{said}");
    }
}

#[test]
fn x10_a_limit_that_would_forget_what_was_used_is_warned_of() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, rate: &str, by: &str| {
        let text = format!("[[limit]]\nname = \"few\"\nby = [\"{by}\"]\nrate = \"{rate}\"\n");
        std::fs::write(folder.path().join(name), text).unwrap();
    };
    write("old.toml", "5/min", "ip");
    let against = |args: &[&str]| {
        let args = [&["--against", "old.toml"], args].concat();
        check_in(folder.path(), &args, &[])
    };
    write("policy.toml", "9/min", "ip");
    let kept = against(&["--strict"]);
    assert!(kept.starts_with("exit 0\n"), "{kept}");
    write("policy.toml", "5/h", "ip");
    let warned = against(&[]);
    let warning = "policy.toml:4:8: warning: `few` starts anew: its `rate` changes";
    assert!(
        warned.starts_with("exit 0\n") && warned.contains(warning),
        "{warned}"
    );
    assert!(against(&["--strict"]).starts_with("exit 1\n"));
    assert!(against(&["--json"]).contains("`few` starts anew"));
    write("policy.toml", "5/min", "user");
    let warned = against(&[]);
    assert!(
        warned.contains("policy.toml:3:6: warning: `few`"),
        "{warned}"
    );
    std::fs::remove_file(folder.path().join("old.toml")).unwrap();
    let missing = against(&[]);
    assert!(
        missing.starts_with("exit 2\n") && missing.contains("old.toml"),
        "{missing}"
    );
}

#[test]
fn no_limits_at_all() {
    insta::assert_snapshot!(check("[policy]\ndefaults = false\n", &[]));
}

#[test]
fn nothing_of_it_repeats_a_secret() {
    let text = "[secrets]\nkey = \"canary\"\n[store]\nurl = \"redis://u:canary@h\"\ntimeuot = \"canary\"\n[[api_key]]\nhash = \"canary\"\ntier = \"x\"\n[[tenant]]\nid = \"canary\"\nlimits = { org-burst = \"canary\" }\n";
    for args in [&[][..], &["--json"]] {
        let said = check(text, args);
        assert!(!said.contains("canary"), "{said}");
    }
}

#[test]
fn the_well_known_variable_is_read_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let text = "[store]\nurl = \"redis://127.0.0.1:1\"\n";
    std::fs::write(folder.path().join("policy.toml"), text).unwrap();
    let without = check_in(folder.path(), &[], &[]);
    assert!(
        without.contains("export PALISADE_KEY=$(openssl rand -hex 32)"),
        "{without}"
    );
    let key = "0123456789abcdef0123456789abcdef";
    let with = check_in(folder.path(), &[], &[("PALISADE_KEY", key)]);
    assert!(with.starts_with("exit 0\n"), "{with}");
    let asked = check_in(folder.path(), &["--connect"], &[("PALISADE_KEY", key)]);
    assert!(asked.starts_with("exit 3\n"), "{asked}");
}
