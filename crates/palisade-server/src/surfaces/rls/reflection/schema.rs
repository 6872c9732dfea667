//! The files that describe the services here, reduced to the parts that these services use.

use prost_types::FileDescriptorProto;

use super::file::{enumeration, file, map_entry, message, service};

const STRUCT: &str = "google/protobuf/struct.proto";
const DURATION: &str = "google/protobuf/duration.proto";
const WRAPPERS: &str = "google/protobuf/wrappers.proto";
const BASE: &str = "envoy/config/core/v3/base.proto";
const UNIT: &str = "envoy/type/v3/ratelimit_unit.proto";
const DESCRIPTOR: &str = "envoy/extensions/common/ratelimit/v3/ratelimit.proto";

const UNITS: [(&str, i32); 7] = [
    ("UNKNOWN", 0),
    ("SECOND", 1),
    ("MINUTE", 2),
    ("HOUR", 3),
    ("DAY", 4),
    ("MONTH", 5),
    ("YEAR", 6),
];

/// Returns all files.
pub(super) fn files() -> Vec<FileDescriptorProto> {
    let mut all = vec![rate_limit_service(), descriptor(), health()];
    all.extend(common());
    all.extend(["v1", "v1alpha"].map(reflection));
    all
}

fn rate_limit_service() -> FileDescriptorProto {
    let mut response = message(
        "RateLimitResponse",
        &[
            "1 enum .envoy.service.ratelimit.v3.RateLimitResponse.Code overall_code",
            "2 repeated .envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus statuses",
            "3 repeated .envoy.config.core.v3.HeaderValue response_headers_to_add",
            "4 repeated .envoy.config.core.v3.HeaderValue request_headers_to_add",
            "5 bytes raw_body",
            "6 .google.protobuf.Struct dynamic_metadata",
        ],
    );
    let codes = [("UNKNOWN", 0), ("OK", 1), ("OVER_LIMIT", 2)];
    response.enum_type = vec![enumeration("Code", &codes)];
    let mut limit = message(
        "RateLimit",
        &[
            "3 string name",
            "1 uint32 requests_per_unit",
            "2 enum .envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit unit",
        ],
    );
    let units: Vec<_> = UNITS.into_iter().chain([("WEEK", 7)]).collect();
    limit.enum_type = vec![enumeration("Unit", &units)];
    let status = message(
        "DescriptorStatus",
        &[
            "1 enum .envoy.service.ratelimit.v3.RateLimitResponse.Code code",
            "2 .envoy.service.ratelimit.v3.RateLimitResponse.RateLimit current_limit",
            "3 uint32 limit_remaining",
            "4 .google.protobuf.Duration duration_until_reset",
        ],
    );
    response.nested_type = vec![limit, status];
    let request = message(
        "RateLimitRequest",
        &[
            "1 string domain",
            "2 repeated .envoy.extensions.common.ratelimit.v3.RateLimitDescriptor descriptors",
            "3 uint32 hits_addend",
        ],
    );
    let method = (
        "ShouldRateLimit",
        ".envoy.service.ratelimit.v3.RateLimitRequest",
        ".envoy.service.ratelimit.v3.RateLimitResponse",
        [false, false],
    );
    let name = "envoy/service/ratelimit/v3/rls.proto";
    let needs = [BASE, DESCRIPTOR, DURATION, STRUCT];
    FileDescriptorProto {
        message_type: vec![request, response],
        service: vec![service("RateLimitService", &[method])],
        ..file(name, "envoy.service.ratelimit.v3", &needs)
    }
}

fn descriptor() -> FileDescriptorProto {
    let mut descriptor = message(
        "RateLimitDescriptor",
        &[
            "1 repeated .envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry entries",
            "2 .envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.RateLimitOverride limit",
            "3 .google.protobuf.UInt64Value hits_addend",
            "4 bool is_negative_hits",
        ],
    );
    let own = [
        "1 uint32 requests_per_unit",
        "2 enum .envoy.type.v3.RateLimitUnit unit",
    ];
    descriptor.nested_type = vec![
        message("Entry", &["1 string key", "2 string value"]),
        message("RateLimitOverride", &own),
    ];
    let package = "envoy.extensions.common.ratelimit.v3";
    FileDescriptorProto {
        message_type: vec![descriptor],
        ..file(DESCRIPTOR, package, &[UNIT, WRAPPERS])
    }
}

fn common() -> [FileDescriptorProto; 5] {
    let header = message("HeaderValue", &["1 string key", "2 string value"]);
    let mut structure = message(
        "Struct",
        &["1 repeated .google.protobuf.Struct.FieldsEntry fields"],
    );
    structure.nested_type = vec![map_entry("FieldsEntry", ".google.protobuf.Value")];
    let value = message(
        "Value",
        &[
            "1 enum .google.protobuf.NullValue null_value|kind",
            "2 double number_value|kind",
            "3 string string_value|kind",
            "4 bool bool_value|kind",
            "5 .google.protobuf.Struct struct_value|kind",
            "6 .google.protobuf.ListValue list_value|kind",
        ],
    );
    let list = message("ListValue", &["1 repeated .google.protobuf.Value values"]);
    let google = |name| file(name, "google.protobuf", &[]);
    [
        FileDescriptorProto {
            message_type: vec![header],
            ..file(BASE, "envoy.config.core.v3", &[])
        },
        FileDescriptorProto {
            enum_type: vec![enumeration("RateLimitUnit", &UNITS)],
            ..file(UNIT, "envoy.type.v3", &[])
        },
        FileDescriptorProto {
            message_type: vec![structure, value, list],
            enum_type: vec![enumeration("NullValue", &[("NULL_VALUE", 0)])],
            ..google(STRUCT)
        },
        FileDescriptorProto {
            message_type: vec![message("Duration", &["1 int64 seconds", "2 int32 nanos"])],
            ..google(DURATION)
        },
        FileDescriptorProto {
            message_type: vec![message("UInt64Value", &["1 uint64 value"])],
            ..google(WRAPPERS)
        },
    ]
}

fn health() -> FileDescriptorProto {
    let status = "1 enum .grpc.health.v1.HealthCheckResponse.ServingStatus status";
    let mut response = message("HealthCheckResponse", &[status]);
    let statuses = [
        ("UNKNOWN", 0),
        ("SERVING", 1),
        ("NOT_SERVING", 2),
        ("SERVICE_UNKNOWN", 3),
    ];
    response.enum_type = vec![enumeration("ServingStatus", &statuses)];
    let (takes, gives) = (
        ".grpc.health.v1.HealthCheckRequest",
        ".grpc.health.v1.HealthCheckResponse",
    );
    let methods = [
        ("Check", takes, gives, [false, false]),
        ("Watch", takes, gives, [false, true]),
    ];
    FileDescriptorProto {
        message_type: vec![
            message("HealthCheckRequest", &["1 string service"]),
            response,
        ],
        service: vec![service("Health", &methods)],
        ..file("grpc/health/v1/health.proto", "grpc.health.v1", &[])
    }
}

fn reflection(version: &str) -> FileDescriptorProto {
    let package = format!("grpc.reflection.{version}");
    let of = |written: &str| written.replace("@", &format!(".{package}."));
    let made = |name: &str, fields: &[&str]| {
        let fields: Vec<String> = fields.iter().map(|field| of(field)).collect();
        let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
        message(name, &fields)
    };
    let request = made(
        "ServerReflectionRequest",
        &[
            "1 string host",
            "3 string file_by_filename|message_request",
            "4 string file_containing_symbol|message_request",
            "5 @ExtensionRequest file_containing_extension|message_request",
            "6 string all_extension_numbers_of_type|message_request",
            "7 string list_services|message_request",
        ],
    );
    let response = made(
        "ServerReflectionResponse",
        &[
            "1 string valid_host",
            "2 @ServerReflectionRequest original_request",
            "4 @FileDescriptorResponse file_descriptor_response|message_response",
            "6 @ListServiceResponse list_services_response|message_response",
            "7 @ErrorResponse error_response|message_response",
        ],
    );
    let parts = [
        made(
            "ExtensionRequest",
            &["1 string containing_type", "2 int32 extension_number"],
        ),
        made(
            "FileDescriptorResponse",
            &["1 repeated bytes file_descriptor_proto"],
        ),
        made(
            "ListServiceResponse",
            &["1 repeated @ServiceResponse service"],
        ),
        made("ServiceResponse", &["1 string name"]),
        made(
            "ErrorResponse",
            &["1 int32 error_code", "2 string error_message"],
        ),
    ];
    let (takes, gives) = (
        of("@ServerReflectionRequest"),
        of("@ServerReflectionResponse"),
    );
    let method = ("ServerReflectionInfo", &*takes, &*gives, [true, true]);
    let name = format!("grpc/reflection/{version}/reflection.proto");
    FileDescriptorProto {
        message_type: [request, response].into_iter().chain(parts).collect(),
        service: vec![service("ServerReflection", &[method])],
        ..file(&name, &package, &[])
    }
}
