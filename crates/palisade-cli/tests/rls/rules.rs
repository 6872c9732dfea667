//! Every row of the contract.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, rate_limit::Unit};
use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;
use envoy_types::pb::google::protobuf::value::Kind;

use crate::service::{PER_IP, Service, header, of, on_every_store, request, shown, with_hits};

fn ip(value: &str) -> RateLimitDescriptor {
    of(&[("ip", value)])
}

#[test]
fn r_domain_answers_its_own_domain_and_refuses_what_is_no_call() {
    on_every_store(PER_IP, |service| {
        let codes: Vec<Code> = (0..7).map(|_| service.code(&[ip("192.0.2.1")])).collect();
        assert_eq!(codes[..5], [Code::Ok; 5]);
        assert_eq!(codes[5..], [Code::OverLimit; 2]);
        let elsewhere = service.call(request("other", &[ip("192.0.2.1")])).unwrap();
        assert_eq!(elsewhere.overall_code(), Code::Ok);
        assert_eq!(shown(&elsewhere), [(Code::Ok, String::new(), 0)]);
        let unmatched = service.ask(&[of(&[("user", "ann")])]);
        assert_eq!(shown(&unmatched), [(Code::Ok, String::new(), 0)]);
        let series = "rate_limiter_descriptors_total{limit=\"none\",result=\"ok\"}";
        assert_eq!(service.metric(series).as_deref(), Some("2"));
        let series = "rate_limiter_descriptors_total{limit=\"per-ip\",result=\"over_limit\"}";
        assert_eq!(service.metric(series).as_deref(), Some("2"));
        let refused = |service: &mut Service, domain: &str, descriptors: &[RateLimitDescriptor]| {
            let status = service.call(request(domain, descriptors)).unwrap_err();
            (status.code(), status.message().to_owned())
        };
        let invalid = tonic::Code::InvalidArgument;
        assert_eq!(
            refused(service, "", &[ip("192.0.2.1")]),
            (invalid, "`domain` must not be empty".to_owned())
        );
        assert_eq!(
            refused(service, "edge", &[]),
            (invalid, "`descriptors` must not be empty".to_owned())
        );
        assert_eq!(refused(service, "edge", &[of(&[])]).0, invalid);
    });
}

#[test]
fn r_depth_r_value_the_most_specific_limit_of_that_shape_answers() {
    let policy = r#"
        [[limit]]
        name = "any"
        domain = "edge"
        descriptor = [{ key = "path" }, { key = "ip" }]
        rate = "5/h"
        [[limit]]
        name = "api"
        domain = "edge"
        descriptor = [{ key = "path", value = "/api/*" }, { key = "ip" }]
        rate = "4/h"
        share = true
        [[limit]]
        name = "login"
        domain = "edge"
        descriptor = [{ key = "path", value = "/api/login" }, { key = "ip" }]
        rate = "3/h"
    "#;
    on_every_store(policy, |service| {
        let mut ask = |path: &str, ip: &str| {
            let answer = service.ask(&[of(&[("path", path), ("ip", ip)])]);
            let (_, name, left) = shown(&answer)[0].clone();
            format!("{name} {left}")
        };
        assert_eq!(ask("/api/login", "a"), "login 2");
        assert_eq!(ask("/api/login", "b"), "login 2");
        assert_eq!(ask("/api/x", "a"), "api 3");
        assert_eq!(ask("/api/y", "b"), "api 2");
        assert_eq!(ask("/x", "a"), "any 4");
        assert_eq!(ask("/y", "a"), "any 4");
        assert_eq!(ask("/x", "a"), "any 3");
        let shallow = service.ask(&[of(&[("path", "/x")])]);
        assert_eq!(shown(&shallow)[0].1, "");
        let turned = service.ask(&[of(&[("ip", "a"), ("path", "/x")])]);
        assert_eq!(shown(&turned)[0].1, "");
    });
}

#[test]
fn r_zero_r_unlimited_are_answered_without_a_count() {
    let policy = r#"
        [[limit]]
        name = "closed"
        domain = "edge"
        descriptor = [{ key = "user", value = "bad" }]
        rate = "0/s"
        [[limit]]
        name = "open"
        domain = "edge"
        descriptor = [{ key = "user", value = "good" }]
        unlimited = true
        [rls]
        metadata = true
    "#;
    on_every_store(policy, |service| {
        let bad = service.ask(&[of(&[("user", "bad")])]);
        assert_eq!(bad.overall_code(), Code::OverLimit);
        assert_eq!(shown(&bad), [(Code::OverLimit, "closed".to_owned(), 0)]);
        let limit = bad.statuses[0].current_limit.as_ref().unwrap();
        assert_eq!((limit.requests_per_unit, limit.unit()), (0, Unit::Second));
        assert_eq!(text_of(&bad, "rule"), "R-ZERO");
        assert_eq!(header(&bad, "retry-after"), Some("1"));
        let good = service.ask(&[of(&[("user", "good")])]);
        assert_eq!(good.overall_code(), Code::Ok);
        assert_eq!(good.statuses[0].limit_remaining, u32::MAX);
        if let Some(redis) = &service.redis {
            assert!(!redis.says(&["KEYS", "*"]).contains("descriptor"));
        }
    });
}

fn text_of(
    answer: &envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse,
    field: &str,
) -> String {
    let metadata = answer.dynamic_metadata.as_ref().unwrap();
    let value = metadata
        .fields
        .get(field)
        .and_then(|value| value.kind.clone());
    match value {
        Some(Kind::StringValue(text)) => text,
        Some(Kind::NumberValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    }
}

#[test]
fn r_replaces_the_replaced_limit_is_neither_evaluated_nor_charged() {
    let policy = r#"
        [[limit]]
        name = "all"
        domain = "edge"
        descriptor = [{ key = "ip" }]
        rate = "1/h"
        [[limit]]
        name = "partner"
        domain = "edge"
        descriptor = [{ key = "key", value = "partner" }]
        rate = "3/h"
        replaces = ["all"]
    "#;
    on_every_store(policy, |service| {
        let both = [ip("a"), of(&[("key", "partner")])];
        for left in [2, 1, 0] {
            let answer = service.ask(&both);
            let expected = [
                (Code::Ok, String::new(), 0),
                (Code::Ok, "partner".to_owned(), left),
            ];
            assert_eq!(shown(&answer), expected);
        }
        assert_eq!(service.code(&both), Code::OverLimit);
        // Nothing was charged to it.
        assert_eq!(service.code(&[ip("a")]), Code::Ok);
        assert_eq!(service.code(&[ip("a")]), Code::OverLimit);
    });
}

#[test]
fn r_shadow_reports_and_never_denies() {
    let one = format!("{}shadow = true\n[rls]\nmetadata = true\n", PER_IP);
    let all = format!("{PER_IP}\n[rls]\nshadow = true\nmetadata = true\n");
    for policy in [one, all] {
        on_every_store(&policy, |service| {
            let codes: Vec<Code> = (0..7).map(|_| service.code(&[ip("a")])).collect();
            assert_eq!(codes, [Code::Ok; 7]);
            let answer = service.ask(&[ip("a")]);
            assert_eq!(shown(&answer), [(Code::Ok, "per-ip".to_owned(), 0)]);
            let said = format!("{:?}", answer.dynamic_metadata);
            assert!(said.contains("shadow_over_limit"), "{said}");
            let series =
                "rate_limiter_descriptors_total{limit=\"per-ip\",result=\"shadow_over_limit\"}";
            assert_eq!(service.metric(series).as_deref(), Some("3"));
        });
    }
}

#[test]
fn r_hits_of_the_call_of_a_descriptor_looks_and_refunds() {
    let policy = PER_IP.replace("5/h", "10/h");
    let policy = format!("{policy}\n[rls]\nrefunds = true\n");
    on_every_store(&policy, |service| {
        let mut call = request("edge", &[ip("a"), with_hits(&[("ip", "b")], 1)]);
        call.hits_addend = 4;
        let left = |answer| -> Vec<u32> { shown(&answer).iter().map(|one| one.2).collect() };
        assert_eq!(left(service.call(call.clone()).unwrap()), [6, 9]);
        // Looks charge nothing.
        for _ in 0..3 {
            let look = service.ask(&[with_hits(&[("ip", "a")], 0)]);
            assert_eq!(shown(&look), [(Code::Ok, "per-ip".to_owned(), 6)]);
        }
        let mut refund = with_hits(&[("ip", "a")], 3);
        refund.is_negative_hits = true;
        assert_eq!(left(service.ask(std::slice::from_ref(&refund))), [9]);
        // No more than was used.
        assert_eq!(left(service.ask(std::slice::from_ref(&refund))), [10]);
        // More than the limit ever admits: denied, and nothing is charged.
        let dear = service.ask(&[with_hits(&[("ip", "a")], 11)]);
        assert_eq!(dear.overall_code(), Code::OverLimit);
        assert_eq!(header(&dear, "retry-after"), None);
        let body = String::from_utf8(dear.raw_body).unwrap();
        assert!(body.contains("cost_exceeds_limit"), "{body}");
        assert_eq!(left(service.ask(&[with_hits(&[("ip", "a")], 10)])), [0]);
        // A look at a full bucket says so.
        assert_eq!(
            service.code(&[with_hits(&[("ip", "a")], 0)]),
            Code::OverLimit
        );
        // What is given back opens it again, also where the denial was remembered.
        assert_eq!(service.code(&[ip("a")]), Code::OverLimit);
        assert_eq!(service.code(&[refund]), Code::Ok);
        assert_eq!(service.code(&[ip("a")]), Code::Ok);
    });
}

#[test]
fn r_override_replaces_the_figure_and_has_a_bucket_of_its_own() {
    let own = |amount: u32, unit: RateLimitUnit| RateLimitDescriptor {
        limit: Some(RateLimitOverride {
            requests_per_unit: amount,
            unit: unit as i32,
        }),
        ..ip("a")
    };
    on_every_store(PER_IP, |service| {
        let two = own(2, RateLimitUnit::Day);
        let answer = service.ask(std::slice::from_ref(&two));
        let limit = answer.statuses[0].current_limit.clone().unwrap();
        assert_eq!((limit.requests_per_unit, limit.unit()), (2, Unit::Day));
        assert_eq!(limit.name, "per-ip");
        assert_eq!(service.code(std::slice::from_ref(&two)), Code::Ok);
        assert_eq!(service.code(std::slice::from_ref(&two)), Code::OverLimit);
        // Another figure, and the policy's own, count for themselves.
        assert_eq!(shown(&service.ask(&[own(3, RateLimitUnit::Day)]))[0].2, 2);
        assert_eq!(shown(&service.ask(&[ip("a")]))[0].2, 4);
        // And what was used under the first is not forgotten.
        assert_eq!(service.code(&[two]), Code::OverLimit);
        assert_eq!(service.code(&[own(0, RateLimitUnit::Day)]), Code::OverLimit);
        let month = service.ask(&[own(7, RateLimitUnit::Month)]);
        let limit = month.statuses[0].current_limit.as_ref().unwrap();
        assert_eq!((limit.requests_per_unit, limit.unit()), (7, Unit::Month));
        let year = service.ask(&[own(8, RateLimitUnit::Year)]);
        let limit = year.statuses[0].current_limit.as_ref().unwrap();
        assert_eq!((limit.requests_per_unit, limit.unit()), (8, Unit::Year));
        let unknown = own(7, RateLimitUnit::Unknown);
        let status = service.call(request("edge", &[unknown])).unwrap_err();
        assert_eq!(status.message(), "`descriptors.limit.unit` is not known");
    });
}

const TWO: &str = r#"
    [[limit]]
    name = "few"
    domain = "edge"
    descriptor = [{ key = "user" }]
    rate = "1/h"
    [[limit]]
    name = "many"
    domain = "edge"
    descriptor = [{ key = "ip" }]
    rate = "9/h"
"#;

#[test]
fn r_atomic_over_the_limit_charges_none() {
    on_every_store(TWO, |service| {
        let both = [ip("a"), of(&[("user", "ann")])];
        let first = service.ask(&both);
        assert_eq!(shown(&first)[0].2, 8);
        for _ in 0..3 {
            let over = service.ask(&both);
            assert_eq!(over.overall_code(), Code::OverLimit);
            let statuses = shown(&over);
            assert_eq!(statuses[0].0, Code::Ok);
            assert_eq!(statuses[1], (Code::OverLimit, "few".to_owned(), 0));
        }
        assert_eq!(shown(&service.ask(&[ip("a")]))[0].2, 7);
    });
}

#[test]
fn r_atomic_count_denied_charges_those_that_admit() {
    let policy = format!("{TWO}\n[rls]\ncount_denied = true\n");
    on_every_store(&policy, |service| {
        let both = [ip("a"), of(&[("user", "ann")])];
        let left = |service: &mut Service| {
            let answer = service.ask(&both);
            (answer.overall_code(), shown(&answer)[0].2)
        };
        assert_eq!(left(service), (Code::Ok, 8));
        assert_eq!(left(service), (Code::OverLimit, 7));
        assert_eq!(left(service), (Code::OverLimit, 6));
        assert_eq!(shown(&service.ask(&[ip("a")]))[0].2, 5);
    });
}

#[test]
fn r_status_one_for_each_descriptor_in_order() {
    let policy = r#"
        [[limit]]
        name = "quarter"
        domain = "edge"
        descriptor = [{ key = "q" }]
        rate = "150/15min"
        [[limit]]
        name = "week"
        domain = "edge"
        descriptor = [{ key = "w" }]
        rate = "70/week"
        [[limit]]
        name = "month"
        domain = "edge"
        descriptor = [{ key = "m" }]
        rate = "31/month"
        [[limit]]
        name = "thirty"
        domain = "edge"
        descriptor = [{ key = "t" }]
        rate = "300/30day"
        [[limit]]
        name = "instant"
        domain = "edge"
        descriptor = [{ key = "i" }]
        rate = "5/100ms"
        [rls]
        metadata = true
    "#;
    on_every_store(policy, |service| {
        let keys = ["q", "none", "w", "m", "t", "i"];
        let descriptors: Vec<RateLimitDescriptor> =
            keys.iter().map(|key| of(&[(*key, "v")])).collect();
        let answer = service.ask(&descriptors);
        let limits: Vec<String> = answer
            .statuses
            .iter()
            .map(|status| match &status.current_limit {
                Some(limit) => {
                    let (amount, unit) = (limit.requests_per_unit, limit.unit().as_str_name());
                    format!("{} {amount}/{unit} {}", limit.name, status.limit_remaining)
                }
                None => "-".to_owned(),
            })
            .collect();
        assert_eq!(
            limits,
            [
                "quarter 10/MINUTE 149",
                "-",
                "week 70/WEEK 69",
                "month 31/MONTH 30",
                "thirty 70/WEEK 299",
                "instant 50/SECOND 4",
            ]
        );
        let reset = answer.statuses[0].duration_until_reset.unwrap();
        assert!((890..=915).contains(&reset.seconds), "{reset:?}");
        // The exact figure is in the metadata.
        let said = format!("{:?}", answer.dynamic_metadata);
        assert!(
            said.contains("\"900s\"") && said.contains("150.0"),
            "{said}"
        );
    });
}

#[test]
fn r_headers_are_of_the_limit_that_denied_or_is_closest() {
    let policy = format!("{TWO}\n[server]\nheaders = [\"x-ratelimit\"]\n");
    on_every_store(&policy, |service| {
        let both = [ip("a"), of(&[("user", "ann")])];
        let first = service.ask(&both);
        assert_eq!(header(&first, "X-RateLimit-Limit"), Some("1"));
        assert_eq!(header(&first, "X-RateLimit-Remaining"), Some("0"));
        assert_eq!(header(&first, "Retry-After"), None);
        assert_eq!(header(&first, "RateLimit"), None);
        assert!(first.raw_body.is_empty());
        let over = service.ask(&both);
        assert_eq!(header(&over, "X-RateLimit-Limit"), Some("1"));
        let wait: u64 = header(&over, "Retry-After").unwrap().parse().unwrap();
        assert!((3_500..=3_600).contains(&wait), "{wait}");
        assert_eq!(header(&over, "Content-Type"), Some("application/json"));
        let body: serde_json::Value = serde_json::from_slice(&over.raw_body).unwrap();
        assert_eq!(body["error"], "rate_limit_exceeded");
        assert_eq!(body["violated-policies"], serde_json::json!(["few"]));
    });
}

#[test]
fn r_meta_is_there_only_if_it_is_wanted_and_shows_no_value() {
    on_every_store(PER_IP, |service| {
        assert_eq!(service.ask(&[ip("a")]).dynamic_metadata, None);
    });
    let policy = format!("{PER_IP}\n[rls]\nmetadata = true\n");
    on_every_store(&policy, |service| {
        let answers: Vec<_> = (0..6).map(|_| service.ask(&[ip("canary")])).collect();
        let [first, .., last] = answers.as_slice() else {
            panic!("six answers")
        };
        assert_eq!(text_of(first, "mode"), "normal");
        assert_eq!(text_of(first, "policy_revision"), "1");
        assert_eq!(text_of(first, "status"), "200");
        assert_eq!(text_of(last, "rule"), "R-DOMAIN");
        assert_eq!(text_of(last, "status"), "429");
        let said = format!("{answers:?}");
        assert!(said.contains("per-ip") && !said.contains("canary"));
    });
}

#[test]
fn r_fail_a_store_that_is_gone_is_answered_by_each_limits_rule() {
    let policy = r#"
        [policy]
        defaults = false
        [rls]
        metadata = true
        [[limit]]
        name = "counted"
        domain = "edge"
        descriptor = [{ key = "ip" }]
        rate = "5/h"
        [[limit]]
        name = "shut"
        domain = "edge"
        descriptor = [{ key = "admin" }]
        rate = "5/h"
        failure = "closed"
        [[limit]]
        name = "open"
        domain = "edge"
        descriptor = [{ key = "user" }]
        rate = "2/h"
        failure = "open-bounded"
        [[limit]]
        name = "wide"
        domain = "edge"
        descriptor = [{ key = "client" }]
        rate = "1000/h"
        [[limit]]
        name = "everybody"
        domain = "edge"
        descriptor = [{ key = "all", value = "*" }]
        rate = "100/h"
        share = true
    "#;
    let mut service = Service::on_redis(policy);
    assert_eq!(service.code(&[ip("a")]), Code::Ok);
    service.redis.as_mut().unwrap().kill();
    let mut ask = |descriptor: RateLimitDescriptor| {
        let answer = service.ask(&[descriptor]);
        let words = ["mode", "status"].map(|field| text_of(&answer, field));
        (answer.overall_code(), words.join(" "))
    };
    // Never laxer than the limit itself, of which one was used before.
    for _ in 0..4 {
        assert_eq!(ask(ip("a")), (Code::Ok, "degraded 200".to_owned()));
    }
    assert_eq!(ask(ip("a")), (Code::OverLimit, "degraded 429".to_owned()));
    let shut = ask(of(&[("admin", "x")]));
    assert_eq!(shut, (Code::OverLimit, "fail_closed 503".to_owned()));
    for _ in 0..2 {
        let open = ask(of(&[("user", "x")]));
        assert_eq!(open, (Code::Ok, "fail_open 200".to_owned()));
    }
    let over = ask(of(&[("user", "x")]));
    assert_eq!(over, (Code::OverLimit, "fail_open 429".to_owned()));
    // Who has a bucket of their own has the cap of strangers, all together have not.
    let mut admitted = |descriptor: &RateLimitDescriptor| {
        let codes = (0..60).map(|_| ask(descriptor.clone()).0);
        codes.filter(|code| *code == Code::Ok).count()
    };
    assert_eq!(admitted(&of(&[("client", "x")])), 50);
    assert_eq!(admitted(&of(&[("all", "x")])), 60);
}
