//! Login and OTP commands: load the records, evaluate the rules, commit by compare-and-swap.

use palisade_core::Digest;
use palisade_core::decision::{KeyKind, Outcome};
use palisade_core::failure::SeenBlock;
use palisade_core::guard::records::sets::Short;
use palisade_core::guard::{
    Account, ActiveBlock, Attempt, Device, Evaluation, Network, Policies, Records, Signals,
    evaluate,
};
use palisade_core::lockout::Lockout;
use palisade_core::policy::Settings;
use palisade_core::record::{Flow, RecordKind, RecordWrite};
use palisade_core::send::SendAccount;
use palisade_core::time::Micros;

use super::command::{CommittedCommand, GuardCommand, GuardNotes, SeenHard, Unusable};
use super::commit::{JudgedRecords, Unreadable, commit_judged};
use super::records::CommandRecords;
use super::turns::{Pairs, Turn};

const ACCOUNT: usize = 0;
const NETWORK: usize = 1;
const DEVICE: usize = 2;
const LOCKOUT: usize = 3;
const SENDS: usize = 4;

impl GuardCommand<'_> {
    pub(super) async fn attempt(
        &self,
        pairs: &Pairs,
        turn: &mut Turn<'_>,
    ) -> Result<CommittedCommand, Unusable> {
        let judge = |loaded: &CommandRecords, _| {
            let found = self.evaluated(loaded)?;
            Ok(JudgedRecords {
                writes: self.writes(loaded, &found),
                is_refused: found.answer.outcome != Outcome::Allow,
                outcome: found,
            })
        };
        let committed = commit_judged(self.calls, pairs, turn, judge).await?;
        Ok(self.applied(&committed.before, &committed.written, committed.outcome))
    }

    fn evaluated(&self, loaded: &CommandRecords) -> Result<Evaluation, Unreadable> {
        let settings = &self.policy.settings;
        let policies = Policies {
            guard: &settings.guard,
            lockout: &settings.lockout,
        };
        let attempt = self.op.attempt().unwrap_or(Attempt::Check);
        let (flow, records) = (self.op.flow(), decoded(loaded)?);
        Ok(evaluate(
            policies,
            flow,
            attempt,
            self.signals,
            records,
            loaded.now,
        ))
    }

    fn writes(&self, loaded: &CommandRecords, found: &Evaluation) -> Vec<RecordWrite> {
        writes(&self.policy.settings, self.op.flow(), loaded, found)
    }

    fn applied(
        &self,
        loaded: &CommandRecords,
        writes: &[RecordWrite],
        found: Evaluation,
    ) -> CommittedCommand {
        let now = loaded.now;
        let mut decision = found.answer.decision(now);
        decision.revisions = loaded.revisions(writes);
        // The record of sends is read beside the others, and no rule of an attempt judges by it.
        decision
            .revisions
            .retain(|(kind, _)| *kind != RecordKind::SendAccount.name());
        let is_hard = decision.outcome == Outcome::HardBlock;
        let lockout = &found.records.lockout;
        let has_name = self.signals.username.is_some();
        CommittedCommand {
            seen: match is_hard {
                true => seen_blocks(self.signals, &found.records, now),
                false => Vec::new(),
            },
            sent_to: self.sent_to(loaded),
            standing: has_name.then(|| lockout.standing(&self.policy.settings.lockout, now)),
            decision,
            notes: GuardNotes {
                issued: found.issued,
                locked: found.locked,
                replayed: found.replayed,
            },
        }
    }
}

impl GuardCommand<'_> {
    /// The destination that the account was last sent a code to. A record that cannot be read is
    /// told by the next send.
    fn sent_to(&self, loaded: &CommandRecords) -> Option<Digest> {
        let sends = loaded.record(SENDS, SendAccount::decode).ok()?;
        sends.last_destination(loaded.now)
    }
}

fn seen_blocks(signals: &Signals, records: &Records, now: Micros) -> Vec<SeenHard> {
    let account = records.account.active_blocks(now).into_iter();
    let network = records.network.active_blocks(now);
    let device = records.device.active_blocks(now);
    let blocks = account.chain(network).chain(device);
    blocks
        .filter_map(|block| seen_hard(signals, &block, now))
        .collect()
}

fn decoded(loaded: &CommandRecords) -> Result<Records, Unreadable> {
    Ok(Records {
        account: loaded.record(ACCOUNT, Account::decode)?,
        network: loaded.record(NETWORK, Network::decode)?,
        device: loaded.record(DEVICE, Device::decode)?,
        lockout: loaded.record(LOCKOUT, Lockout::decode)?,
    })
}

fn writes(
    settings: &Settings,
    flow: Flow,
    loaded: &CommandRecords,
    found: &Evaluation,
) -> Vec<RecordWrite> {
    let (guard, records, changed) = (&settings.guard, &found.records, found.changed);
    let Some(policy) = guard.flow(flow) else {
        return Vec::new();
    };
    let mut writes = Vec::new();
    if changed.account {
        let until = records.account.expires_at(guard, policy);
        writes.extend(loaded.writes(ACCOUNT, records.account.encode(), until));
    }
    if changed.network {
        let until = records.network.expires_at(guard, &policy.correlation);
        writes.extend(loaded.writes(NETWORK, records.network.encode(), until));
    }
    if changed.device {
        let until = records.device.expires_at(guard, &policy.correlation);
        writes.extend(loaded.writes(DEVICE, records.device.encode(), until));
    }
    if changed.lockout {
        let until = records.lockout.expires_at(&settings.lockout);
        writes.extend(loaded.writes(LOCKOUT, records.lockout.encode(), until));
    }
    writes
}

/// An active HARD block in the form that is remembered for outages; `None` if it cannot be told
/// whom it binds. A network record names its members by half a digest: those of this command are
/// completed, others are remembered when their own commands come.
pub(super) fn seen_hard(signals: &Signals, block: &ActiveBlock, now: Micros) -> Option<SeenHard> {
    let own = |digest: Digest| {
        let half = Short::of(digest).hex();
        (block.member.as_deref() == Some(half.as_str())).then_some(digest)
    };
    let member = match block.key {
        KeyKind::PrefixAgent => Some(own(signals.user_agent.current)?),
        KeyKind::PrefixDevice => Some(own(signals.fingerprint?.digest.current)?),
        _ => block.member.as_deref().and_then(Digest::from_hex),
    };
    (block.outcome == Outcome::HardBlock).then(|| SeenHard {
        kind: block.key,
        member,
        block: SeenBlock {
            rule: block.rule,
            level: block.level,
            until: block.until,
        },
        left_us: block.until.since(now),
    })
}
