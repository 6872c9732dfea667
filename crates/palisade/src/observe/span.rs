//! One span per decision, for a tracing collector. It names parts of the policy, rules and the
//! request's id, and nobody's identifier.

use palisade_core::Id;
use palisade_core::decision::Level;
use palisade_core::rule::Rule;

use super::classes::op_class;
use super::log::DenialLog;
use crate::engine::{DecisionEvent, Subject};

/// Target of the spans. A subscriber that does not ask for it pays nothing.
pub const SPAN_TARGET: &str = "palisade::trace";

impl DenialLog {
    /// Opens and closes the span of a decision, below the request's.
    pub(super) fn span(&self, seen: &DecisionEvent<'_>) {
        if !tracing::enabled!(target: SPAN_TARGET, tracing::Level::INFO) {
            return;
        }
        let decision = seen.decision;
        let (operation, class) = match seen.subject {
            Subject::Request(_) => (
                "request",
                decision.class.as_deref().map(|c| self.shown_class(c)),
            ),
            Subject::Guard(op, _) => (op.name(), Some(op_class(op).into())),
            Subject::Descriptors(..) => (
                "rls",
                decision
                    .class
                    .as_deref()
                    .map(|class| self.shown_class(class)),
            ),
        };
        let rules: Vec<&str> = decision.reasons.iter().map(|r| r.rule.id()).collect();
        let limit = decision.reasons.iter().find_map(|r| r.limit.as_deref());
        let span = tracing::info_span!(
            target: SPAN_TARGET,
            "decision",
            palisade.operation = operation,
            palisade.class = class.as_deref(),
            palisade.decision = decision.outcome.name(),
            palisade.mode = decision.mode.name(),
            palisade.rule = decision.rule.map(Rule::id),
            palisade.rules = rules.join(","),
            palisade.level = decision.level.map(Level::number),
            palisade.limit = limit,
            palisade.request_id = seen.subject.request_id().map(Id::as_str),
        );
        drop(span);
    }
}
