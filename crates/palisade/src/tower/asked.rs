//! Questions that the layers before this one have put to judges about a request, so that no bucket
//! is charged twice and none is left out (L-LAYERS).

use std::sync::Arc;

use palisade_core::RequestFacts;
use palisade_core::facts::Layers;
use smallvec::SmallVec;

/// Identity of a judge: gates of one engine have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JudgeId(usize);

impl JudgeId {
    /// Returns the id of a judge: its address. The layers keep the judge there while a request is
    /// in progress.
    pub(super) fn of<J>(judge: &Arc<J>) -> Self {
        Self(Arc::as_ptr(judge).addr())
    }
}

/// The question that a layer put to one judge about a request. It always includes the limits of the
/// edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// The edge: the limits of the address and the client.
    Edge,
    /// The edge and the identity, with the identifiers known then.
    Identity(Known),
}

impl Question {
    /// Returns the question that these facts put.
    pub(super) fn about(facts: &RequestFacts) -> Self {
        match facts.layers {
            Layers::Edge => Self::Edge,
            Layers::All | Layers::Identity => Self::Identity(Known::of(facts)),
        }
    }

    /// True if nothing is left to ask about these facts, which are those of the layers behind the
    /// edge. If an identifier became known since the earlier question, the layer asks again: no
    /// limit is left out.
    pub(super) fn covers(self, facts: &RequestFacts) -> bool {
        match self {
            Self::Edge => false,
            Self::Identity(before) => before.covers(Known::of(facts)),
        }
    }
}

/// The identifiers of a subject that were known; a bit each.
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

/// Every judge that was asked, the last one first; usually there is only one.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked(SmallVec<[(JudgeId, Question); 1]>);

impl Asked {
    pub(super) fn now(judge: JudgeId, question: Question) -> Self {
        Self(SmallVec::from_buf([(judge, question)]))
    }

    /// Returns the question that was put to this judge.
    pub(super) fn of(&self, judge: JudgeId) -> Option<Question> {
        let found = self.0.iter().find(|(asked, _)| *asked == judge);
        found.map(|(_, question)| *question)
    }

    /// Adds the questions of earlier layers. Of two questions to one judge the later is kept: it
    /// says more.
    pub(super) fn follow(&mut self, before: &Self) {
        for (judge, question) in &before.0 {
            if self.of(*judge).is_none() {
                self.0.push((*judge, *question));
            }
        }
    }
}
