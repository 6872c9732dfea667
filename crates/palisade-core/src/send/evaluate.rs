//! One send from its records to its answer, and the verification of sends by a success.

use std::borrow::Cow;

use super::policy::SendPolicy;
use super::range::RANGES_OF_ONE;
use super::records::range::RangeCounts;
use super::records::{SendDestination, SendRange, SendRecords};
use super::rules::{account, destination, ip, pause, range};
use super::signals::SendSignals;
use crate::decision::Outcome;
use crate::guard::{Answer, Candidate};
use crate::time::Micros;

/// One send in progress.
#[derive(Clone, Copy, Debug)]
pub struct SendCommand<'a> {
    /// Settings.
    pub policy: &'a SendPolicy,
    /// Time for which a request id is remembered (G-ONCE).
    pub once_window: u64,
    /// The send.
    pub signals: &'a SendSignals,
    /// Records of the send.
    pub records: &'a SendRecords,
    /// Counts of each of its ranges over all shards.
    pub counts: &'a [RangeCounts],
    /// The instant.
    pub now: Micros,
}

/// One rule: its id, and the function that gives its answer.
pub type Step = (&'static str, fn(&SendCommand<'_>) -> Option<Candidate>);

/// The rules of sends. Tests measure the effect of a rule by leaving it out of a copy.
#[derive(Clone, Debug)]
pub struct Rules(pub Cow<'static, [Step]>);

/// All rules, in force. S-SPEND is a limit of the policy and is asked last, by the engine.
pub static RULES: Rules = Rules(Cow::Borrowed(&[
    ("S-PAUSE", pause::judge),
    ("S-DEST", destination::judge),
    ("S-ACCOUNT", account::judge),
    ("S-IP", ip::judge),
    ("S-RANGE", range::judge),
]));

/// Result of judging a send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendEvaluation {
    /// The answer.
    pub answer: Answer,
    /// The records with the send counted; `None` if nothing changes, because the send is refused
    /// or was counted before.
    pub records: Option<Box<SendRecords>>,
    /// Whether the same request was counted before (G-ONCE).
    pub replayed: bool,
    /// Whether the answer would be another one if the account knew the device.
    pub depends_on_device: bool,
}

/// Judges one send. Pure: the same records, signals and instant give the same result.
///
/// `sends_anyway` is true in shadow mode: the code goes out whatever the answer is, and counts.
#[must_use]
pub fn evaluate(command: &SendCommand<'_>, sends_anyway: bool) -> SendEvaluation {
    RULES.evaluate(command, sends_anyway)
}

impl Rules {
    /// Judges one send by these rules.
    #[must_use]
    pub fn evaluate(&self, command: &SendCommand<'_>, sends_anyway: bool) -> SendEvaluation {
        let sent = &command.records.destination;
        let is_repeated = command
            .signals
            .request
            .is_some_and(|id| sent.has_sent(&id, command.once_window, command.now));
        if is_repeated {
            // Only a send that was allowed is counted.
            return SendEvaluation {
                answer: Answer::allow(),
                records: None,
                replayed: true,
                depends_on_device: false,
            };
        }
        let steps = self.0.iter().filter_map(|(_, judge)| judge(command));
        let yields =
            |one: &Candidate| command.signals.challenge_passed && one.outcome == Outcome::SoftBlock;
        let answer = Answer::of(steps.filter(|one| !yields(one)).collect());
        let is_sent = sends_anyway || answer.outcome == Outcome::Allow;
        SendEvaluation {
            depends_on_device: destination::depends_on_device(command),
            records: is_sent.then(|| Box::new(count(command))),
            replayed: false,
            answer,
        }
    }
}

/// The records with one more send.
fn count(command: &SendCommand<'_>) -> SendRecords {
    let SendCommand {
        policy,
        signals,
        now,
        ..
    } = *command;
    let mut records = command.records.clone();
    let mut counted = [false; RANGES_OF_ONE];
    for (index, range) in signals.ranges.iter().enumerate() {
        let window = policy.range.window;
        let before = records.network.counted(&range.digest, window, now);
        // One address must not make a range look pumped.
        if before < policy.range.per_prefix as usize {
            counted[index] = true;
            records.ranges[index].send(now);
        }
    }
    let ranges = signals.ranges.iter().map(|one| one.digest);
    let counting = ranges.clone().zip(counted);
    let counting = counting.filter_map(|(range, is_counted)| is_counted.then_some(range));
    let destination = &signals.destination;
    records.network.send(destination, counting, now);
    records.account.send(destination.current, now);
    let ranges = ranges.map(|range| range.current).collect();
    let request = signals.request.as_ref();
    records.destination.send(request, counted, ranges, now);
    records
}

/// Counts a success of a destination: its recent sends are verified, and its pause is that of a
/// first send again. False if nothing was sent to it.
#[must_use]
pub fn verify(
    policy: &SendPolicy,
    destination: &mut SendDestination,
    ranges: &mut [SendRange; RANGES_OF_ONE],
    now: Micros,
) -> bool {
    if !destination.was_sent_to() {
        return false;
    }
    let verified = destination.verify(policy.range.verify_within, now);
    for (range, instants) in ranges.iter_mut().zip(verified) {
        for at in instants {
            range.verify(at, now);
        }
    }
    true
}
