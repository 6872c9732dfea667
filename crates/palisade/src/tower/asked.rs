//! What has been asked about a request by the layers that it came through: no bucket is charged
//! twice, and none is left out (L-LAYERS).

use std::sync::Arc;

use palisade_core::RequestFacts;
use palisade_core::facts::Layers;
use smallvec::SmallVec;

/// Tells judges apart: gates of one engine are of one mind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JudgeId(usize);

impl JudgeId {
    /// Where it lives: its layers keep it there while a request is under way.
    pub(super) fn of<J>(judge: &Arc<J>) -> Self {
        Self(Arc::as_ptr(judge).addr())
    }
}

/// What one judge was asked about a request. The edge is always part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// Where it comes from.
    Edge,
    /// And who it is from, as far as that was known.
    Identity(Known),
}

impl Question {
    /// What is asked about these facts.
    pub(super) fn about(facts: &RequestFacts) -> Self {
        match facts.layers {
            Layers::Edge => Self::Edge,
            Layers::All | Layers::Identity => Self::Identity(Known::of(facts)),
        }
    }

    /// True if these facts, of the layers behind the edge, leave nothing to ask. Who has
    /// authenticated somebody meanwhile asks again: nobody's limits are left out.
    pub(super) fn covers(self, facts: &RequestFacts) -> bool {
        match self {
            Self::Edge => false,
            Self::Identity(before) => before.covers(Known::of(facts)),
        }
    }
}

/// Which identifiers of somebody were known; a bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known(u8);

impl Known {
    fn of(facts: &RequestFacts) -> Self {
        let known = [&facts.org, &facts.user, &facts.token, &facts.api_key];
        let bits = known.iter().map(|id| u8::from(id.is_some()));
        Self(bits.fold(0, |all, bit| all << 1 | bit))
    }

    const fn covers(self, now: Self) -> bool {
        now.0 & !self.0 == 0
    }
}

/// Every judge that was asked, the last one first; as a rule there is but one.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked(SmallVec<[(JudgeId, Question); 1]>);

impl Asked {
    pub(super) fn now(judge: JudgeId, question: Question) -> Self {
        Self(SmallVec::from_buf([(judge, question)]))
    }

    /// What this judge was asked.
    pub(super) fn of(&self, judge: JudgeId) -> Option<Question> {
        let found = self.0.iter().find(|(asked, _)| *asked == judge);
        found.map(|(_, question)| *question)
    }

    /// Takes over what was asked before; of one judge the later question says more.
    pub(super) fn follow(&mut self, before: &Self) {
        for (judge, question) in &before.0 {
            if self.of(*judge).is_none() {
                self.0.push((*judge, *question));
            }
        }
    }
}
