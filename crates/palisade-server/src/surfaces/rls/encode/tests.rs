//! The response written field by field is the same as the encoded messages.

use std::sync::Arc;

use palisade_core::decision::{ErrorCode, LimitReading, Outcome};
use palisade_core::limit::FIGURE_MAX;
use palisade_core::policy::QuotaUnit;
use palisade_core::rule::Rule;
use palisade_core::{Digest, Micros, PolicySet};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use prost_types::Duration;

use super::super::messages::{Header, Limit, Response, Status};
use super::*;

/// The response to a call, built as a message.
fn made(answer: &DescriptorAnswer, request_id: &str) -> Response {
    let decision = &answer.decision;
    let settings = &answer.policy.settings;
    let body = body(decision, &settings.urls, request_id);
    let body = body.map(|body| serde_json::to_vec(&body).unwrap());
    let of_body = body.iter().flat_map(|_| {
        [
            ("Content-Type", "application/json".to_owned()),
            ("X-Request-Id", request_id.to_owned()),
        ]
    });
    let headers = answer.headers().into_iter().chain(of_body);
    let header = |(key, value): (&str, String)| Header {
        key: key.to_owned(),
        value,
    };
    Response {
        overall_code: overall(decision) as i32,
        statuses: answer.statuses.iter().map(status_of).collect(),
        response_headers_to_add: headers.map(header).collect(),
        request_headers_to_add: Vec::new(),
        raw_body: body.unwrap_or_default(),
        dynamic_metadata: settings.rls.metadata.then(|| metadata(answer)),
    }
}

fn status_of(found: &DescriptorStatus) -> Status {
    let code = match found.verdict {
        DescriptorVerdict::Admitted
        | DescriptorVerdict::WouldDeny
        | DescriptorVerdict::NotRefunded => Code::Ok,
        DescriptorVerdict::Denied => Code::OverLimit,
    };
    let current_limit = found.limit.as_ref().zip(found.figure);
    Status {
        code: code as i32,
        current_limit: current_limit.map(|(name, figure)| {
            let (requests_per_unit, unit) = in_units(figure);
            Limit {
                requests_per_unit,
                unit: unit as i32,
                name: name.as_ref().to_owned(),
            }
        }),
        limit_remaining: in_field(found.remaining),
        duration_until_reset: found.reset_us.map(|us| Duration {
            seconds: i64::try_from(us / SECOND).unwrap(),
            nanos: i32::try_from(us % SECOND * 1_000).unwrap(),
        }),
    }
}

fn any_window() -> impl Strategy<Value = Window> {
    prop_oneof![
        (1..100 * DAY).prop_map(Window::Span),
        Just(Window::Month),
        Just(Window::Year),
    ]
}

fn any_status() -> impl Strategy<Value = DescriptorStatus> {
    let verdict = prop_oneof![
        Just(DescriptorVerdict::Admitted),
        Just(DescriptorVerdict::Denied),
        Just(DescriptorVerdict::WouldDeny),
        Just(DescriptorVerdict::NotRefunded),
    ];
    let figure =
        (0..=FIGURE_MAX, any_window()).prop_map(|(amount, window)| Figure { amount, window });
    (
        option::of("[a-z-]{1,150}"),
        verdict,
        option::of(figure),
        prop_oneof![any::<u32>().prop_map(u64::from), 0..=FIGURE_MAX],
        option::of(any::<u64>()),
    )
        .prop_map(
            |(limit, verdict, figure, remaining, reset_us)| DescriptorStatus {
                limit: limit.map(Arc::from),
                verdict,
                figure,
                remaining,
                reset_us,
                used: reset_us,
                retry_us: None,
            },
        )
}

prop_compose! {
    fn any_reading()(
        name in "[a-z-]{1,150}",
        limit in any::<u64>(),
        remaining in any::<u64>(),
        reset in any::<u64>(),
        window_seconds in any::<u64>(),
        shadow in any::<bool>(),
    ) -> LimitReading {
        let name: Arc<str> = name.into();
        LimitReading {
            class: Arc::clone(&name),
            name,
            scope: "descriptor",
            limit,
            remaining,
            reset,
            retry_after: None,
            window_seconds,
            unit: QuotaUnit::Requests,
            partition: Digest(7),
            shadow,
        }
    }
}

prop_compose! {
    fn any_answer()(
        statuses in vec(any_status(), 0..4),
        limits in vec(any_reading(), 0..4),
        is_denied in any::<bool>(),
        metadata in any::<bool>(),
        org in any::<bool>(),
    ) -> DescriptorAnswer {
        let at = Micros(1_735_934_355 * SECOND);
        let code = ErrorCode::RateLimitExceeded;
        let mut decision = match is_denied {
            true => Decision::refuse(at, Outcome::Deny, Rule::L_IP, code),
            false => Decision::allow(at),
        };
        decision.limits = limits.into();
        let mut policy = PolicySet::empty();
        policy.settings.rls.metadata = metadata;
        policy.settings.headers.org = org;
        DescriptorAnswer {
            decision,
            statuses,
            policy: Arc::new(policy),
            candidate: None,
        }
    }
}

proptest! {
    #[test]
    fn wire_a_response_is_written_as_its_message(answer in any_answer()) {
        let framed = framed(&answer, "the-request");
        prop_assert_eq!(framed, grpc::framed(&made(&answer, "the-request")));
    }
}
