//! The reference store passes the suite that it is the reference for, and so does a store
//! that has nothing but its records.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

use palisade_store::cas::ByRecords;
use palisade_store::conformance::{
    Conversions, Differential, TestClock, differential, registry_is_bounded, run_with,
};
use palisade_store::model::ModelStore;
use std::sync::Arc;

#[tokio::test(flavor = "multi_thread")]
async fn the_model_store_conforms() {
    run_with(
        |clock| async move { ModelStore::new(clock) },
        Conversions::All,
    )
    .await;
}

#[tokio::test]
async fn the_model_store_bounds_its_registries() {
    registry_is_bounded(|clock| async move { ModelStore::new(clock) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_of_records_alone_conforms() {
    run_with(
        |clock| async move { ByRecords::new(ModelStore::new(clock)) },
        Conversions::All,
    )
    .await;
}

#[tokio::test]
async fn a_store_of_records_alone_answers_as_the_model_does() {
    for seed in 0..50 {
        let clock = Arc::new(TestClock::default());
        let store = ByRecords::new(ModelStore::new(Arc::clone(&clock)));
        let plan = Differential {
            seed,
            steps: 200,
            conversions: Conversions::All,
        };
        differential(&store, &clock, plan).await;
    }
}
