//! What calls cost the store: leases, remembered denials, and calls that travel together,
//! as Redis itself counts them.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;

use crate::redis_server::{RedisServer, eventually};
use crate::service::{Service, header, of, shown, with_hits};

const LEASED: &str = r#"
    [policy]
    defaults = false
    [[limit]]
    name = "leased"
    domain = "edge"
    descriptor = [{ key = "tenant" }]
    rate = "1000/h"
    accuracy = "leased"
    [[limit]]
    name = "one"
    domain = "edge"
    descriptor = [{ key = "ip" }]
    rate = "1/h"
    [[limit]]
    name = "wide"
    domain = "edge"
    descriptor = [{ key = "user" }]
    rate = "100000/h"
"#;

/// Scripts that Redis has run since this was last asked. A node reads its registries by
/// scripts too, a few times a second.
fn scripts_run(redis: &RedisServer) -> u64 {
    let said = redis.says(&["INFO", "commandstats"]);
    redis.says(&["CONFIG", "RESETSTAT"]);
    let of_command = |name: &str| {
        let line = said.split_once(&format!("cmdstat_{name}:calls="));
        let digits = line.map(|(_, rest)| rest.split(',').next().unwrap());
        digits.map_or(0, |digits| digits.parse::<u64>().unwrap())
    };
    of_command("evalsha") + of_command("eval")
}

fn admitted(codes: &[Code]) -> usize {
    codes.iter().filter(|code| **code == Code::Ok).count()
}

#[test]
fn r_atomic_a_leased_limit_spares_the_store_and_two_nodes_admit_no_more_than_it() {
    let mut first = Service::on_redis(LEASED);
    let mut second = Service::beside(LEASED, first.redis());
    let tenant = [of(&[("tenant", "acme")])];
    let many = vec![tenant.to_vec(); 150];
    scripts_run(first.redis());
    let mut codes = Vec::new();
    for _ in 0..4 {
        codes.extend(first.codes_at_once(&many));
        codes.extend(second.codes_at_once(&many));
    }
    let asked = scripts_run(first.redis());
    let admitted = admitted(&codes);
    assert!(admitted <= 1000, "{admitted} of 1000");
    // What the other node holds at the end goes unused.
    assert!(admitted > 900, "{admitted} of 1000");
    assert!(asked < 400, "{asked} scripts for {} calls", codes.len());
}

#[test]
fn r_atomic_what_a_call_took_from_a_lease_goes_back_when_it_is_denied() {
    let mut service = Service::on_redis(LEASED);
    let both = [of(&[("tenant", "acme")]), of(&[("ip", "a")])];
    assert_eq!(service.code(&both), Code::Ok);
    for _ in 0..50 {
        assert_eq!(service.code(&both), Code::OverLimit);
    }
    let look = [with_hits(&[("tenant", "acme")], 0)];
    eventually("all but one are free again", || {
        shown(&service.ask(&look))[0].2 == 999
    });
}

#[test]
fn r_headers_a_denial_that_is_known_is_repeated_without_the_store() {
    let mut service = Service::on_redis(LEASED);
    let one = [of(&[("ip", "a")])];
    assert_eq!(service.code(&one), Code::Ok);
    assert_eq!(service.code(&one), Code::OverLimit);
    scripts_run(service.redis());
    let both = [of(&[("user", "a")]), of(&[("ip", "a")])];
    for _ in 0..200 {
        let answer = service.ask(&both);
        assert_eq!(answer.overall_code(), Code::OverLimit);
        // The first was never read: nothing of it is known to be used.
        let of_each = [
            (Code::Ok, "wide".to_owned(), 100_000),
            (Code::OverLimit, "one".to_owned(), 0),
        ];
        assert_eq!(shown(&answer), of_each);
        let wait: u32 = header(&answer, "retry-after").unwrap().parse().unwrap();
        assert!((3000..=3600).contains(&wait), "{wait}");
    }
    let asked = scripts_run(service.redis());
    assert!(asked < 100, "{asked} scripts for 200 known denials");
    let user = shown(&service.ask(&both[..1]));
    assert_eq!(user[0].2, 99_999, "what was denied charged nobody");
}

#[test]
fn r_status_a_known_denial_is_repeated_with_what_was_left_of_the_others() {
    let mut service = Service::on_redis(LEASED);
    let both = [of(&[("user", "a")]), of(&[("ip", "a")])];
    assert_eq!(service.code(&both), Code::Ok);
    let told = |service: &mut Service| {
        let answer = service.ask(&both);
        let limits = answer.statuses.iter().map(|status| {
            let limit = status.current_limit.as_ref().unwrap();
            let reset = status.duration_until_reset.as_ref().unwrap().seconds;
            assert!((3_000..=3_700).contains(&reset), "{reset}");
            (limit.requests_per_unit, limit.unit())
        });
        (limits.collect::<Vec<_>>(), shown(&answer))
    };
    let by_the_store = told(&mut service);
    let of_each = [
        (Code::Ok, "wide".to_owned(), 99_999),
        (Code::OverLimit, "one".to_owned(), 0),
    ];
    assert_eq!(by_the_store.1, of_each);
    scripts_run(service.redis());
    for _ in 0..200 {
        assert_eq!(told(&mut service), by_the_store);
    }
    let asked = scripts_run(service.redis());
    assert!(asked < 100, "{asked} scripts for 200 known denials");
}

#[test]
fn r_atomic_a_call_of_many_descriptors_is_one_script() {
    const CALLS: u64 = 100;
    let mut service = Service::on_redis(LEASED);
    let many: Vec<RateLimitDescriptor> = (0..64)
        .map(|n| of(&[("user", &format!("user-{n}"))]))
        .collect();
    assert_eq!(service.code(&many), Code::Ok);
    scripts_run(service.redis());
    for _ in 0..CALLS {
        assert_eq!(service.code(&many), Code::Ok);
    }
    let asked = scripts_run(service.redis());
    let bound = CALLS + CALLS / 2;
    assert!((CALLS..bound).contains(&asked), "{asked} for {CALLS} calls");
    let look = [with_hits(&[("user", "user-63")], 0)];
    assert_eq!(shown(&service.ask(&look))[0].2, 100_000 - 101);
}

#[test]
fn r_atomic_calls_at_once_travel_together() {
    let mut service = Service::on_redis(LEASED);
    // The connection stands, and the script is known.
    assert_eq!(service.code(&[of(&[("user", "first")])]), Code::Ok);
    let calls: Vec<Vec<RateLimitDescriptor>> = (0..240)
        .map(|n| vec![of(&[("user", &format!("user-{}", n % 40))])])
        .collect();
    scripts_run(service.redis());
    service.redis().pause(400);
    let codes = service.codes_at_once(&calls);
    assert_eq!(admitted(&codes), calls.len());
    let asked = scripts_run(service.redis());
    assert!(asked < 100, "{asked} scripts for {} calls", calls.len());
    let look = [with_hits(&[("user", "user-7")], 0)];
    assert_eq!(shown(&service.ask(&look))[0].2, 99_994, "each is counted");
}
