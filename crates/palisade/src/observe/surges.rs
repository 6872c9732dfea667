//! Watches failures over all accounts and networks for attacks that are too thin to show on any
//! single key of the guard.

use palisade_core::facts::Attempt;
use palisade_core::guard::surge::FailureRate;
use palisade_core::record::Flow;
use parking_lot::Mutex;

use crate::engine::{DecisionEvent, Subject};

/// Failures of logins and one-time codes on this node.
#[derive(Debug, Default)]
pub(super) struct Surges {
    login: Mutex<FailureRate>,
    otp: Mutex<FailureRate>,
}

impl Surges {
    /// Counts a decision. Returns the flow and its failures of the last minute, if this decision
    /// makes them a surge.
    pub(super) fn saw(&self, seen: &DecisionEvent<'_>) -> Option<(Flow, u32)> {
        let (flow, attempt) = outcome(seen)?;
        let rate = match flow {
            Flow::Otp => &self.otp,
            Flow::Login | Flow::Api => &self.login,
        };
        let failed = attempt == Attempt::Failure;
        let surge = failed.then(|| rate.lock().fail(seen.decision.at))?;
        surge.map(|failures| (flow, failures))
    }
}

/// Returns flow and outcome of a success or failure that the application reports for the first
/// time.
pub(super) fn outcome(seen: &DecisionEvent<'_>) -> Option<(Flow, Attempt)> {
    let Subject::Guard(op, _) = seen.subject else {
        return None;
    };
    let replayed = seen.guard.is_some_and(|notes| notes.replayed);
    let attempt = op.attempt().filter(|attempt| *attempt != Attempt::Check)?;
    (!replayed).then_some((op.flow(), attempt))
}

#[cfg(test)]
mod tests {
    use palisade_core::facts::{Confidence, GuardFacts, GuardOp, RequestFacts};
    use palisade_core::failure::fallback::Share;
    use palisade_core::guard::policy::GuardMode;
    use palisade_core::time::{Clock, MINUTE, SECOND};

    use super::super::tests::{WatchedEngine, id, parts};

    /// Returns a guess from a device, network and account of its own.
    fn guess(n: u32) -> GuardFacts {
        let [_, a, b, c] = n.to_be_bytes();
        let mut facts = GuardFacts::new(std::net::IpAddr::from([10 + a, b, c, 1]));
        facts.account = id(&format!("account-{n}"));
        facts.device.fingerprint = id(&format!("device-{n}"));
        facts.device.confidence = Some(Confidence::Medium);
        facts
    }

    #[tokio::test]
    async fn g_surge_a_spray_over_a_thousand_networks_is_in_audit_and_metrics_within_a_minute() {
        let watched = WatchedEngine::new(parts());
        for n in 0..1000 {
            let facts = guess(n);
            for op in [GuardOp::LoginCheck, GuardOp::LoginFailure] {
                let answer = watched.engine.guard(op, &facts).await.unwrap();
                assert!(answer.decision.is_allowed(), "no key sees it");
            }
            watched.clock.advance(MINUTE / 1000);
        }
        let events = watched.events();
        let surges: Vec<_> = events
            .iter()
            .filter(|event| event["event"] == "guard.surge")
            .collect();
        assert_eq!(surges.len(), 1, "told once");
        assert_eq!(
            (&surges[0]["class"], &surges[0]["count"]),
            (&"login".into(), &100.into())
        );
        let scraped = watched.scrape();
        for line in [
            "rate_limiter_guard_surges_total{flow=\"login\"} 1\n",
            "rate_limiter_guard_outcomes_total{flow=\"login\",outcome=\"failure\"} 1000\n",
        ] {
            assert!(scraped.contains(line), "{line}");
        }
    }

    #[tokio::test]
    async fn shadow_is_shown_in_audit_and_metrics() {
        let mut parts = parts();
        parts.settings.guard.login.mode = GuardMode::Shadow;
        let watched = WatchedEngine::new(parts);
        for _ in 0..2 {
            watched.clock.advance(SECOND);
            let answer = watched.engine.guard(GuardOp::LoginFailure, &guess(1)).await;
            assert!(answer.unwrap().decision.is_allowed());
        }
        let events = watched.events();
        let event = events.last().unwrap();
        assert_eq!(event["event"], "guard.shadow_block");
        assert_eq!(event["decision"], "soft_block");
        assert_eq!(event["rule"], "G-THRESHOLD");
        let line =
            "rate_limiter_shadow_exceeded_total{scope=\"guard\",endpoint_class=\"login\"} 1\n";
        assert!(watched.scrape().contains(line));
    }

    #[tokio::test]
    async fn ad_attack_is_in_audit_metrics_and_journal_with_its_numbers() {
        let mut parts = parts();
        parts.settings.adaptive.attack.floor = std::num::NonZeroU32::new(50).unwrap();
        parts.limits.retain(|one| !one.throttle);
        let limited = parts.limits.iter_mut().find(|one| one.name == "ip-auth");
        limited.unwrap().under_attack = Some(Share::HALF);
        let watched = WatchedEngine::new(parts);
        for _ in 0..2 {
            for n in 0..300_u16 {
                let [a, b] = n.to_be_bytes();
                let ip = std::net::IpAddr::from([10, 0, a, b]);
                let facts = RequestFacts::new(ip, "GET", "/auth");
                watched.check_n(&facts, 3).await;
                watched.clock.advance(MINUTE / 300);
            }
        }
        assert!(
            watched
                .scrape()
                .contains("rate_limiter_under_attack{endpoint_class=\"auth\"} 1\n")
        );
        watched.clock.advance(10 * MINUTE);
        assert!(
            watched
                .scrape()
                .contains("rate_limiter_under_attack{endpoint_class=\"auth\"} 0\n")
        );
        let events = watched.events();
        let of = |name: &str| {
            let mut found = events.iter().filter(|event| event["event"] == name);
            (found.next().unwrap().clone(), found.count())
        };
        let (declared, others) = of("attack_declared");
        assert_eq!((&declared["class"], others), (&"auth".into(), 0));
        assert_eq!(
            (&declared["from"], &declared["to"]),
            (&"usual 50".into(), &"threshold 250".into())
        );
        assert_eq!(of("attack_over").0["reason"], "quiet");
        let notes = watched.lookout.outlook(watched.clock.now()).notes;
        let words: Vec<_> = notes.iter().filter(|note| note.kind == "attack").collect();
        assert!(
            words[1]
                .words
                .starts_with("auth: attack declared (250 refusals"),
            "{words:?}"
        );
        assert!(words[0].words.starts_with("auth: attack over"), "{words:?}");
    }
}
