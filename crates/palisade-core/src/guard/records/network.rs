//! The network record: one prefix with its user agents and fingerprints.

use crate::guard::rules::watch::Reach;
use crate::key::DigestPair;
use crate::time::{DAY, Micros};

use super::codec::{DecodeError, Reader, Writer};
use super::once::Once;
use super::sets::{Short, SlidingSet, Watch};
use crate::guard::ladder::{Block, Class, KeyState};
use crate::guard::policy::{CHANGES_MAX, CorrelationPolicy, FINGERPRINTS_MAX, GuardPolicy};

const VERSION: u8 = 1;

/// Most user agents with an entry (K2).
pub const AGENTS_MAX: usize = 32;
/// Time for which a user agent's entry is kept although it is empty.
const AGENT_IDLE: u64 = DAY;

/// One user agent on the prefix (K2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    pub(in crate::guard) id: Short,
    pub(in crate::guard) last_seen: Micros,
    pub(in crate::guard) key: KeyState,
    /// The last unknown fingerprint seen with this user agent.
    last: Option<Short>,
    /// Fingerprints that followed a different one, oldest first.
    changes: Vec<(Short, Micros)>,
    watch: Watch,
}

/// One fingerprint on the prefix (K3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visitor {
    pub(in crate::guard) id: Short,
    first: Micros,
    last: Micros,
    pub(in crate::guard) block: Option<Block>,
}

/// The record of one prefix in one flow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    pub(in crate::guard) touched: Micros,
    /// Score and block of the prefix (K1).
    pub(in crate::guard) key: KeyState,
    pub(in crate::guard) agents: Vec<Agent>,
    pub(in crate::guard) visitors: Vec<Visitor>,
    /// Accounts tried from unknown devices (G-SPRAY).
    pub(in crate::guard) accounts: SlidingSet,
    pub(in crate::guard) spray_watch: Watch,
    pub(in crate::guard) once: Once,
}

impl Network {
    /// The state of K1.
    #[must_use]
    pub const fn key(&self) -> &KeyState {
        &self.key
    }

    /// The state of K2.
    #[must_use]
    pub fn agent(&self, user_agent: &DigestPair) -> Option<&KeyState> {
        let agent = self.agents.iter().find(|agent| agent.id.is(user_agent));
        agent.map(|agent| &agent.key)
    }

    /// The HARD block on K3 that binds now.
    #[must_use]
    pub fn visitor_block(&self, fingerprint: &DigestPair, now: Micros) -> Option<&Block> {
        self.visitors
            .iter()
            .find(|visitor| visitor.id.is(fingerprint))
            .and_then(|visitor| visitor.block.as_ref())
            .filter(|block| block.until > now && block.class == Class::Hard)
    }

    /// The user agent's entry, created if need be. If there is no room, the entry that has been
    /// idle longest is dropped, one under a running block last.
    pub(in crate::guard) fn enter_agent(
        &mut self,
        user_agent: &DigestPair,
        now: Micros,
    ) -> &mut Agent {
        let found = self.agents.iter().position(|a| a.id.is(user_agent));
        // Taken out of the list first, so that making room cannot drop it.
        let mut agent = match found {
            Some(index) => self.agents.remove(index),
            None => Agent::new(Short::of(user_agent.current)),
        };
        if self.agents.len() >= AGENTS_MAX {
            let idle = self
                .agents
                .iter()
                .enumerate()
                .min_by_key(|(_, a)| (a.key.running(now).is_some(), a.last_seen));
            if let Some((victim, _)) = idle {
                self.agents.remove(victim);
            }
        }
        // As if the idle entry had been dropped: the next fingerprint is no change.
        if now.since(agent.last_seen) >= AGENT_IDLE {
            agent.last = None;
        }
        agent.id = Short::of(user_agent.current);
        agent.last_seen = now;
        let index = found.unwrap_or(usize::MAX).min(self.agents.len());
        self.agents.insert(index, agent);
        &mut self.agents[index]
    }

    /// Notes an unknown fingerprint; false if too many new ones came lately, so that it gets no
    /// entry (G-EPHEMERAL).
    pub(in crate::guard) fn visit(
        &mut self,
        policy: &CorrelationPolicy,
        fingerprint: &DigestPair,
        now: Micros,
    ) -> bool {
        self.prune_visitors(policy, now);
        // The entry may have been named under the previous secret: write it under the current one.
        if let Some(visitor) = self.visitors.iter_mut().find(|v| v.id.is(fingerprint)) {
            visitor.id = Short::of(fingerprint.current);
            visitor.last = now;
            return true;
        }
        let new = |v: &&Visitor| now.since(v.first) < policy.new_window;
        let limit = (policy.new_per_prefix as usize).min(FINGERPRINTS_MAX);
        if self.visitors.iter().filter(new).count() >= limit {
            return false;
        }
        self.enter_visitor(fingerprint, now).is_some()
    }

    /// The fingerprint's entry, created if there is room or an entry without a running block to
    /// drop.
    pub(in crate::guard) fn enter_visitor(
        &mut self,
        fingerprint: &DigestPair,
        now: Micros,
    ) -> Option<&mut Visitor> {
        let found = self.visitors.iter().position(|v| v.id.is(fingerprint));
        let index = match found {
            Some(index) => index,
            None => {
                self.make_room_for_visitor(now)?;
                self.visitors.push(Visitor {
                    id: Short::of(fingerprint.current),
                    first: now,
                    last: now,
                    block: None,
                });
                self.visitors.len() - 1
            }
        };
        let visitor = self.visitors.get_mut(index)?;
        visitor.id = Short::of(fingerprint.current);
        visitor.last = now;
        Some(visitor)
    }

    fn make_room_for_visitor(&mut self, now: Micros) -> Option<()> {
        if self.visitors.len() < FINGERPRINTS_MAX {
            return Some(());
        }
        let (victim, _) = self
            .visitors
            .iter()
            .enumerate()
            .filter(|(_, visitor)| !visitor.is_blocked(now))
            .min_by_key(|(_, visitor)| visitor.last)?;
        self.visitors.remove(victim);
        Some(())
    }

    /// Removes an account and a device from the sets.
    pub(in crate::guard) fn leave(
        &mut self,
        account: &DigestPair,
        fingerprint: Option<&DigestPair>,
    ) -> bool {
        let mut changed = self.accounts.remove(account);
        if let Some(fingerprint) = fingerprint {
            for agent in &mut self.agents {
                changed |= agent.leave(fingerprint);
            }
            let before = self.visitors.len();
            self.visitors
                // A block stays: it has an end of its own.
                .retain(|visitor| visitor.block.is_some() || !visitor.id.is(fingerprint));
            changed |= self.visitors.len() != before;
        }
        changed
    }

    fn prune_visitors(&mut self, policy: &CorrelationPolicy, now: Micros) {
        for visitor in &mut self.visitors {
            visitor.block = visitor.block.filter(|block| block.until > now);
        }
        self.visitors.retain(|visitor| {
            visitor.block.is_some() || now.since(visitor.last) < policy.new_window
        });
    }

    /// Drops state that no rule can see any more.
    pub(in crate::guard) fn prune(
        &mut self,
        guard: &GuardPolicy,
        policy: &CorrelationPolicy,
        now: Micros,
    ) {
        self.key.prune(guard, guard.decay.network, now);
        for agent in &mut self.agents {
            agent.prune(guard, policy, now);
        }
        self.agents
            .retain(|agent| !agent.key.is_blank() || now.since(agent.last_seen) < AGENT_IDLE);
        self.prune_visitors(policy, now);
        let window = policy.spray.window;
        self.accounts
            .0
            .retain(|member| now.since(member.last) < window);
        self.spray_watch.prune(policy.watch_window, now);
        self.once.prune(guard.once_window, now);
        self.touched = now;
    }

    /// The instant from which nothing in the record matters any more.
    #[must_use]
    pub fn expires_at(&self, guard: &GuardPolicy, policy: &CorrelationPolicy) -> Micros {
        let agents = self.agents.iter().map(|agent| {
            agent
                .key
                .expires_at(guard, guard.decay.network)
                .max(agent.last_seen.plus(AGENT_IDLE))
        });
        let visitors = self.visitors.iter().map(|visitor| {
            let block = visitor.block.map_or(Micros(0), |block| block.until);
            block.max(visitor.last.plus(policy.new_window))
        });
        let accounts = self.accounts.0.last();
        let watch = self.spray_watch.0;
        [
            self.key.expires_at(guard, guard.decay.network),
            accounts.map_or(Micros(0), |m| m.last.plus(policy.spray.window)),
            watch.map_or(Micros(0), |at| at.plus(policy.watch_window)),
            self.once.expires_at(guard.once_window),
        ]
        .into_iter()
        .chain(agents)
        .chain(visitors)
        .max()
        .unwrap_or_default()
    }

    /// The record's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new(VERSION, self.touched);
        writer.key_state(&self.key);
        writer.list(&self.agents, |w, agent| agent.encode(w));
        writer.list(&self.visitors, |w, visitor| visitor.encode(w));
        writer.set(&self.accounts);
        writer.watch(self.spray_watch);
        self.once.encode(&mut writer);
        writer.finish()
    }

    /// Reads what [`Network::encode`] wrote.
    ///
    /// # Errors
    /// Bytes that make no sense, or of a newer version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes, VERSION)?;
        let network = Self {
            touched: reader.base(),
            key: reader.key_state()?,
            agents: reader.list(AGENTS_MAX, Agent::decode)?,
            visitors: reader.list(FINGERPRINTS_MAX, Visitor::decode)?,
            accounts: reader.set()?,
            spray_watch: reader.watch()?,
            once: Once::decode(&mut reader)?,
        };
        reader.finish()?;
        Ok(network)
    }
}

impl Agent {
    const fn new(id: Short) -> Self {
        Self {
            id,
            last_seen: Micros(0),
            key: KeyState::BLANK,
            last: None,
            changes: Vec::new(),
            watch: Watch(None),
        }
    }

    /// Notes an unknown fingerprint. The result is `Below` unless the fingerprint differs from the
    /// last one and there have been enough such changes (G-CHURN).
    pub(in crate::guard) fn see(
        &mut self,
        policy: &CorrelationPolicy,
        fingerprint: &DigestPair,
        now: Micros,
    ) -> Reach {
        let changed = self.last.is_some_and(|last| !last.is(fingerprint));
        let id = Short::of(fingerprint.current);
        self.last = Some(id);
        if !changed {
            return Reach::Below;
        }
        self.changes.push((id, now));
        self.prune_changes(policy, now);
        let metric = self.changes.len();
        let threshold = policy.churn.threshold;
        Reach::of(metric, threshold, &mut self.watch, policy.watch_window, now)
    }

    fn leave(&mut self, fingerprint: &DigestPair) -> bool {
        let was_last = self.last.is_some_and(|last| last.is(fingerprint));
        if was_last {
            self.last = None;
        }
        let before = self.changes.len();
        self.changes.retain(|(id, _)| !id.is(fingerprint));
        was_last || self.changes.len() != before
    }

    fn prune_changes(&mut self, policy: &CorrelationPolicy, now: Micros) {
        let window = policy.churn.window;
        self.changes.retain(|(_, at)| now.since(*at) < window);
        let max = (policy.churn.threshold as usize).min(CHANGES_MAX);
        let surplus = self.changes.len().saturating_sub(max);
        self.changes.drain(..surplus);
    }

    fn prune(&mut self, guard: &GuardPolicy, policy: &CorrelationPolicy, now: Micros) {
        self.key.prune(guard, guard.decay.network, now);
        self.prune_changes(policy, now);
        self.watch.prune(policy.watch_window, now);
        if now.since(self.last_seen) >= AGENT_IDLE {
            self.last = None;
        }
    }

    fn encode(&self, writer: &mut Writer) {
        writer.short(self.id);
        writer.near(self.last_seen);
        writer.key_state(&self.key);
        writer.byte(u8::from(self.last.is_some()));
        if let Some(last) = self.last {
            writer.short(last);
        }
        writer.list(&self.changes, |w, (id, at)| {
            w.short(*id);
            w.near(*at);
        });
        writer.watch(self.watch);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            id: reader.short()?,
            last_seen: reader.instant()?,
            key: reader.key_state()?,
            last: match reader.byte()? {
                0 => None,
                1 => Some(reader.short()?),
                _ => return Err(DecodeError::Corrupt),
            },
            changes: reader.list(CHANGES_MAX, |r| Ok((r.short()?, r.instant()?)))?,
            watch: reader.watch()?,
        })
    }
}

impl Visitor {
    fn is_blocked(&self, now: Micros) -> bool {
        self.block.is_some_and(|block| block.until > now)
    }

    fn encode(&self, writer: &mut Writer) {
        writer.short(self.id);
        writer.near(self.first);
        writer.near(self.last);
        writer.byte(u8::from(self.block.is_some()));
        if let Some(block) = &self.block {
            writer.block(block);
        }
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            id: reader.short()?,
            first: reader.instant()?,
            last: reader.instant()?,
            block: match reader.byte()? {
                0 => None,
                1 => Some(reader.block()?),
                _ => return Err(DecodeError::Corrupt),
            },
        })
    }
}

#[cfg(test)]
impl Network {
    /// A network whose lists are all as long as they can get: login and OTP fill agents and sets,
    /// the heavy API fills the remembered requests; this one record has all of them.
    pub(in crate::guard) fn full(agents: usize, visitors: usize) -> Self {
        use super::bounds::{FAR_OFF, full_key, full_once, full_set, full_watch};
        let key = full_key();
        let id = Short(u64::MAX);
        let agent = Agent {
            id,
            last_seen: FAR_OFF,
            last: Some(id),
            changes: vec![(id, FAR_OFF); CHANGES_MAX],
            watch: full_watch(),
            key: key.clone(),
        };
        let visitor = Visitor {
            id,
            first: FAR_OFF,
            last: FAR_OFF,
            block: key.block,
        };
        Self {
            touched: Micros(0),
            key,
            agents: vec![agent; agents],
            visitors: vec![visitor; visitors],
            accounts: full_set(),
            spray_watch: full_watch(),
            once: full_once(),
        }
    }
}
