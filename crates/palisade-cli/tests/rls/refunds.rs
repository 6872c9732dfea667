//! Negative hits: they name no charge, so they are given back only where a policy says so.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;

use crate::common::palisade;
use crate::service::{PER_IP, of, on_every_store, shown, with_hits};

/// Five an hour for each address, and why in each answer.
fn policy() -> String {
    format!("{PER_IP}\n[rls]\nmetadata = true\n")
}

const NOT_REFUNDED: &str =
    "rate_limiter_descriptors_total{limit=\"per-ip\",result=\"not_refunded\"}";

fn negative(hits: u64) -> RateLimitDescriptor {
    RateLimitDescriptor {
        is_negative_hits: true,
        ..with_hits(&[("ip", "a")], hits)
    }
}

#[test]
fn r_hits_negative_hits_are_answered_and_change_nothing_by_themselves() {
    on_every_store(&policy(), |service| {
        let five = [with_hits(&[("ip", "a")], 5)];
        assert_eq!(service.code(&five), Code::Ok);
        let answer = service.ask(&[negative(2)]);
        assert_eq!(shown(&answer), [(Code::Ok, "per-ip".to_owned(), 0)]);
        let said = format!("{:?}", answer.dynamic_metadata);
        assert!(said.contains("not_refunded"), "{said}");
        assert_eq!(service.metric(NOT_REFUNDED).as_deref(), Some("1"));
        assert_eq!(service.code(&[of(&[("ip", "a")])]), Code::OverLimit);
    });
}

#[test]
fn r_hits_negative_hits_are_given_back_where_the_policy_says_so_unless_the_call_is_over() {
    let policy = format!("{}refunds = true\n", policy());
    on_every_store(&policy, |service| {
        let three = [with_hits(&[("ip", "a")], 3)];
        assert_eq!(service.code(&three), Code::Ok);
        let answer = service.ask(&[negative(2)]);
        assert_eq!(shown(&answer), [(Code::Ok, "per-ip".to_owned(), 4)]);
        assert_eq!(service.metric(NOT_REFUNDED), None);
        let full = with_hits(&[("ip", "b")], 5);
        assert_eq!(service.code(std::slice::from_ref(&full)), Code::Ok);
        let over = service.ask(&[negative(1), full]);
        assert_eq!(over.overall_code(), Code::OverLimit);
        assert_eq!(shown(&over)[0], (Code::Ok, "per-ip".to_owned(), 4));
        assert_eq!(service.metric(NOT_REFUNDED).as_deref(), Some("1"));
    });
}

#[test]
fn check_warns_of_refunds_that_name_no_charge() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.toml");
    let check = |rls: &str| {
        std::fs::write(&file, format!("[rls]\n{rls}")).unwrap();
        let output = palisade().arg("check").arg(&file).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).unwrap())
    };
    let (code, said) = check("refunds = true\n");
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("policy.toml:2:11: warning: `rls.refunds`"),
        "{said}"
    );
    let (_, said) = check("refunds = false\n");
    assert!(!said.contains("rls.refunds"), "{said}");
}
