//! The reference store passes the suite that it is the reference for.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

use palisade_store::conformance::{Conversions, registry_is_bounded, run_with};
use palisade_store::model::ModelStore;

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
