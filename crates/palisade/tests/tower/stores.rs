//! One gate on every kind of store: real servers, shared by two services as by two processes.

use palisade::tower::EdgeLayer;
use tower::Layer;

use super::*;
use crate::nodes_support::{Nodes, StoreTime, postgres, redis};
use crate::postgres_server::PostgresServer;
use crate::redis_server::RedisServer;

const POLICY: &str = r#"
[policy]
defaults = false
default_class = "api"
[[class]]
name = "api"
[[limit]]
name = "per-address"
by = ["ip"]
rate = "5/h"
"#;

/// Two services get 1,500 requests at once, of which five are admitted; each answer says what is
/// left.
async fn five_of_many(nodes: &Nodes) {
    let reached = Reached::default();
    let mut tasks = tokio::task::JoinSet::new();
    let services: Vec<_> = nodes
        .engines
        .iter()
        .map(|engine| {
            let gate = Gate::new(Arc::clone(engine));
            EdgeLayer::new(&gate).layer(application(&reached))
        })
        .collect();
    for at in 0..1_500 {
        let service = services[at % services.len()].clone();
        tasks.spawn(async move { service.oneshot(request("192.0.2.1", "/x")).await.unwrap() });
    }
    let mut passed = 0;
    while let Some(answer) = tasks.join_next().await {
        let answer = answer.unwrap();
        assert_eq!(header(&answer, "x-ratelimit-limit"), "5");
        assert_eq!(
            header(&answer, "x-ratelimit-status"),
            "absent",
            "the store decides"
        );
        match answer.status().as_u16() {
            200 => passed += 1,
            429 => assert_ne!(header(&answer, "retry-after"), "absent"),
            other => panic!("{other}"),
        }
    }
    assert_eq!((passed, reached.count()), (5, 5));
    let elsewhere = ask(&services[0], request("192.0.2.2", "/x")).await;
    assert_eq!(header(&elsewhere, "x-ratelimit-remaining"), "4");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l_atomic_layers_of_two_processes_on_a_real_redis_admit_five_together() {
    let server = RedisServer::start();
    five_of_many(&redis(&server.url(), POLICY, &StoreTime::Server, &[0, 0])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l_atomic_layers_of_two_processes_on_a_real_postgres_admit_five_together() {
    let server = PostgresServer::start(&[]).await;
    let config = server.database().await;
    five_of_many(&postgres(&config, POLICY, &StoreTime::Server, &[0, 0]).await).await;
}
