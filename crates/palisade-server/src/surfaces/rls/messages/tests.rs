//! Compares our messages with those of a crate generated from Envoy's own files, byte for byte and
//! for arbitrary bytes.

use std::collections::{BTreeMap, HashMap};

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor as theirs_of;
use envoy_types::pb::envoy::service::ratelimit::v3 as theirs;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response as answers;
use envoy_types::pb::google::protobuf as google;
use proptest::collection::vec;
use proptest::prelude::*;
use prost_types::value::Kind;

use super::super::decode;
use super::*;

fn their_request() -> theirs::RateLimitRequest {
    let entry = |key: &str, value: &str| theirs_of::Entry {
        key: key.to_owned(),
        value: value.to_owned(),
    };
    let plain = RateLimitDescriptor {
        entries: vec![entry("path", "/a"), entry("ip", "192.0.2.1")],
        ..RateLimitDescriptor::default()
    };
    let full = RateLimitDescriptor {
        limit: Some(theirs_of::RateLimitOverride {
            requests_per_unit: 300,
            unit: Unit::Hour as i32,
        }),
        hits_addend: Some(google::UInt64Value { value: 70_000 }),
        is_negative_hits: true,
        ..plain.clone()
    };
    let look = RateLimitDescriptor {
        hits_addend: Some(google::UInt64Value { value: 0 }),
        ..plain.clone()
    };
    theirs::RateLimitRequest {
        domain: "edge".to_owned(),
        descriptors: vec![plain, full, look],
        hits_addend: 7,
    }
}

#[test]
fn wire_a_request_of_envoys_is_read_whole_and_written_alike() {
    let bytes = their_request().encode_to_vec();
    let ours = Request::decode(bytes.as_slice()).unwrap();
    assert_eq!(ours.encode_to_vec(), bytes);
    assert_eq!((ours.domain.as_str(), ours.hits_addend), ("edge", 7));
    assert_eq!(ours.descriptors[0].entries[1].value, "192.0.2.1");
    assert_eq!(ours.descriptors[0].hits_addend, None);
    assert_eq!(ours.descriptors[1].hits_addend, Some(70_000));
    assert!(ours.descriptors[1].is_negative_hits);
    assert_eq!(ours.descriptors[2].hits_addend, Some(0));
}

/// One answer as our message and as that of the generated crate.
fn response() -> (Response, theirs::RateLimitResponse) {
    let header = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let (key, value) = header("X-RateLimit-Limit", "5");
    let ours = Response {
        overall_code: Code::OverLimit as i32,
        statuses: vec![Status {
            code: Code::OverLimit as i32,
            current_limit: Some(Limit {
                requests_per_unit: 5,
                unit: Unit::Week as i32,
                name: "per-ip".to_owned(),
            }),
            limit_remaining: 4,
            duration_until_reset: Some(prost_types::Duration {
                seconds: 59,
                nanos: 5_000,
            }),
        }],
        response_headers_to_add: vec![Header {
            key: key.clone(),
            value: value.clone(),
        }],
        request_headers_to_add: vec![],
        raw_body: b"{}".to_vec(),
        dynamic_metadata: Some(prost_types::Struct {
            fields: BTreeMap::from([(
                "mode".to_owned(),
                prost_types::Value {
                    kind: Some(Kind::StringValue("normal".to_owned())),
                },
            )]),
        }),
    };
    let value_of = google::Value {
        kind: Some(google::value::Kind::StringValue("normal".to_owned())),
    };
    let theirs = theirs::RateLimitResponse {
        overall_code: answers::Code::OverLimit as i32,
        statuses: vec![answers::DescriptorStatus {
            code: answers::Code::OverLimit as i32,
            current_limit: Some(answers::RateLimit {
                name: "per-ip".to_owned(),
                requests_per_unit: 5,
                unit: answers::rate_limit::Unit::Week as i32,
            }),
            limit_remaining: 4,
            duration_until_reset: Some(google::Duration {
                seconds: 59,
                nanos: 5_000,
            }),
            ..answers::DescriptorStatus::default()
        }],
        response_headers_to_add: vec![HeaderValue {
            key,
            value,
            ..HeaderValue::default()
        }],
        raw_body: b"{}".to_vec(),
        dynamic_metadata: Some(google::Struct {
            fields: HashMap::from([("mode".to_owned(), value_of)]),
        }),
        ..theirs::RateLimitResponse::default()
    };
    (ours, theirs)
}

#[test]
fn wire_a_response_is_what_envoy_would_write() {
    let (ours, theirs) = response();
    assert_eq!(ours.encode_to_vec(), theirs.encode_to_vec());
}

#[test]
fn wire_units_and_codes_have_envoys_numbers() {
    use answers::rate_limit::Unit as Theirs;
    for number in 0..=7 {
        let ours = format!("{:?}", Unit::try_from(number).unwrap());
        let theirs = format!("{:?}", Theirs::try_from(number).unwrap());
        assert_eq!(ours, theirs);
    }
    assert_eq!(Code::Ok as i32, answers::Code::Ok as i32);
    assert_eq!(Code::OverLimit as i32, answers::Code::OverLimit as i32);
}

/// Any bytes are refused, or read within the bounds, and never echoed.
fn read(bytes: &[u8]) {
    if let Ok(request) = Request::decode(bytes) {
        match decode::facts(&request) {
            Ok(facts) => assert!((1..=64).contains(&facts.descriptors().len())),
            Err(error) => assert!(error.to_string().len() < 100),
        }
    }
}

#[test]
fn r_ids_every_file_of_the_corpus_is_refused_or_read() {
    let folder = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../fuzz/corpus/rls_messages"
    );
    let files: Vec<_> = std::fs::read_dir(folder).unwrap().collect();
    assert!(files.len() >= 12, "only {} files", files.len());
    for file in files {
        read(&std::fs::read(file.unwrap().path()).unwrap());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn r_ids_any_bytes_are_refused_or_read_within_the_bounds(bytes in vec(any::<u8>(), 0..512)) {
        read(&bytes);
    }

    #[test]
    fn r_ids_a_request_with_a_changed_byte_is_refused_or_read(
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = their_request().encode_to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        read(&bytes);
        bytes.truncate(cut.index(bytes.len()));
        read(&bytes);
    }

    #[test]
    fn r_ids_many_descriptors_and_long_values_that_are_no_text_keep_their_bounds(
        count in 0_usize..70,
        entries in 0_usize..18,
        value in vec(any::<u8>(), 0..200),
        hits in proptest::option::of(any::<u64>()),
        is_negative_hits in any::<bool>(),
    ) {
        let entry = Entry { key: Bytes::from_static(b"k"), value: value.into() };
        let descriptor = Descriptor {
            entries: vec![entry; entries],
            limit: None,
            hits_addend: hits,
            is_negative_hits,
        };
        let request = Request {
            domain: "edge".to_owned(),
            descriptors: vec![descriptor; count],
            hits_addend: 0,
        };
        let bytes = request.encode_to_vec();
        let again = Request::decode(bytes.as_slice()).unwrap();
        let is_read = decode::facts(&again).is_ok();
        prop_assert_eq!(is_read, (1..=64).contains(&count) && (1..=16).contains(&entries));
    }
}
