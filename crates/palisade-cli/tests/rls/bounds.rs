//! What a call may hold: each bound, one past it, and bytes that are no text.

use std::io;

use bytes::{Buf, BufMut};
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use prost::Message;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use crate::service::{PER_IP, Service, endpoint, of, on_every_store, request, shown};

/// Code and words of a call that has no answer.
fn refused(service: &mut Service, descriptors: &[RateLimitDescriptor]) -> (tonic::Code, String) {
    let status = service.call(request("edge", descriptors)).unwrap_err();
    (status.code(), status.message().to_owned())
}

#[test]
fn r_ids_a_call_one_past_a_bound_is_refused_and_names_the_field() {
    on_every_store(PER_IP, |service| {
        let entries = |count: usize| of(&vec![("key", "canary"); count]);
        let long = |bytes: usize| of(&[("ip", "c".repeat(bytes).as_str())]);
        for fits in [vec![entries(16); 64], vec![long(64 * 1024)]] {
            assert_eq!(service.code(&fits), Code::Ok);
        }
        for (descriptors, words) in [
            (vec![entries(1); 65], "`descriptors` must be at most 64"),
            (
                vec![entries(17)],
                "`descriptors.entries` must be at most 16",
            ),
            (
                vec![long(64 * 1024 + 1)],
                "`descriptors.entries.value` is too long",
            ),
            (
                vec![of(&[("k".repeat(513).as_str(), "v")])],
                "`descriptors.entries.key` is too long",
            ),
        ] {
            let expected = (tonic::Code::InvalidArgument, words.to_owned());
            assert_eq!(refused(service, &descriptors), expected);
        }
        let (code, words) = refused(service, &vec![long(64 * 1024); 5]);
        assert_eq!(code, tonic::Code::ResourceExhausted, "{words}");
        assert_eq!(service.code(&[of(&[("ip", "a")])]), Code::Ok, "it goes on");
    });
}

/// Bytes out, an answer in.
#[derive(Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = RateLimitResponse;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = tonic::Status;

    fn encode(&mut self, item: Vec<u8>, to: &mut EncodeBuf<'_>) -> Result<(), tonic::Status> {
        to.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = RateLimitResponse;
    type Error = tonic::Status;

    fn decode(
        &mut self,
        from: &mut DecodeBuf<'_>,
    ) -> Result<Option<RateLimitResponse>, tonic::Status> {
        let bytes = from.copy_to_bytes(from.remaining());
        let read = RateLimitResponse::decode(bytes);
        read.map(Some)
            .map_err(|error| io::Error::other(error).into())
    }
}

/// Asks with what stands for `XXXX` replaced by bytes that are no text.
fn ask_raw(
    service: &Service,
    domain: &str,
    entry: (&str, &str),
    bytes: [u8; 4],
) -> Result<RateLimitResponse, tonic::Status> {
    let mut message = request(domain, &[of(&[entry])]).encode_to_vec();
    let at = message.windows(4).position(|four| four == b"XXXX").unwrap();
    message[at..at + 4].copy_from_slice(&bytes);
    service.runtime.block_on(async {
        let channel = endpoint(&service.server).connect().await.unwrap();
        let mut client = tonic::client::Grpc::new(channel);
        client.ready().await.unwrap();
        let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
        let path = http::uri::PathAndQuery::from_static(path);
        let answer = client.unary(tonic::Request::new(message), path, Raw).await;
        answer.map(tonic::Response::into_inner)
    })
}

#[test]
fn r_ids_a_value_that_is_no_text_counts_like_any_other() {
    const NO_TEXT: [u8; 4] = [0xff, 0xfe, 0, 0xc0];
    const OTHER: [u8; 4] = [0xff, 0xfe, 0, 0xc1];
    on_every_store(PER_IP, |service| {
        let left = |service: &Service, bytes| {
            let answer = ask_raw(service, "edge", ("ip", "XXXX"), bytes).unwrap();
            shown(&answer)[0].clone()
        };
        let name = || "per-ip".to_owned();
        assert_eq!(left(service, NO_TEXT), (Code::Ok, name(), 4));
        assert_eq!(left(service, NO_TEXT), (Code::Ok, name(), 3));
        assert_eq!(left(service, OTHER), (Code::Ok, name(), 4));
        let key = ask_raw(service, "edge", ("XXXX", "v"), NO_TEXT).unwrap();
        assert_eq!(shown(&key), [(Code::Ok, String::new(), 0)]);
        let domain = ask_raw(service, "XXXX", ("ip", "v"), NO_TEXT).unwrap_err();
        assert_eq!(domain.code(), tonic::Code::InvalidArgument);
        assert_eq!(domain.message(), "the message is no `RateLimitRequest`");
    });
}
