//! What is around a call: health, reflection, bounds, callers, TLS, the end.

use std::sync::LazyLock;
use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::certificates::certificates;
use crate::common::{Options, PATIENCE, Server, signal, wait};
use crate::redis_server::eventually;
use crate::service::{KEY, PER_IP, Service, alone, endpoint, of, request, shown};

static POLICY: LazyLock<String> = LazyLock::new(|| alone(PER_IP));

fn channel(service: &Service) -> Channel {
    let endpoint = endpoint(&service.server);
    service.runtime.block_on(endpoint.connect()).unwrap()
}

fn asked_of(service: &str) -> HealthCheckRequest {
    HealthCheckRequest {
        service: service.to_owned(),
    }
}

#[test]
fn health_says_serving_for_what_is_here_and_not_found_for_the_rest() {
    let service = Service::embedded(&POLICY);
    let mut client = HealthClient::new(channel(&service));
    let mut check = |name: &str| {
        let answered = service.runtime.block_on(client.check(asked_of(name)));
        answered.map(|answer| answer.into_inner().status())
    };
    for name in ["", "envoy.service.ratelimit.v3.RateLimitService"] {
        assert_eq!(check(name).unwrap(), ServingStatus::Serving);
    }
    assert_eq!(check("other").unwrap_err().code(), tonic::Code::NotFound);
}

#[test]
fn health_watchers_hear_of_the_end_and_calls_under_way_are_answered() {
    let mut service = Service::embedded(&POLICY);
    assert_eq!(service.code(&[of(&[("ip", "a")])]), Code::Ok);
    let mut client = HealthClient::new(channel(&service));
    let (server, runtime) = (service.server, service.runtime);
    let mut watch = runtime
        .block_on(client.watch(asked_of("")))
        .unwrap()
        .into_inner();
    let mut next = || {
        runtime.block_on(async {
            tokio::time::timeout(PATIENCE, watch.message())
                .await
                .unwrap()
        })
    };
    assert_eq!(next().unwrap().unwrap().status(), ServingStatus::Serving);
    server.terminate();
    assert_eq!(next().unwrap().unwrap().status(), ServingStatus::NotServing);
    let ended = next();
    assert!(!matches!(ended, Ok(Some(_))), "{ended:?}");
    assert_eq!(server.wait().0, Some(0));
}

/// Most watchers at once.
const WATCHERS_MAX: usize = 1024;
/// Calls that one connection carries.
const STREAMS_MAX: usize = 256;

#[test]
fn health_watchers_beyond_the_bound_are_refused_until_one_leaves() {
    let service = Service::embedded(&POLICY);
    let mut watches = Vec::new();
    for _ in 0..WATCHERS_MAX / STREAMS_MAX {
        let mut client = HealthClient::new(channel(&service));
        for _ in 0..STREAMS_MAX {
            let watch = service.runtime.block_on(client.watch(asked_of("")));
            watches.push(watch.unwrap().into_inner());
        }
    }
    for watch in &mut watches {
        let told = service.runtime.block_on(watch.message()).unwrap();
        assert_eq!(told.unwrap().status(), ServingStatus::Serving);
    }
    let mut client = HealthClient::new(channel(&service));
    let mut one_more = || service.runtime.block_on(client.watch(asked_of("")));
    let refused = one_more().unwrap_err();
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
    watches.pop();
    eventually("a place is free", || one_more().is_ok());
}

#[test]
fn health_watchers_of_what_is_not_here_are_told_so() {
    let service = Service::embedded(&POLICY);
    let mut client = HealthClient::new(channel(&service));
    let told = service.runtime.block_on(async {
        let mut watch = client.watch(asked_of("other")).await?.into_inner();
        watch.message().await
    });
    let status = told.unwrap().unwrap().status();
    assert_eq!(status, ServingStatus::ServiceUnknown);
}

#[test]
fn reflection_lists_the_services_and_describes_them() {
    use tonic_reflection::pb::v1::ServerReflectionRequest;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    let service = Service::embedded(&POLICY);
    let mut client = ServerReflectionClient::new(channel(&service));
    let question = |asked: MessageRequest| ServerReflectionRequest {
        host: String::new(),
        message_request: Some(asked),
    };
    let questions = [
        MessageRequest::ListServices(String::new()),
        MessageRequest::FileContainingSymbol(
            "envoy.service.ratelimit.v3.RateLimitService".to_owned(),
        ),
        MessageRequest::FileByFilename("grpc/health/v1/health.proto".to_owned()),
        MessageRequest::FileContainingSymbol("canary".to_owned()),
    ]
    .map(question);
    let answers = service.runtime.block_on(async {
        let stream = futures_util::stream::iter(questions);
        let mut answers = client
            .server_reflection_info(stream)
            .await
            .unwrap()
            .into_inner();
        let mut all = Vec::new();
        while let Some(answer) = answers.message().await.unwrap() {
            all.push(answer.message_response.unwrap());
        }
        all
    });
    let MessageResponse::ListServicesResponse(services) = &answers[0] else {
        panic!("{:?}", answers[0])
    };
    let names: Vec<&str> = services.service.iter().map(|s| s.name.as_str()).collect();
    assert!(
        names.contains(&"envoy.service.ratelimit.v3.RateLimitService"),
        "{names:?}"
    );
    let MessageResponse::FileDescriptorResponse(files) = &answers[1] else {
        panic!("{:?}", answers[1])
    };
    let names: Vec<String> = files
        .file_descriptor_proto
        .iter()
        .map(|bytes| {
            let file: prost_types::FileDescriptorProto =
                prost::Message::decode(bytes.as_slice()).unwrap();
            file.name().to_owned()
        })
        .collect();
    assert_eq!(names[0], "envoy/service/ratelimit/v3/rls.proto");
    assert!(
        names.contains(&"google/protobuf/wrappers.proto".to_owned()),
        "{names:?}"
    );
    assert!(matches!(
        answers[2],
        MessageResponse::FileDescriptorResponse(_)
    ));
    assert!(matches!(answers[3], MessageResponse::ErrorResponse(_)));
}

#[test]
fn a_caller_without_the_token_is_not_answered_but_by_health() {
    let config = format!("{}\n[server]\ncaller_token = \"env:KEY\"\n", *POLICY);
    let mut service = Service::embedded(&config);
    let refused = service
        .call(request("edge", &[of(&[("ip", "a")])]))
        .unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unauthenticated);
    assert!(!refused.message().contains(KEY.1));
    let mut health = HealthClient::new(channel(&service));
    assert!(service.runtime.block_on(health.check(asked_of(""))).is_ok());
    let mut client = RateLimitServiceClient::new(channel(&service));
    let mut call = tonic::Request::new(request("edge", &[of(&[("ip", "a")])]));
    let token = format!("Bearer {}", KEY.1);
    call.metadata_mut()
        .insert("authorization", token.parse().unwrap());
    let answer = service
        .runtime
        .block_on(client.should_rate_limit(call))
        .unwrap();
    assert_eq!(shown(&answer.into_inner())[0].2, 4);
}

#[test]
fn off_loopback_the_address_needs_a_token_and_tls() {
    let output = crate::common::palisade()
        .args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
        .args(["--store", "memory:", "--grpc", "0.0.0.0:0"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("`server.grpc` is not loopback"), "{said}");
}

#[test]
fn the_address_is_served_where_a_limit_has_a_domain_or_somebody_asks() {
    let plain = Server::configured("[policy]\ndefaults = false\n");
    assert!(!plain.banner.contains("gRPC"), "{}", plain.banner);
    let asked = Server::with(&Options {
        args: &["--grpc", "127.0.0.1:0"],
        ..Options::default()
    });
    assert!(asked.banner.contains("gRPC"), "{}", asked.banner);
}

/// Where the service listens if nobody has chosen an address.
const UNCHOSEN: &str = "127.0.0.1:8081";

#[test]
fn r_domain_a_reload_that_brings_the_first_domain_is_served_once_its_address_is_free() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("palisade.toml");
    let said = home.path().join("said");
    std::fs::write(&file, "[policy]\ndefaults = false\n").unwrap();
    let log = std::fs::File::create(&said).unwrap();
    // Whoever has it: it is not free.
    let held = std::net::TcpListener::bind(UNCHOSEN);
    let mut child = crate::common::palisade()
        .current_dir(home.path())
        .args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
        .args(["--store", "memory:", "--config", "palisade.toml"])
        .env("PALISADE_LOG__LEVEL", "info")
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .map(Ended)
        .unwrap();
    let says = |what: &str| std::fs::read_to_string(&said).unwrap().contains(what);
    eventually("the start", || says("\nready\n"));
    std::fs::write(&file, POLICY.as_str()).unwrap();
    eventually("the warning", || {
        says("the rate-limit service for Envoy cannot start")
    });
    assert!(says("WARN") && says("`domain`") && says("`server.grpc`"));
    assert!(!says("the rate-limit service is served"));
    drop(held);
    let mut rate = 5;
    eventually("the service", || {
        rate += 1;
        let changed = POLICY.replace("5/h", &format!("{rate}/h"));
        std::fs::write(&file, changed).unwrap();
        signal(child.0.id(), "HUP");
        std::thread::sleep(Duration::from_millis(50));
        says("the rate-limit service is served")
    });
    std::net::TcpStream::connect(UNCHOSEN).unwrap();
    signal(child.0.id(), "TERM");
    assert_eq!(wait(&mut child.0), Some(0));
}

/// A process that ends with its test, however the test ends.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn r_domain_a_reload_changes_the_limits_and_keeps_what_was_used() {
    let mut service = Service::embedded(&POLICY);
    assert_eq!(shown(&service.ask(&[of(&[("ip", "a")])]))[0].2, 4);
    let changed = POLICY.replace("5/h", "9/h");
    std::fs::write(service.server.home.path().join("palisade.toml"), changed).unwrap();
    signal(service.server.pid(), "HUP");
    let mut left = 0;
    for _ in 0..PATIENCE.as_millis() / 20 {
        let look = crate::service::with_hits(&[("ip", "a")], 0);
        left = shown(&service.ask(&[look]))[0].2;
        if left != 4 {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(left, 8);
}

#[test]
fn r_ids_a_value_reaches_no_log_no_metric_and_no_key() {
    let mut service = Service::on_redis(&POLICY);
    for _ in 0..7 {
        service.ask(&[of(&[("ip", "canary-value")])]);
    }
    let metrics = service.server.admin_get("/metrics");
    let mut all = String::from_utf8(metrics.body).unwrap();
    all.push_str(&service.server.printed.lock().unwrap());
    let redis = service.redis.as_ref().unwrap();
    let keys = redis.says(&["KEYS", "*"]);
    assert!(keys.contains("descriptor"), "{keys}");
    all.push_str(&keys);
    assert!(!all.contains("canary"), "{all}");
}

#[test]
fn callers_with_a_certificate_are_answered_and_others_are_not() {
    use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};
    let home = tempfile::tempdir().unwrap();
    certificates(home.path());
    let read = |name: &str| std::fs::read_to_string(home.path().join(name)).unwrap();
    let (authority, cert, key) = (read("ca.pem"), read("caller.pem"), read("caller.key"));
    let tls = "[tls]\ncert = \"service.pem\"\nkey = \"service.key\"\nclient_ca = \"ca.pem\"\n";
    let server = Server::at(
        home,
        &Options {
            args: &["--grpc", "127.0.0.1:0"],
            config: Some(&format!("{}\n{tls}", *POLICY)),
            env: &[],
        },
    );
    let address = crate::common::address_of(&server.banner, "gRPC").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let ask = |tls: ClientTlsConfig| {
        let url = format!("https://localhost:{}", address.port());
        let endpoint = Endpoint::from_shared(url).unwrap().tls_config(tls).unwrap();
        runtime.block_on(async {
            let channel = endpoint
                .connect()
                .await
                .map_err(|error| error.to_string())?;
            let mut client = RateLimitServiceClient::new(channel);
            let asked = client.should_rate_limit(request("edge", &[of(&[("ip", "a")])]));
            let answer = asked.await.map_err(|status| status.to_string())?;
            Ok::<_, String>(answer.into_inner().overall_code())
        })
    };
    let trusting = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(authority))
        .domain_name("localhost");
    let known = trusting.clone().identity(Identity::from_pem(cert, key));
    assert_eq!(ask(known), Ok(Code::Ok));
    assert!(ask(trusting).is_err());
}

#[test]
fn a_message_beyond_the_bound_is_refused_and_the_connection_goes_on() {
    let mut service = Service::embedded(&POLICY);
    let long = "x".repeat(60_000);
    let five: Vec<_> = (0..5).map(|_| of(&[("ip", long.as_str())])).collect();
    let refused = service.call(request("edge", &five)).unwrap_err();
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
    let four = service.call(request("edge", &five[..4])).unwrap();
    assert_eq!(four.overall_code(), Code::Ok);
}

#[test]
fn r_atomic_calls_at_once_admit_the_limit_and_not_one_more() {
    for service in [Service::embedded(&POLICY), Service::on_redis(&POLICY)] {
        let channel = channel(&service);
        let codes = service.runtime.block_on(async {
            let call = || {
                let mut client = RateLimitServiceClient::new(channel.clone());
                async move {
                    let asked = client.should_rate_limit(request("edge", &[of(&[("ip", "a")])]));
                    asked.await.unwrap().into_inner().overall_code()
                }
            };
            futures_util::future::join_all((0..200).map(|_| call())).await
        });
        let admitted = codes.iter().filter(|code| **code == Code::Ok).count();
        assert_eq!(admitted, 5);
    }
}

#[test]
fn t_org_a_tenants_figure_holds_for_its_descriptors() {
    let policy = r#"
        [policy]
        defaults = false
        [rls]
        org_key = "org"
        [[limit]]
        name = "per-org"
        domain = "edge"
        descriptor = [{ key = "org" }]
        rate = "5/h"
        [[tenant]]
        id = "acme"
        limits = { per-org = "50/h" }
    "#;
    let mut service = Service::embedded(policy);
    let mut left = |org: &str| shown(&service.ask(&[of(&[("org", org)])]))[0].2;
    assert_eq!((left("acme"), left("other")), (49, 4));
}

#[test]
fn a_connection_is_closed_at_its_age_and_no_call_is_lost() {
    let config = format!("{}\n[server]\nconnection_age_max = \"1s\"\n", *POLICY);
    let mut service = Service::embedded(&config.replace("5/h", "1000000/h"));
    for _ in 0..60 {
        assert_eq!(service.code(&[of(&[("ip", "a")])]), Code::Ok);
        std::thread::sleep(Duration::from_millis(50));
    }
}
