//! Taking a use of a token or a pass.

use std::net::IpAddr;

use arrayvec::ArrayVec;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use palisade_core::challenge::{
    ChallengeBinding, ChallengeFlow, ChallengeRefusal, Fit, PASS_BYTES_MAX, Pass, PassKind,
    PassNote, ShownPass, segment_of, used_once,
};
use palisade_core::decide::JudgedCharges;
use palisade_core::facts::{Attempt, GuardFacts, GuardOp, Id};
use palisade_core::plan::Charge;
use palisade_core::policy::Limit;
use palisade_store::Take;

use super::super::Engine;
use super::super::counters::Terms;
use super::super::marks::mark;
use super::ChallengeStep;

/// A pass that is good for its caller, before one of its uses is taken.
pub(in crate::engine) struct OpenPass {
    pass: Pass,
    kind: PassKind,
    /// The binding of the caller, if the pass has to follow it to the other address family.
    moves_to: Option<ChallengeBinding>,
    uses: Limit,
    moves: Limit,
}

impl OpenPass {
    /// The charges that take one use. They are to be made together with whatever the use is for.
    pub(in crate::engine) fn marks(&self) -> ArrayVec<Charge<'_>, 2> {
        let segment = segment_of(self.pass.id);
        let moves = self.moves_to.map(|_| mark(&self.moves, segment));
        moves
            .into_iter()
            .chain([mark(&self.uses, segment)])
            .collect()
    }

    /// Why the charges were not made, if that is due to the pass.
    pub(in crate::engine) fn refused_by(
        &self,
        judged: JudgedCharges<'_>,
    ) -> Option<ChallengeRefusal> {
        let denies = |limit: &Limit| {
            let mut both = judged.charges.iter().zip(judged.readings);
            both.any(|(charge, reading)| {
                charge.limit.digest == limit.digest && reading.retry_at.is_some()
            })
        };
        if denies(&self.uses) {
            Some(ChallengeRefusal::Used)
        } else {
            denies(&self.moves).then_some(ChallengeRefusal::Foreign)
        }
    }

    /// Whether a charge takes a use of the pass, and none of a limit.
    pub(in crate::engine) fn is_mark(&self, charge: &Charge<'_>) -> bool {
        [&self.uses, &self.moves]
            .iter()
            .any(|limit| limit.digest == charge.limit.digest)
    }
}

impl Engine {
    /// Verifies a token or a pass and takes one of its uses (C-BUYS). Whatever is not certainly
    /// good is refused, and nothing is taken then.
    pub async fn open_pass(
        &self,
        flow: ChallengeFlow,
        ip: IpAddr,
        account: Option<&Id>,
        shown: &ShownPass,
    ) -> PassNote {
        let note = match self.look_at_pass(flow, ip, account, shown) {
            Ok(open) => self.take_use(&open).await,
            Err(reason) => PassNote::Refused(reason),
        };
        self.note_pass(flow, &note);
        note
    }

    /// Verifies everything of a pass that needs no store.
    pub(in crate::engine) fn look_at_pass(
        &self,
        flow: ChallengeFlow,
        ip: IpAddr,
        account: Option<&Id>,
        shown: &ShownPass,
    ) -> Result<OpenPass, ChallengeRefusal> {
        let wrong = ChallengeRefusal::Wrong;
        if shown.text.len() > PASS_BYTES_MAX.div_ceil(3) * 4 {
            return Err(wrong);
        }
        let sealed = URL_SAFE_NO_PAD.decode(&*shown.text).map_err(|_| wrong)?;
        let pass = Pass::open(&self.keyring, shown.kind, &sealed).map_err(|_| wrong)?;
        // The page that got a cookie knew no account: a cookie is bound to prefix and flow.
        let account = account.filter(|_| shown.kind == PassKind::Token);
        let binding = ChallengeBinding::new(&self.keyring, flow, ip, account);
        let fit = pass.fit(&binding, self.now())?;
        Ok(OpenPass {
            pass,
            kind: shown.kind,
            moves_to: (fit == Fit::OtherFamily).then_some(binding),
            uses: pass.uses_limit().ok_or(wrong)?,
            moves: used_once("challenge-moved").ok_or(wrong)?,
        })
    }

    async fn take_use(&self, open: &OpenPass) -> PassNote {
        let terms = Terms {
            take: Take::Consume,
            ends: self.link.request_ends(),
            receipt: false,
        };
        let marks = open.marks();
        match self.counters.charge(&marks, terms).await {
            Ok(outcome) if outcome.charged.admitted => self.accepted(open),
            Ok(outcome) => {
                let reason = open.refused_by(outcome.judged());
                PassNote::Refused(reason.unwrap_or(ChallengeRefusal::Unavailable))
            }
            Err(_) => PassNote::Refused(ChallengeRefusal::Unavailable),
        }
    }

    /// The note of a pass of which a use was taken.
    pub(in crate::engine) fn accepted(&self, open: &OpenPass) -> PassNote {
        let Some(binding) = open.moves_to else {
            return PassNote::Accepted;
        };
        let moved = open.pass.moved(&binding).seal(&self.keyring, open.kind);
        PassNote::Moved(URL_SAFE_NO_PAD.encode(moved).into())
    }

    pub(in crate::engine) fn note_pass(&self, flow: ChallengeFlow, note: &PassNote) {
        let kind = self.policy.load().settings.challenge.kind;
        let step = note
            .refused()
            .map_or(ChallengeStep::Spent, ChallengeStep::PassRefused);
        self.note_challenge(step, kind, flow);
    }

    /// Takes a use of the pass that a guard command shows. An attempt is bought by its check, so
    /// its outcome takes nothing.
    pub(in crate::engine) async fn spend_on_command(
        &self,
        op: GuardOp,
        facts: &GuardFacts,
    ) -> Option<PassNote> {
        let shown = facts.pass.as_deref()?;
        let is_asked = matches!(op.attempt(), Some(Attempt::Check) | None);
        if !is_asked {
            return None;
        }
        let account = facts.account.as_ref();
        // Boxed: commands without a pass, nearly all, would carry its state.
        let opening = Box::pin(self.open_pass(op.flow().into(), facts.ip, account, shown));
        Some(opening.await)
    }
}
