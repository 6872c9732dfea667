//! Requests that were applied already, with their answers (G-ONCE).

use crate::key::DigestPair;
use crate::rule::Rule;
use crate::time::Micros;

use super::codec::{DecodeError, Reader, Writer};
use super::sets::Short;
use crate::guard::aggregate::Answer;

/// Most requests that a record remembers.
pub const ONCE_MAX: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
struct AppliedRequest {
    request: Short,
    at: Micros,
    answer: Answer,
}

/// The last requests applied to a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Once(Vec<AppliedRequest>);

impl Once {
    /// The answer to this request, if it was applied less than `window` ago.
    #[must_use]
    pub fn answer(&self, request: &DigestPair, window: u64, now: Micros) -> Option<&Answer> {
        self.0
            .iter()
            .find(|applied| applied.request.is(request) && now.since(applied.at) < window)
            .map(|applied| &applied.answer)
    }

    pub(crate) fn note(&mut self, request: &DigestPair, answer: &Answer, now: Micros) {
        self.0.retain(|applied| !applied.request.is(request));
        if self.0.len() >= ONCE_MAX {
            self.0.remove(0);
        }
        self.0.push(AppliedRequest {
            request: Short::of(request.current),
            at: now,
            answer: answer.clone(),
        });
    }

    /// True if an answer has `rule` among its reasons.
    pub(crate) fn names(&self, rule: Rule) -> bool {
        let mut reasons = self.0.iter().flat_map(|applied| &applied.answer.reasons);
        reasons.any(|reason| reason.rule == rule)
    }

    pub(crate) fn prune(&mut self, window: u64, now: Micros) {
        self.0.retain(|applied| now.since(applied.at) < window);
    }

    pub(crate) fn expires_at(&self, window: u64) -> Micros {
        self.0
            .last()
            .map_or(Micros(0), |applied| applied.at.plus(window))
    }

    pub(crate) fn encode(&self, writer: &mut Writer) {
        writer.list(&self.0, |w, applied| {
            w.short(applied.request);
            w.near(applied.at);
            w.answer(&applied.answer);
        });
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let applied = reader.list(ONCE_MAX, |r| {
            Ok(AppliedRequest {
                request: r.short()?,
                at: r.instant()?,
                answer: r.answer()?,
            })
        })?;
        Ok(Self(applied))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Digest;
    use crate::time::MINUTE;

    #[test]
    fn g_once_the_last_eight_requests_are_kept_for_ten_minutes() {
        let request = |n: u128| DigestPair {
            current: Digest(n << 64),
            previous: None,
        };
        let mut once = Once::default();
        for n in 0..9 {
            once.note(&request(n), &Answer::allow(), Micros(0));
        }
        let window = 10 * MINUTE;
        assert!(once.answer(&request(0), window, Micros(1)).is_none());
        assert!(
            once.answer(&request(1), window, Micros(window - 1))
                .is_some()
        );
        assert!(once.answer(&request(1), window, Micros(window)).is_none());
    }

    crate::scenarios::scenarios! {
        #[test]
        fn g_once_a_retry_changes_nothing_and_gets_the_same_answer() proves "G-ONCE" {"
            0      fail d=d1 id=r1     => allow
            1s     fail d=d1 id=r1     => allow nothing
            2s     fail d=d1 id=r2     => soft L1 15s G-THRESHOLD
            5s     fail d=d1 id=r2     => soft L1 15s G-THRESHOLD nothing
            9m     fail d=d1 id=r2     => soft L1 15s nothing
            10m2s  check d=d1 id=r2    => allow
        "}

        #[test]
        fn g_once_a_check_that_took_the_cooldown_may_be_retried() proves "G-ONCE" {"
            0 x20/40m fail d=slow      => *
            14h    check d=slow id=c1  => soft L3 300s G-BUDGET
            14h5s  check d=slow id=c1  => soft L3 300s G-BUDGET nothing
            14h6s  check d=slow id=c2  => allow
        "}

        #[test]
        fn g_once_belongs_to_the_command_and_the_account() proves "G-ONCE" {"
            0      check d=d1 id=r1    => allow
            0      fail d=d1 id=r1     => allow score:K4+3
            1s     fail a=a2 d=d1 id=r1 => allow score:K4+3
            2s     fail d=d1 id=r1     => allow nothing
        "}
    }
}
