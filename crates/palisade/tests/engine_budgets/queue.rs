//! Waiting in line for a slot (B-FAIR).

use std::future::Future;
use std::pin::Pin;

use futures_util::FutureExt;
use futures_util::future::join;

use super::*;

const QUEUE: &str = r#"
[[limit]]
name = "jobs"
by = ["org"]
concurrency = 1
hold = "30s"
queue = 2
wait = "2s"
"#;

type Waiting<'n> = Pin<Box<dyn Future<Output = ReserveAnswer> + 'n>>;

impl Nodes {
    /// A reservation that has been asked for, and that waits unless it was answered at once.
    async fn waiting(&self, node: usize) -> Waiting<'_> {
        let mut asked: Waiting<'_> = Box::pin(self.reserve(node, &[("requests", 1)]));
        let answered = (&mut asked).now_or_never();
        assert!(answered.is_none(), "{answered:?}");
        asked
    }

    /// The answer of a caller that does not wait.
    fn at_once(&self, node: usize) -> ReserveAnswer {
        let asked = self.reserve(node, &[("requests", 1)]).now_or_never();
        asked.expect("answered at once")
    }

    /// Lets callers wait for so long, by the clocks of the engine and of the store.
    async fn pass(&self, ms: u64) {
        self.sleep(ms * 1_000);
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
}

fn waited_ms(answer: &ReserveAnswer) -> Option<u32> {
    answer.answer.decision.waited_ms
}

#[tokio::test(start_paused = true)]
async fn b_fair_callers_of_a_full_bucket_are_served_in_the_order_of_their_arrival() {
    let nodes = Nodes::new(1, QUEUE);
    let first = nodes.held(0, &[("requests", 1)]).await;
    let mut second = nodes.waiting(0).await;
    let mut third = nodes.waiting(0).await;
    let fourth = nodes.at_once(0);
    assert!(
        fourth.held.is_none() && waited_ms(&fourth).is_none(),
        "two wait"
    );

    nodes.pass(300).await;
    assert!((&mut second).now_or_never().is_none());
    nodes.release(0, &first.token).await;
    assert!((&mut third).now_or_never().is_none(), "it is not its turn");
    let second = second.await;
    assert_eq!(waited_ms(&second), Some(300));
    nodes.release(0, &second.held.unwrap().token).await;
    // Who comes now stands behind the third.
    let fifth = nodes.waiting(0).await;
    let third = third.await;
    nodes.release(0, &third.held.unwrap().token).await;
    assert!(fifth.await.held.is_some());
    drop(nodes.waiting(0).await);
}

#[tokio::test(start_paused = true)]
async fn b_fair_whoever_waits_too_long_is_refused_and_told_when_a_slot_ends() {
    let nodes = Nodes::new(1, QUEUE);
    let _held = nodes.held(0, &[("requests", 1)]).await;
    let (one, two) = join(nodes.reserve(0, &[("requests", 1)]), async {
        nodes.pass(500).await;
        nodes.reserve(0, &[("requests", 1)]).await
    })
    .await;
    for refused in [one, two] {
        assert!(refused.held.is_none());
        assert_eq!(waited_ms(&refused), Some(2_000));
        assert!(
            refused
                .answer
                .decision
                .retry_after
                .is_some_and(|after| after >= 1)
        );
        assert_eq!(refused.answer.decision.status, 429);
    }
}

#[tokio::test(start_paused = true)]
async fn b_fair_a_slot_that_another_node_frees_is_found_within_a_tenth_of_a_second() {
    let nodes = Nodes::new(2, QUEUE);
    let held = nodes.held(0, &[("requests", 1)]).await;
    let waiting = nodes.waiting(1).await;
    nodes.pass(50).await;
    nodes.release(0, &held.token).await;
    let (served, ()) = join(waiting, nodes.pass(200)).await;
    assert!(served.held.is_some());
    assert!(waited_ms(&served).is_some_and(|ms| ms <= 250), "{served:?}");
}

#[tokio::test(start_paused = true)]
async fn b_fair_whoever_hangs_up_leaves_the_line() {
    let nodes = Nodes::new(1, QUEUE);
    let held = nodes.held(0, &[("requests", 1)]).await;
    let second = nodes.waiting(0).await;
    let third = nodes.waiting(0).await;
    drop(second);
    let fourth = nodes.waiting(0).await;
    nodes.release(0, &held.token).await;
    let third = third.await;
    nodes.release(0, &third.held.unwrap().token).await;
    assert!(fourth.await.held.is_some());
}

#[tokio::test(start_paused = true)]
async fn b_fair_nobody_waits_for_a_slot_where_another_limit_is_used_up() {
    let rate = "[[limit]]\nname = \"rate\"\nby = [\"org\"]\nrate = \"1/min\"\n";
    let nodes = Nodes::new(1, &format!("{QUEUE}{rate}"));
    let _held = nodes.held(0, &[("requests", 1)]).await;
    let refused = nodes.at_once(0);
    assert!(refused.held.is_none() && waited_ms(&refused).is_none());
}
