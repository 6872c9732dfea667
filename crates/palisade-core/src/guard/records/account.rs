//! The account record: its score, its devices and sessions, its budget and the
//! history that the rules look back on.

use crate::key::{Digest, DigestPair};
use crate::rule::Rule;
use crate::time::{DAY, Micros};

use super::budget::Budget;
use super::codec::{DecodeError, Reader, Writer, pack};
use super::countries::Countries;
use super::once::Once;
use super::pending::PendingAttempts;
use super::sets::{Short, SlidingSet, Watch, keep_recent};
use super::unknown::UnknownOutcomes;
use crate::guard::ladder::{Issuer, KeyState};
use crate::guard::policy::{FlowPolicy, GuardPolicy, HISTORY_MAX, MICRO_CAP_MAX};

/// Newest version of the encoding. Version 2 added pending attempts. Version 3 is version 2 with
/// an answer for which older readers have no code: the new number makes them leave the record
/// alone, instead of taking it for a corrupt one (F-VERSION). Version 4 adds unknown outcomes, and
/// version 5 countries and the answer about them; each is written only while there are any.
const VERSION: u8 = 5;
/// Version of a record with unknown outcomes and without countries.
const VERSION_UNKNOWN: u8 = 4;
/// Version of a record with an answer that readers of version 2 have no code for.
const VERSION_CAPTCHA: u8 = 3;
/// Version of a record that every reader of pending attempts can read.
const VERSION_PENDING: u8 = 2;

/// Most devices known to the account, or asserted by the host to be.
pub const FAMILIAR_MAX: usize = 10;
/// Most other devices with an entry. They have places of their own: if they shared places with
/// known devices, a stranger's answers would reveal how many devices the account knows
/// (A-UNIFORM).
pub const STRANGERS_MAX: usize = 10;
/// Most session hashes of an account.
pub const SESSIONS_MAX: usize = 20;
/// Most SOFT blocks that are remembered, half of them for known devices and half for others.
const SOFT_ISSUES_MAX: usize = 2 * HISTORY_MAX;
/// Time for which a stranger's entry is kept although it is empty.
const STRANGER_IDLE: u64 = DAY;

/// Whether the account is familiar with a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kin {
    /// The device is known by a success, or the host asserts it.
    Familiar,
    /// Any other device.
    Stranger,
}

/// One device of an account (K5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceEntry {
    pub(in crate::guard) id: Digest,
    pub(in crate::guard) kin: Kin,
    /// True if a success proved the device.
    pub(in crate::guard) known: bool,
    pub(in crate::guard) last_seen: Micros,
    pub(in crate::guard) key: KeyState,
    /// Failures of the device while it was known, for the micro-cap; oldest first.
    pub(in crate::guard) failures: Vec<Micros>,
}

impl DeviceEntry {
    /// Digest of the device.
    #[must_use]
    pub const fn id(&self) -> Digest {
        self.id
    }

    /// True if a success proved the device.
    #[must_use]
    pub const fn is_known(&self) -> bool {
        self.known
    }

    /// The state of K5.
    #[must_use]
    pub const fn key(&self) -> &KeyState {
        &self.key
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Session {
    id: Digest,
    issued: Micros,
}

/// A SOFT block or answer that was issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::guard) struct SoftIssue {
    pub(in crate::guard) at: Micros,
    pub(in crate::guard) issuer: Issuer,
}

/// The account's previous failure in this flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::guard) struct LastFailure {
    pub(in crate::guard) at: Micros,
    pub(in crate::guard) missing: bool,
}

/// The record of one account in one flow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    pub(in crate::guard) touched: Micros,
    /// Score and block of the account (K4).
    pub(in crate::guard) key: KeyState,
    pub(in crate::guard) devices: Vec<DeviceEntry>,
    sessions: Vec<Session>,
    pub(in crate::guard) budget: Budget,
    /// SOFT blocks that were issued, oldest first (G-EQUILIBRIUM).
    pub(in crate::guard) soft_blocks: Vec<SoftIssue>,
    pub(in crate::guard) last_failure: Option<LastFailure>,
    /// Unknown devices seen lately (G-ROTATION, G-FLOOD).
    pub(in crate::guard) recent: SlidingSet,
    pub(in crate::guard) rotation_watch: Watch,
    pub(in crate::guard) flood_watch: Watch,
    /// Largest metric of the rotation under way that was counted as an episode, at most its
    /// threshold; 0 without one. The next rotation counts once the metric has fallen below it.
    pub(in crate::guard) rotating: u8,
    /// Instants at which rotations were found (G-ROTATION-REPEAT).
    pub(in crate::guard) episodes: Vec<Micros>,
    pub(in crate::guard) once: Once,
    /// Attempts that were let through and whose outcome is still pending.
    pub(in crate::guard) pending: PendingAttempts,
    /// Outcomes that were reported as unknown (G-UNKNOWN).
    pub(in crate::guard) unknown: UnknownOutcomes,
    /// Countries of earlier successes (P-GUARD).
    pub(in crate::guard) countries: Countries,
}

impl Account {
    /// The state of K4.
    #[must_use]
    pub const fn key(&self) -> &KeyState {
        &self.key
    }

    /// The failure budget.
    #[must_use]
    pub const fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Every device with an entry.
    #[must_use]
    pub fn devices(&self) -> &[DeviceEntry] {
        &self.devices
    }

    /// The device's entry, if it has one.
    #[must_use]
    pub fn device(&self, who: &DigestPair) -> Option<&DeviceEntry> {
        self.devices.iter().find(|device| who.matches(device.id))
    }

    /// True if an earlier success proved the device.
    #[must_use]
    pub fn knows(&self, policy: &GuardPolicy, who: &DigestPair, now: Micros) -> bool {
        self.device(who)
            .is_some_and(|device| device.known && now.since(device.last_seen) < policy.familiar_for)
    }

    /// True if the session was issued to this account and not revoked.
    #[must_use]
    pub fn has_session(&self, policy: &GuardPolicy, session: &DigestPair, now: Micros) -> bool {
        self.sessions
            .iter()
            .any(|kept| session.matches(kept.id) && now.since(kept.issued) < policy.familiar_for)
    }

    /// Binds a session to the account; the oldest leaves when there are too many.
    pub fn add_session(&mut self, session: &DigestPair, now: Micros) {
        self.sessions.retain(|kept| !session.matches(kept.id));
        if self.sessions.len() >= SESSIONS_MAX {
            self.sessions.remove(0);
        }
        self.sessions.push(Session {
            id: session.current,
            issued: now,
        });
        self.touched = now;
    }

    /// Revokes a session; false if it was not there.
    pub fn revoke_session(&mut self, session: &DigestPair) -> bool {
        let before = self.sessions.len();
        self.sessions.retain(|kept| !session.matches(kept.id));
        self.sessions.len() != before
    }

    /// Revokes every session; returns how many there were.
    pub fn revoke_all_sessions(&mut self) -> usize {
        std::mem::take(&mut self.sessions).len()
    }

    /// The entry of a device, created if there is room for it. A stranger takes only the place of
    /// another stranger without a running block.
    pub(in crate::guard) fn enter(
        &mut self,
        who: &DigestPair,
        kin: Kin,
        now: Micros,
    ) -> Option<&mut DeviceEntry> {
        let found = self.devices.iter().position(|d| who.matches(d.id));
        let index = match found {
            Some(index) if kin == Kin::Stranger || self.devices[index].kin == kin => index,
            Some(index) => {
                // A stranger that has become familiar moves to a place of its new kind.
                let entry = self.devices.remove(index);
                self.admit(DeviceEntry { kin, ..entry }, now)?
            }
            None => self.admit(DeviceEntry::new(who.current, kin, now), now)?,
        };
        let entry = self.devices.get_mut(index)?;
        // After a rotation of the secret, the entry continues under the new digest.
        entry.id = who.current;
        entry.last_seen = now;
        Some(entry)
    }

    fn admit(&mut self, entry: DeviceEntry, now: Micros) -> Option<usize> {
        let kin = entry.kin;
        let max = match kin {
            Kin::Familiar => FAMILIAR_MAX,
            Kin::Stranger => STRANGERS_MAX,
        };
        if self.devices.iter().filter(|d| d.kin == kin).count() >= max {
            let victim = self.idle_longest(kin, now)?;
            self.devices.remove(victim);
        }
        self.devices.push(entry);
        Some(self.devices.len() - 1)
    }

    fn idle_longest(&self, kin: Kin, now: Micros) -> Option<usize> {
        let blocked = |device: &DeviceEntry| device.key.running(now).is_some();
        self.devices
            .iter()
            .enumerate()
            .filter(|(_, d)| d.kin == kin && (kin == Kin::Familiar || !blocked(d)))
            // Devices with a block, and those that a success proved, are dropped last.
            .min_by_key(|(_, d)| (blocked(d), d.known, d.last_seen))
            .map(|(index, _)| index)
    }

    /// Drops state that no rule can see any more.
    pub(in crate::guard) fn prune(&mut self, guard: &GuardPolicy, flow: &FlowPolicy, now: Micros) {
        let sets = &flow.correlation;
        self.key.prune(guard, guard.decay.account, now);
        for device in &mut self.devices {
            device.prune(guard, flow, now);
        }
        self.devices.retain(|device| device.matters(now));
        self.sessions
            .retain(|session| now.since(session.issued) < guard.familiar_for);
        self.budget.prune(&flow.budget, now);
        self.prune_soft_blocks(flow, now);
        let repeat = &sets.rotation_repeat;
        let episodes = (repeat.threshold as usize).min(HISTORY_MAX);
        keep_recent(&mut self.episodes, repeat.window, episodes, now);
        let window = flow.scores.repeat_missing_window;
        self.last_failure = self
            .last_failure
            .filter(|failure| now.since(failure.at) <= window);
        self.prune_recent(flow, now);
        let live = self.recent.live(sets.rotation.window, now);
        self.end_rotation_below(live);
        self.rotation_watch.prune(sets.watch_window, now);
        self.flood_watch.prune(sets.watch_window, now);
        self.once.prune(guard.once_window, now);
        self.pending.prune(flow.pending_ttl, now);
        self.unknown.prune(now);
        self.countries.prune(guard.familiar_for, now);
        self.touched = now;
    }

    /// Keeps as many issues of each issuer as the rule asks for: strangers' issues must not push
    /// out the owner's, which alone count in the owner's lane.
    fn prune_soft_blocks(&mut self, flow: &FlowPolicy, now: Micros) {
        let window = flow.equilibrium.window;
        self.soft_blocks.retain(|soft| now.since(soft.at) < window);
        let kept = (flow.equilibrium.soft_blocks as usize).min(HISTORY_MAX);
        for issuer in [Issuer::Familiar, Issuer::Stranger] {
            let of = |soft: &&SoftIssue| soft.issuer == issuer;
            let mut surplus = self
                .soft_blocks
                .iter()
                .filter(of)
                .count()
                .saturating_sub(kept);
            self.soft_blocks.retain(|soft| {
                let leaves = soft.issuer == issuer && surplus > 0;
                surplus -= usize::from(leaves);
                !leaves
            });
        }
    }

    /// Ends the rotation's episode if the metric has fallen below the value that was counted.
    pub(in crate::guard) fn end_rotation_below(&mut self, live: usize) {
        if live < usize::from(self.rotating) {
            self.rotating = 0;
        }
    }

    pub(in crate::guard) fn prune_recent(&mut self, flow: &FlowPolicy, now: Micros) {
        let sets = &flow.correlation;
        let young = sets.flood.window.max(sets.new_window);
        self.recent.0.retain(|member| {
            now.since(member.last) < sets.rotation.window || now.since(member.first) < young
        });
    }

    /// The instant from which nothing in the record matters any more.
    #[must_use]
    pub fn expires_at(&self, guard: &GuardPolicy, flow: &FlowPolicy) -> Micros {
        let sets = &flow.correlation;
        let after = |at: Option<&Micros>, time: u64| at.map_or(Micros(0), |at| at.plus(time));
        let young = sets
            .rotation
            .window
            .max(sets.flood.window)
            .max(sets.new_window);
        let failure = self.last_failure.map(|failure| failure.at);
        let window = flow.scores.repeat_missing_window.saturating_add(1);
        [
            self.key.expires_at(guard, guard.decay.account),
            self.budget.expires_at(&flow.budget),
            after(
                self.soft_blocks.last().map(|soft| &soft.at),
                flow.equilibrium.window,
            ),
            after(self.episodes.last(), sets.rotation_repeat.window),
            after(failure.as_ref(), window),
            after(self.recent.0.last().map(|m| &m.last), young),
            after(self.rotation_watch.0.as_ref(), sets.watch_window),
            after(self.flood_watch.0.as_ref(), sets.watch_window),
            after(self.sessions.last().map(|s| &s.issued), guard.familiar_for),
            self.once.expires_at(guard.once_window),
            self.pending.expires_at(flow.pending_ttl),
            self.unknown.expires_at(),
            self.countries.expires_at(guard.familiar_for),
        ]
        .into_iter()
        .chain(self.devices.iter().map(|d| d.expires_at(guard, flow)))
        .max()
        .unwrap_or_default()
    }

    /// The record's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        // The oldest version that can hold the record: nodes of older versions can then still read
        // it.
        let version = if !self.countries.is_empty() || self.once.names(Rule::P_GUARD) {
            VERSION
        } else if !self.unknown.is_empty() {
            VERSION_UNKNOWN
        } else if self.once.names(Rule::A_CAPTCHA) {
            VERSION_CAPTCHA
        } else {
            VERSION_PENDING
        };
        let mut writer = Writer::new(version, self.touched);
        writer.key_state(&self.key);
        writer.list(&self.devices, |w, device| device.encode(w));
        writer.list(&self.sessions, |w, session| {
            w.digest(session.id);
            w.far(session.issued);
        });
        self.budget.encode(&mut writer);
        writer.list(&self.soft_blocks, |w, soft| w.near(soft.at));
        writer.byte(self.rotating);
        writer.byte(pack(&[
            self.last_failure.is_some(),
            self.last_failure.is_some_and(|failure| failure.missing),
        ]));
        if let Some(failure) = self.last_failure {
            writer.near(failure.at);
        }
        writer.set(&self.recent);
        writer.watch(self.rotation_watch);
        writer.watch(self.flood_watch);
        writer.times(&self.episodes);
        self.once.encode(&mut writer);
        self.pending.encode(&mut writer);
        // The issuers stand apart from their blocks: version 1 has none, and its fields keep their
        // places.
        let familiar = |soft: &SoftIssue| soft.issuer == Issuer::Familiar;
        writer.list(&self.soft_blocks, |w, soft| {
            w.byte(u8::from(familiar(soft)))
        });
        if version >= VERSION_UNKNOWN {
            self.unknown.encode(&mut writer);
        }
        if version >= VERSION {
            self.countries.encode(&mut writer);
        }
        writer.finish()
    }

    /// Reads what [`Account::encode`] wrote.
    ///
    /// # Errors
    /// Bytes that make no sense, or of a newer version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes, VERSION)?;
        let r = &mut reader;
        let mut account = Self {
            touched: r.base(),
            key: r.key_state()?,
            devices: r.list(FAMILIAR_MAX + STRANGERS_MAX, DeviceEntry::decode)?,
            sessions: r.list(SESSIONS_MAX, |r| {
                Ok(Session {
                    id: r.digest()?,
                    issued: r.instant()?,
                })
            })?,
            budget: Budget::decode(r)?,
            soft_blocks: r.list(SOFT_ISSUES_MAX, SoftIssue::decode)?,
            ..Self::default()
        };
        account.rotating = r.byte()?;
        let flags = r.byte()?;
        if flags & 1 != 0 {
            account.last_failure = Some(LastFailure {
                at: r.instant()?,
                missing: flags & 2 != 0,
            });
        }
        account.recent = r.set()?;
        account.rotation_watch = r.watch()?;
        account.flood_watch = r.watch()?;
        account.episodes = r.times(HISTORY_MAX)?;
        account.once = Once::decode(r)?;
        if r.version() >= VERSION_PENDING {
            account.pending = PendingAttempts::decode(r)?;
            account.name_issuers(r)?;
        }
        if r.version() >= VERSION_UNKNOWN {
            account.unknown = UnknownOutcomes::decode(r)?;
        }
        if r.version() >= VERSION {
            account.countries = Countries::decode(r)?;
        }
        reader.finish()?;
        Ok(account)
    }

    fn name_issuers(&mut self, reader: &mut Reader<'_>) -> Result<(), DecodeError> {
        let familiar = reader.list(SOFT_ISSUES_MAX, Reader::byte)?;
        if familiar.len() != self.soft_blocks.len() {
            return Err(DecodeError::Corrupt);
        }
        for (soft, familiar) in self.soft_blocks.iter_mut().zip(familiar) {
            if familiar == 1 {
                soft.issuer = Issuer::Familiar;
            }
        }
        Ok(())
    }
}

impl SoftIssue {
    /// The first version did not record the issuer of a SOFT block: it is taken for a stranger's,
    /// as most are.
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            at: reader.instant()?,
            issuer: Issuer::Stranger,
        })
    }
}

impl DeviceEntry {
    const fn new(id: Digest, kin: Kin, now: Micros) -> Self {
        Self {
            id,
            kin,
            known: false,
            last_seen: now,
            key: KeyState::BLANK,
            failures: Vec::new(),
        }
    }

    pub(in crate::guard) fn is(&self, who: Short) -> bool {
        Short::of(self.id) == who
    }

    fn prune(&mut self, guard: &GuardPolicy, flow: &FlowPolicy, now: Micros) {
        self.key.prune(guard, guard.decay.device, now);
        let cap = (flow.budget.micro_cap as usize).min(MICRO_CAP_MAX);
        keep_recent(&mut self.failures, flow.budget.epoch, cap, now);
        self.known &= now.since(self.last_seen) < guard.familiar_for;
    }

    fn matters(&self, now: Micros) -> bool {
        self.known
            || !self.key.is_blank()
            || !self.failures.is_empty()
            || now.since(self.last_seen) < STRANGER_IDLE
    }

    fn expires_at(&self, guard: &GuardPolicy, flow: &FlowPolicy) -> Micros {
        let idle = if self.known {
            guard.familiar_for
        } else {
            STRANGER_IDLE
        };
        let failures = self
            .failures
            .last()
            .map_or(Micros(0), |at| at.plus(flow.budget.epoch));
        self.key
            .expires_at(guard, guard.decay.device)
            .max(failures)
            .max(self.last_seen.plus(idle))
    }

    fn encode(&self, writer: &mut Writer) {
        writer.digest(self.id);
        writer.byte(pack(&[self.kin == Kin::Familiar, self.known]));
        writer.far(self.last_seen);
        writer.key_state(&self.key);
        writer.times(&self.failures);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let id = reader.digest()?;
        let flags = reader.byte()?;
        Ok(Self {
            id,
            kin: if flags & 1 == 0 {
                Kin::Stranger
            } else {
                Kin::Familiar
            },
            known: flags & 2 != 0,
            last_seen: reader.instant()?,
            key: reader.key_state()?,
            failures: reader.times(MICRO_CAP_MAX)?,
        })
    }
}

#[cfg(test)]
impl Account {
    /// An account whose lists are all as long as they can get.
    pub(in crate::guard) fn full(familiar: usize, strangers: usize, sessions: usize) -> Self {
        use super::bounds::{FAR_OFF, full_key, full_once, full_set, full_watch};
        let device = |kin| DeviceEntry {
            id: Digest(u128::MAX),
            kin,
            known: true,
            last_seen: FAR_OFF,
            key: full_key(),
            failures: match kin {
                Kin::Familiar => vec![FAR_OFF; MICRO_CAP_MAX],
                Kin::Stranger => Vec::new(),
            },
        };
        let mut devices = vec![device(Kin::Familiar); familiar];
        devices.resize(familiar + strangers, device(Kin::Stranger));
        let session = Session {
            id: Digest(u128::MAX),
            issued: FAR_OFF,
        };
        Self {
            touched: Micros(0),
            key: full_key(),
            devices,
            sessions: vec![session; sessions],
            budget: Budget::full(),
            soft_blocks: vec![
                SoftIssue {
                    at: FAR_OFF,
                    issuer: Issuer::Familiar,
                };
                SOFT_ISSUES_MAX
            ],
            last_failure: Some(LastFailure {
                at: FAR_OFF,
                missing: true,
            }),
            recent: full_set(),
            rotation_watch: full_watch(),
            flood_watch: full_watch(),
            rotating: u8::MAX,
            episodes: vec![FAR_OFF; HISTORY_MAX],
            once: full_once(),
            pending: PendingAttempts::full(),
            unknown: UnknownOutcomes::full(),
            countries: Countries::full(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::{KeyKind, Outcome};
    use crate::guard::aggregate::{Answer, Candidate};

    fn soft(at: u64, issuer: Issuer) -> SoftIssue {
        SoftIssue {
            at: Micros(at),
            issuer,
        }
    }

    #[test]
    fn a_record_of_the_first_version_is_still_read_and_a_newer_one_is_not() {
        let account = Account {
            touched: Micros(DAY),
            rotating: 3,
            soft_blocks: vec![soft(DAY - 5, Issuer::Stranger)],
            ..Account::default()
        };
        let mut bytes = account.encode();
        assert_eq!(Account::decode(&bytes), Ok(account.clone()));
        bytes[0] = VERSION + 1;
        assert_eq!(Account::decode(&bytes), Err(DecodeError::NewerVersion));
        // The first version ended before the pending attempts and the issuers.
        bytes[0] = 1;
        bytes.truncate(bytes.len() - 3);
        assert_eq!(Account::decode(&bytes), Ok(account));
    }

    #[test]
    fn f_version_an_answer_that_older_nodes_cannot_name_marks_its_record_as_newer() {
        let once = |rule| {
            let denial = Candidate {
                rule,
                key: KeyKind::Lockout,
                outcome: Outcome::Deny,
                level: None,
                retry_after: 1,
            };
            let request = DigestPair {
                current: Digest(1),
                previous: None,
            };
            let mut account = Account::default();
            let answer = Answer::of(vec![denial]);
            account.once.note(&request, &answer, Micros(DAY));
            account.touched = Micros(DAY);
            account
        };
        for (rule, version) in [
            (Rule::A_CAPTCHA, VERSION_CAPTCHA),
            (Rule::A_HARD, VERSION_PENDING),
        ] {
            let account = once(rule);
            let bytes = account.encode();
            assert_eq!(bytes[0], version);
            assert_eq!(Account::decode(&bytes), Ok(account));
        }
    }

    #[test]
    fn f_version_unknown_outcomes_mark_their_record_as_newer_for_as_long_as_they_are_kept() {
        let mut account = Account {
            touched: Micros(DAY),
            ..Account::default()
        };
        assert_eq!(account.encode()[0], VERSION_PENDING);
        account.unknown.note(Micros(DAY));
        let bytes = account.encode();
        assert_eq!(bytes[0], VERSION_UNKNOWN);
        assert_eq!(Account::decode(&bytes), Ok(account));
    }

    #[test]
    fn p_guard_countries_mark_their_record_as_newer_for_as_long_as_they_are_kept() {
        let mut account = Account {
            touched: Micros(DAY),
            ..Account::default()
        };
        let country = DigestPair {
            current: Digest(1 << 64),
            previous: None,
        };
        account.countries.succeeded(&country, Micros(DAY));
        let bytes = account.encode();
        assert_eq!(bytes[0], VERSION);
        assert_eq!(Account::decode(&bytes), Ok(account.clone()));
        account.countries.forget();
        assert_eq!(account.encode()[0], VERSION_PENDING);
    }

    #[test]
    fn strangers_soft_blocks_do_not_push_out_the_owners() {
        let mut account = Account {
            soft_blocks: vec![soft(DAY, Issuer::Familiar); 2],
            ..Account::default()
        };
        account
            .soft_blocks
            .extend([soft(DAY + 1, Issuer::Stranger); 5]);
        account.prune_soft_blocks(&FlowPolicy::login(), Micros(DAY + 2));
        let of = |issuer| {
            let mine = |soft: &&SoftIssue| soft.issuer == issuer;
            account.soft_blocks.iter().filter(mine).count()
        };
        assert_eq!((of(Issuer::Familiar), of(Issuer::Stranger)), (2, 3));
    }
}
