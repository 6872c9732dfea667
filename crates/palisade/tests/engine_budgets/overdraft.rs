//! B-OVERDRAFT: charged in full while anything is left, and reports of work that is done.

use std::num::NonZeroU64;

use palisade::core::facts::{Descriptor, DescriptorFacts, Hits};
use palisade::engine::{DescriptorAnswer, DescriptorVerdict};

use super::*;

/// Ten requests, and a thousand tokens that may be overdrawn, a minute for each organisation.
fn overdrawn(overdraft: &str) -> String {
    format!(
        "[[limit]]\nname = \"requests-per-org\"\nby = [\"org\"]\nrate = \"3/min\"\n\
         [[limit]]\nname = \"tokens-per-org\"\nby = [\"org\"]\nrate = \"1000/min\"\n\
         unit = \"tokens\"\noverdraft = {overdraft}\n"
    )
}

impl Nodes {
    async fn decisions(&self, costs: &[(&str, u64)], count: usize) -> Vec<Value> {
        let mut decisions = Vec::new();
        for node in 0..count {
            let answer = self.check(node % self.engines.len(), costs).await;
            decisions.push(answer["decision"].clone());
        }
        decisions
    }

    /// A report of work that is done.
    async fn report(&self, node: usize, costs: &[(&str, u64)]) -> Value {
        let facts = RequestFacts {
            report: true,
            receipt: true,
            ..asking(costs)
        };
        render(&self.engines[node].check(&facts).await)
    }

    /// What is used of a limit in `unit`.
    async fn used(&self, limit: &str, unit: &str) -> u64 {
        let facts = asking(&[(unit, 1)]);
        let sought = self.engines[0].with_policy(|policy| policy.limit(limit).unwrap().def.clone());
        let capacity = sought.spec.capacity();
        let found = self.engines[0].peek(&facts).await;
        let mut limits = found.decision.limits.iter();
        capacity - limits.find(|one| &*one.name == limit).unwrap().remaining
    }

    fn overdraft(&self) -> Vec<(String, u64)> {
        let engines = self.engines.iter();
        let counted = engines.flat_map(|engine| engine.figures().reservations.overdraft);
        counted
            .map(|(unit, over)| (unit.to_string(), over))
            .collect()
    }
}

#[tokio::test]
async fn b_overdraft_the_whole_cost_is_charged_while_anything_is_left() {
    let nodes = Nodes::new(2, &overdrawn("true"));
    let asked = [("requests", 1), ("tokens", 999)];
    assert_eq!(nodes.decisions(&asked, 1).await, ["allow"]);
    // Above what is left, and above the limit: no error of L-COST.
    let dear = [("requests", 1), ("tokens", 5_000)];
    assert_eq!(nodes.decisions(&dear, 3).await, ["allow", "deny", "deny"]);
    assert_eq!(
        nodes.used("requests-per-org", "requests").await,
        2,
        "L-ATOMIC"
    );
    assert_eq!(nodes.overdraft(), [("tokens".to_owned(), 4_999)]);
    let denied = nodes.check(1, &[("tokens", 1)]).await;
    assert_eq!(denied["limits"][0]["remaining"], 0);
    let wait = denied["retry_after"].as_u64().unwrap();
    assert!((1..=62).contains(&wait), "{wait}");
    nodes.sleep(wait * SECOND);
    assert_eq!(
        nodes.decisions(&[("tokens", 1)], 2).await,
        ["allow", "allow"]
    );
}

#[tokio::test]
async fn b_overdraft_the_largest_cost_is_charged_as_a_whole() {
    let nodes = Nodes::new(1, &overdrawn("true"));
    let asked = [("tokens", 1 << 47)];
    assert_eq!(nodes.decisions(&asked, 2).await, ["allow", "deny"]);
    let over = (1 << 47) - 1_000;
    assert_eq!(nodes.overdraft(), [("tokens".to_owned(), over)]);
}

#[tokio::test]
async fn b_overdraft_a_cost_of_zero_is_refused_when_nothing_is_left() {
    let nodes = Nodes::new(2, &overdrawn("true"));
    let look = [("requests", 1), ("tokens", 0)];
    assert_eq!(nodes.decisions(&look, 1).await, ["allow"]);
    assert_eq!(nodes.used("tokens-per-org", "tokens").await, 0);
    assert_eq!(
        nodes.decisions(&[("tokens", 1_000)], 2).await,
        ["allow", "deny"]
    );
    assert_eq!(nodes.decisions(&look, 2).await, ["deny", "deny"]);
    assert_eq!(
        nodes.used("requests-per-org", "requests").await,
        1,
        "L-ATOMIC"
    );
}

#[tokio::test]
async fn b_overdraft_always_charges_what_another_limit_or_itself_refuses() {
    for overdraft in ["true", "\"always\""] {
        let nodes = Nodes::new(2, &overdrawn(overdraft));
        let asked = [("requests", 1), ("tokens", 100)];
        let decisions = nodes.decisions(&asked, 5).await;
        assert_eq!(decisions, ["allow", "allow", "allow", "deny", "deny"]);
        let expected = if overdraft == "true" { 300 } else { 500 };
        let used = nodes.used("tokens-per-org", "tokens").await;
        assert_eq!(used, expected, "{overdraft}: the requests are used up");
        assert_eq!(nodes.used("requests-per-org", "requests").await, 3);
        let all = [("tokens", 2_000)];
        assert_eq!(
            nodes.decisions(&all, 3).await,
            ["allow", "deny", "deny"],
            "{overdraft}"
        );
        let over: u64 = nodes.overdraft().iter().map(|(_, over)| over).sum();
        let expected = if overdraft == "true" { 1_300 } else { 5_500 };
        assert_eq!(over, expected, "{overdraft}");
    }
}

#[tokio::test]
async fn b_overdraft_what_a_refused_request_left_is_shown() {
    let nodes = Nodes::new(1, &overdrawn("\"always\""));
    let asked = [("requests", 1), ("tokens", 100)];
    nodes.decisions(&asked, 3).await;
    nodes.sleep(SECOND);
    let denied = nodes.check(0, &asked).await;
    let limits = denied["limits"].as_array().unwrap();
    let tokens = limits.iter().find(|one| one["name"] == "tokens-per-org");
    assert_eq!(tokens.unwrap()["remaining"], 600, "{denied}");
}

#[tokio::test]
async fn b_overdraft_a_reservation_that_is_refused_has_used_nothing() {
    let nodes = Nodes::new(1, &overdrawn("\"always\""));
    nodes.decisions(&[("requests", 1)], 3).await;
    let asked = [("requests", 1), ("tokens", 100)];
    assert!(nodes.reserve(0, &asked).await.held.is_none());
    assert_eq!(nodes.used("tokens-per-org", "tokens").await, 0);
}

#[tokio::test]
async fn b_overdraft_a_reservation_below_zero_is_settled_by_what_was_used() {
    let nodes = Nodes::new(2, &overdrawn("true"));
    let held = nodes.held(0, &[("tokens", 3_000)]).await;
    assert_eq!(nodes.decisions(&[("tokens", 1)], 1).await, ["deny"]);
    nodes.settle(1, &held.token, &[("tokens", 400)]).await;
    nodes.sleep(SECOND / 5);
    assert_eq!(nodes.used("tokens-per-org", "tokens").await, 400);
    // One that asked only whether anything is left can be extended.
    let held = nodes.held(0, &[("requests", 1), ("tokens", 0)]).await;
    let extended = nodes.extend(1, &held.token, &[("tokens", 50)], None).await;
    assert!(matches!(extended, ExtendAnswer::Held(_)), "{extended:?}");
    assert_eq!(nodes.used("tokens-per-org", "tokens").await, 450);
    nodes.settle(1, &held.token, &[("tokens", 20)]).await;
    assert_eq!(nodes.used("tokens-per-org", "tokens").await, 420);
}

#[tokio::test]
async fn b_overdraft_a_report_charges_every_limit_even_if_it_is_refused() {
    let nodes = Nodes::new(2, POLICY);
    let done = [("requests", 4), ("tokens", 9_000)];
    for (node, decision) in [(0, "allow"), (1, "allow"), (0, "deny"), (1, "deny")] {
        let answer = nodes.report(node, &done).await;
        assert_eq!(answer["decision"], decision, "{answer}");
    }
    // Four times four requests: those that did not fit leave with the window, too.
    nodes.sleep(SECOND);
    assert_eq!(nodes.check(0, &[]).await["decision"], "deny");
    let over: u64 = nodes
        .overdraft()
        .iter()
        .filter(|(unit, _)| unit == "requests")
        .map(|(_, over)| over)
        .sum();
    assert_eq!(over, 6);
    nodes.sleep(2 * MINUTE);
    let above = nodes
        .report(0, &[("requests", 1), ("tokens", 50_000)])
        .await;
    assert_eq!(above["decision"], "allow", "no error of L-COST: {above}");
}

#[tokio::test]
async fn b_overdraft_a_report_that_was_refused_can_be_given_back() {
    let nodes = Nodes::new(2, POLICY);
    nodes.report(0, &[("requests", 10), ("tokens", 1)]).await;
    nodes.sleep(SECOND);
    let refused = nodes.report(1, &[("requests", 1), ("tokens", 700)]).await;
    assert_eq!(refused["decision"], "deny");
    assert_eq!(nodes.used("tokens-per-org", "tokens").await, 701);
    let receipt = refused["receipt"].as_str().unwrap();
    nodes.engines[0].refund(receipt).await.unwrap();
    assert_eq!(nodes.used("tokens-per-org", "tokens").await, 1);
    nodes.sleep(MINUTE - SECOND);
    assert_eq!(nodes.used("requests-per-org", "requests").await, 0);
}

#[tokio::test]
async fn b_overdraft_leased_and_local_limits_are_reported_to_where_they_are_counted() {
    for accuracy in ["leased", "local"] {
        let text = format!("{POLICY}accuracy = \"{accuracy}\"\n");
        let nodes = Nodes::new(1, &text);
        nodes.decisions(&[("tokens", 10)], 5).await;
        let answer = nodes.report(0, &[("tokens", 20_000)]).await;
        assert_eq!(answer["decision"], "allow", "{accuracy}: {answer}");
        let answer = nodes.report(0, &[("tokens", 20_000)]).await;
        assert_eq!(answer["decision"], "deny", "{accuracy}: {answer}");
        assert_eq!(nodes.used("tokens-per-org", "tokens").await, 10_000);
        nodes.sleep(MINUTE + 2 * SECOND);
        let answer = nodes.check(0, &[("tokens", 1)]).await;
        assert_eq!(answer["decision"], "allow", "{accuracy}: {answer}");
    }
}

#[tokio::test]
async fn b_overdraft_a_peek_charges_nothing() {
    let nodes = Nodes::new(1, &overdrawn("\"always\""));
    nodes.decisions(&[("tokens", 2_000)], 1).await;
    let before = nodes.overdraft();
    let facts = RequestFacts {
        report: true,
        ..asking(&[("requests", 1), ("tokens", 5)])
    };
    let answer = nodes.engines[0].peek(&facts).await;
    assert!(!answer.decision.is_allowed());
    assert_eq!(nodes.overdraft(), before);
    assert_eq!(nodes.used("requests-per-org", "requests").await, 0);
}

#[tokio::test]
async fn b_bound_a_debt_of_a_token_bucket_is_worked_off_in_a_window() {
    let bucket = "[[limit]]\nname = \"tokens\"\nby = [\"org\"]\nrate = \"60/min\"\nburst = 6\n\
                  unit = \"tokens\"\noverdraft = true\n";
    let nodes = Nodes::new(2, bucket);
    let asked = [("tokens", 10_000)];
    assert_eq!(nodes.decisions(&asked, 2).await, ["allow", "deny"]);
    // A window's rate is owed, whatever was asked for: then the burst is free again.
    nodes.sleep(MINUTE);
    assert_eq!(nodes.decisions(&[("tokens", 1)], 1).await, ["deny"]);
    nodes.sleep(SECOND);
    assert_eq!(nodes.decisions(&[("tokens", 1)], 1).await, ["allow"]);
}

#[tokio::test]
async fn b_bound_a_surplus_on_a_small_burst_stays_a_debt() {
    let bucket = "[[limit]]\nname = \"tokens\"\nby = [\"org\"]\nrate = \"60/min\"\nburst = 6\n\
                  unit = \"tokens\"\n";
    let nodes = Nodes::new(2, bucket);
    let held = nodes.held(0, &[("tokens", 1)]).await;
    nodes.settle(1, &held.token, &[("tokens", 31)]).await;
    // The wait for it is longer than a burst takes to refill: no step of the clock (F-CLOCK).
    assert_eq!(nodes.decisions(&[("tokens", 1)], 2).await, ["deny", "deny"]);
    nodes.sleep(25 * SECOND);
    assert_eq!(nodes.decisions(&[("tokens", 1)], 1).await, ["deny"]);
    nodes.sleep(SECOND);
    assert_eq!(nodes.decisions(&[("tokens", 1)], 1).await, ["allow"]);
}

// ---------------------------------------------------------------- Envoy

const EDGE: &str = r#"
[[limit]]
name = "calls"
domain = "edge"
descriptor = [{ key = "calls" }]
rate = "2/min"

[[limit]]
name = "tokens"
domain = "edge"
descriptor = [{ key = "tokens" }]
rate = "100/min"
unit = "tokens"
overdraft = true

[[limit]]
name = "reported"
domain = "edge"
descriptor = [{ key = "reported" }]
rate = "100/min"
unit = "tokens"
overdraft = "always"
"#;

/// A call with these hits of each descriptor.
async fn call(engine: &Engine, hits: &[(&str, u32)]) -> DescriptorAnswer {
    let descriptors = hits.iter().map(|(key, hits)| Descriptor {
        hits: Some(NonZeroU64::new(u64::from(*hits)).map_or(Hits::Look, Hits::Charge)),
        ..Descriptor::new([(*key, "x")])
    });
    let facts = DescriptorFacts::new("edge", descriptors.collect()).unwrap();
    engine.check_descriptors(&facts).await
}

fn used(answer: &DescriptorAnswer) -> Vec<Option<u64>> {
    answer.statuses.iter().map(|status| status.used).collect()
}

#[tokio::test]
async fn b_overdraft_a_look_of_envoy_is_refused_when_nothing_is_left() {
    let nodes = Nodes::new(2, EDGE);
    let [one, other] = &nodes.engines[..] else {
        panic!()
    };
    assert!(call(one, &[("tokens", 0)]).await.decision.is_allowed());
    assert!(call(one, &[("tokens", 99)]).await.decision.is_allowed());
    assert!(call(other, &[("tokens", 0)]).await.decision.is_allowed());
    assert!(call(other, &[("tokens", 500)]).await.decision.is_allowed());
    for engine in [one, other] {
        let refused = call(engine, &[("tokens", 0)]).await;
        assert!(!refused.decision.is_allowed());
        assert_eq!(refused.statuses[0].verdict, DescriptorVerdict::Denied);
    }
    assert_eq!(nodes.overdraft(), [("tokens".to_owned(), 499)]);
}

#[tokio::test]
async fn b_overdraft_a_report_of_envoy_is_charged_whatever_refuses_the_call() {
    for rls in ["", "[rls]\ncount_denied = true\n"] {
        let nodes = Nodes::new(2, &format!("{rls}{EDGE}"));
        let [one, other] = &nodes.engines[..] else {
            panic!()
        };
        let hits = [("calls", 1), ("tokens", 10), ("reported", 10)];
        assert!(call(one, &hits).await.decision.is_allowed());
        assert!(call(other, &hits).await.decision.is_allowed());
        // The calls are used up.
        let refused = call(one, &hits).await;
        assert!(!refused.decision.is_allowed());
        let verdicts: Vec<DescriptorVerdict> =
            refused.statuses.iter().map(|one| one.verdict).collect();
        assert_eq!(
            verdicts,
            [
                DescriptorVerdict::Denied,
                DescriptorVerdict::Admitted,
                DescriptorVerdict::Admitted
            ]
        );
        let tokens = if rls.is_empty() { 20 } else { 30 };
        assert_eq!(used(&refused), [Some(2), Some(tokens), Some(30)], "{rls}");
        // Its own refusal, of a call with one descriptor.
        for expected in [130, 230] {
            let answer = call(other, &[("reported", 100)]).await;
            assert_eq!(answer.decision.is_allowed(), expected == 130);
            assert_eq!(used(&answer), [Some(expected)], "{rls}");
        }
        // A look beside it refuses the call, and nothing is left of the other limit either.
        let both = call(one, &[("calls", 0), ("reported", 7)]).await;
        assert!(!both.decision.is_allowed());
        assert_eq!(used(&both)[1], Some(237), "{rls}");
    }
}
