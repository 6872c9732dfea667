//! Login and OTP commands.

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
use palisade_core::record::{Flow, RecordKey, RecordWrite};
use palisade_core::rule::Rule;
use palisade_core::time::Micros;
use palisade_store::{Commit, Store};

use super::command::{Applied, Command, GuardNotes, RETRIES_MAX, SeenHard, Unusable};
use super::records::{Loaded, load, unreadable};

const ACCOUNT: usize = 0;
const NETWORK: usize = 1;
const DEVICE: usize = 2;
const LOCKOUT: usize = 3;

impl<S: Store> Command<'_, S> {
    pub(super) async fn attempt(&self) -> Result<Applied, Unusable> {
        let Self {
            calls,
            policy,
            op,
            signals,
            keys,
            ..
        } = *self;
        let settings = &policy.settings;
        let policies = Policies {
            guard: &settings.guard,
            lockout: &settings.lockout,
        };
        let attempt = op.attempt().unwrap_or(Attempt::Check);
        let mut part: Option<(Loaded, Vec<RecordWrite>)> = None;
        for _ in 0..=RETRIES_MAX {
            let calls = calls.anew();
            let pairs = [keys.account, Some(keys.network), keys.device, keys.lockout];
            let mut loaded = load(calls, pairs).await?;
            if let Some((before, written)) = &part {
                loaded.resume(before, written);
            }
            let records = match decoded(&loaded) {
                Ok(records) => records,
                Err(failed) => return Err(unreadable(calls, failed).await),
            };
            let now = loaded.now;
            let found = evaluate(policies, op.flow(), attempt, signals, records, now);
            let mut wanted = writes(settings, op.flow(), &loaded, &found);
            let mut written = part.as_ref().map_or_else(Vec::new, |(_, w)| w.clone());
            wanted.retain(|write| !written.iter().any(|done| done.key == write.key));
            let ended = match wanted.is_empty() {
                true => Commit::Done,
                false => calls.make(|store| store.commit(&wanted)).await?,
            };
            match ended {
                Commit::Done => {
                    written.extend(wanted);
                    return Ok(applied(signals, &loaded, &written, found));
                }
                Commit::Part(done) => {
                    written.extend(wanted.into_iter().take(done));
                    part = Some((loaded, written));
                }
                Commit::Conflict => {}
            }
        }
        Err(Unusable::Record(Rule::F_CONFLICT))
    }
}

type Unreadable = (RecordKey, palisade_core::guard::DecodeError);

fn decoded(loaded: &Loaded) -> Result<Records, Unreadable> {
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
    loaded: &Loaded,
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

fn applied(
    signals: &Signals,
    loaded: &Loaded,
    writes: &[RecordWrite],
    found: Evaluation,
) -> Applied {
    let now = loaded.now;
    let mut decision = found.answer.decision(now);
    decision.revisions = loaded.revisions(writes);
    let seen = if decision.outcome == Outcome::HardBlock {
        let records = &found.records;
        let blocks = records.account.active_blocks(now).into_iter();
        blocks
            .chain(records.network.active_blocks(now))
            .chain(records.device.active_blocks(now))
            .filter_map(|block| seen_hard(signals, &block, now))
            .collect()
    } else {
        Vec::new()
    };
    Applied {
        decision,
        notes: GuardNotes {
            issued: found.issued,
            locked: found.locked,
            replayed: found.replayed,
        },
        seen,
    }
}

/// A running HARD block of the records, if it can be told whom it binds. Members of
/// the network record are known by half a digest only: those of this very command
/// are recognised, others are met again by their own commands.
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
