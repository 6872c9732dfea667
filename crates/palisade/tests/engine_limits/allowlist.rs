//! The allowlist: who passes, which checks remain, and when an entry ends.

use palisade::core::time::SECOND;
use palisade::engine::AllowlistKind;

use super::engine_support::{Bench, START};
use super::{AUTH, allow};

#[tokio::test]
async fn w_bypass_skips_limits_and_quotas_and_is_seen_each_time() {
    let bench = Bench::new();
    let entries = [
        (AllowlistKind::Ip, "203.0.113.1"),
        (AllowlistKind::Cidr, "198.51.100.0/24"),
        (AllowlistKind::UserId, "u-1"),
    ];
    for (kind, identifier) in entries {
        bench
            .engine
            .allowlist_add(allow(kind, identifier, None))
            .await
            .unwrap();
    }
    let passes = [
        AUTH,
        r#"{"ip":"198.51.100.200","method":"POST","path":"/auth/token"}"#,
        r#"{"ip":"192.0.2.1","method":"POST","path":"/auth/token","user":"u-1"}"#,
    ];
    for facts in passes {
        assert_eq!(bench.admitted(facts, 40).await, 40, "{facts}");
    }
    assert_eq!(
        bench
            .heard
            .decided
            .lock()
            .iter()
            .filter(|(_, bypassed)| *bypassed)
            .count(),
        120
    );
    let other = r#"{"ip":"192.0.2.1","method":"POST","path":"/auth/token","user":"u-2"}"#;
    assert_eq!(bench.admitted(other, 40).await, 10);
    assert!(
        bench
            .engine
            .allowlist_remove(AllowlistKind::Ip, "203.0.113.1", None)
            .await
            .unwrap()
    );
    assert_eq!(
        bench.admitted(AUTH, 40).await,
        10,
        "bypassed requests took nothing"
    );
}

#[tokio::test]
async fn w_bypass_does_not_lift_a_hard_block() {
    let bench = Bench::new();
    let entry = allow(AllowlistKind::Ip, "203.0.113.1", None);
    bench.engine.allowlist_add(entry).await.unwrap();
    let failure =
        r#"{"ip":"203.0.113.1","account":"a","device":{"fingerprint":"f","confidence":"medium"}}"#;
    for _ in 0..4 {
        bench.guard("login.failure", failure).await;
    }
    assert_eq!(
        bench.guard("login.check", failure).await["decision"],
        "hard_block"
    );
}

#[tokio::test]
async fn w_bypass_a_user_of_one_organisation_passes_in_that_one_only() {
    let bench = Bench::with("[[limit]]\nname = \"few\"\nby = [\"ip\"]\nrate = \"1/min\"\n");
    let mut entry = allow(AllowlistKind::UserId, "u", None);
    entry.org = Some("acme".to_owned());
    let added = bench.engine.allowlist_add(entry).await.unwrap();
    assert!(added.org.is_some_and(|digest| digest != "acme"));
    let facts = |org: &str, ip: u8| {
        format!(r#"{{"ip":"192.0.2.{ip}","method":"GET","path":"/","user":"u"{org}}}"#)
    };
    let (acme, other, none) = (r#","org":"acme""#, r#","org":"other""#, "");
    assert_eq!(bench.admitted(&facts(acme, 1), 5).await, 5);
    assert_eq!(bench.admitted(&facts(other, 2), 5).await, 1);
    assert_eq!(bench.admitted(&facts(none, 3), 5).await, 1);

    let remove = |org: Option<&'static str>| {
        let engine = &bench.engine;
        async move {
            engine
                .allowlist_remove(AllowlistKind::UserId, "u", org)
                .await
                .unwrap()
        }
    };
    assert!(
        !remove(None).await,
        "an entry for any organisation is another entry"
    );
    assert!(remove(Some("acme")).await);
    assert_eq!(bench.admitted(&facts(acme, 1), 5).await, 1);

    let any = allow(AllowlistKind::UserId, "u", None);
    bench.engine.allowlist_add(any).await.unwrap();
    for org in [acme, other, none] {
        assert_eq!(bench.admitted(&facts(org, 4), 5).await, 5);
    }
    let mut address = allow(AllowlistKind::Ip, "192.0.2.9", None);
    address.org = Some("acme".to_owned());
    let refused = bench.engine.allowlist_add(address).await.unwrap_err();
    assert!(
        refused
            .to_string()
            .starts_with("`org` belongs to a `user_id` only")
    );
}

#[tokio::test]
async fn w_expiry_an_entry_stops_at_its_second() {
    let bench = Bench::new();
    let entry = allow(
        AllowlistKind::Ip,
        "203.0.113.1",
        Some(START.plus(30 * SECOND)),
    );
    bench.engine.allowlist_add(entry).await.unwrap();
    bench.sleep(30 * SECOND - 1).await;
    assert_eq!(bench.admitted(AUTH, 40).await, 40);
    bench.sleep(1).await;
    assert_eq!(bench.admitted(AUTH, 40).await, 10);
    let past = allow(AllowlistKind::Ip, "203.0.113.2", Some(START));
    let refused = bench
        .engine
        .allowlist_add(past)
        .await
        .unwrap_err()
        .to_string();
    assert_eq!(refused, "`expires_at` must be in the future");
}
