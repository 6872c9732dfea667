//! Queue of tenants to ask the source about, and the times at which the source may be asked: a pure
//! state machine over the cache's clock.

use std::collections::VecDeque;
use std::time::Duration;

use palisade_core::failure::SourceHealth;
use palisade_core::time::{Micros, SECOND};

use super::CacheSettings;

/// Most tenants in one call.
const BATCH_MAX: usize = 256;
/// Tenants that are read at the start, so that most are known before their first request.
const FIRST_MAX: u32 = 10_000;
/// Pause after the first failed call; it doubles with each further one.
const RETRY_FIRST_US: u64 = SECOND / 2;
const RETRY_LONGEST_US: u64 = 5 * SECOND;
/// Sweeps in one time to live of a policy.
const SWEEPS: u32 = 8;
const PAUSE_MIN: Duration = Duration::from_millis(1);

/// One question to the source.
#[derive(PartialEq, Eq)]
pub(super) enum Call {
    /// Any tenants, at most this many.
    First(u32),
    /// These tenants; an empty list only asks whether the source answers.
    Tenants(Vec<Box<str>>),
}

impl Call {
    pub(super) fn tenants(&self) -> &[Box<str>] {
        match self {
            Self::First(_) => &[],
            Self::Tenants(tenants) => tenants,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Up,
    Down {
        since: Micros,
        failures: u32,
        retry_at: Micros,
        error: &'static str,
    },
}

pub(super) struct Line {
    wanted: VecDeque<Box<str>>,
    link: Link,
    first: Option<u32>,
    /// Latest time of the next call, even if only to learn whether the source answers.
    call_by: Micros,
    sweep_at: Micros,
    ttl_us: u64,
    sweep_us: u64,
}

impl Line {
    pub(super) fn new(settings: &CacheSettings, now: Micros) -> Self {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        Self {
            wanted: VecDeque::new(),
            link: Link::Up,
            first: Some(settings.tenants_max.min(FIRST_MAX)),
            call_by: now,
            sweep_at: now.plus(micros(settings.ttl / SWEEPS)),
            ttl_us: micros(settings.ttl),
            sweep_us: micros(settings.ttl / SWEEPS),
        }
    }

    /// Adds a tenant. The caller makes sure that a tenant is in the queue once, so that the queue
    /// is as bounded as the cache.
    pub(super) fn push(&mut self, tenant: Box<str>) {
        self.wanted.push_back(tenant);
    }

    pub(super) fn take(&mut self, now: Micros) -> Option<Call> {
        let is_down = match self.link {
            Link::Down { retry_at, .. } if now < retry_at => return None,
            Link::Down { .. } => true,
            Link::Up => false,
        };
        if let Some(count) = self.first {
            return Some(Call::First(count));
        }
        // With the source down a call is made even for no tenant, to notice when the source is
        // back.
        if self.wanted.is_empty() && !is_down && now < self.call_by {
            return None;
        }
        let count = self.wanted.len().min(BATCH_MAX);
        Some(Call::Tenants(self.wanted.drain(..count).collect()))
    }

    /// Notes that the source answered; true if it had been down.
    pub(super) fn answered(&mut self, now: Micros) -> bool {
        self.first = None;
        self.call_by = now.plus(self.ttl_us);
        let before = std::mem::replace(&mut self.link, Link::Up);
        before != Link::Up
    }

    /// Notes that the source did not answer; true if it had been up.
    pub(super) fn failed(&mut self, call: Call, error: &'static str, now: Micros) -> bool {
        let (since, failures) = match self.link {
            Link::Up => (now, 0),
            Link::Down {
                since, failures, ..
            } => (since, failures),
        };
        let was_up = self.link == Link::Up;
        let pause = RETRY_FIRST_US << failures.min(8);
        self.link = Link::Down {
            since,
            failures: failures.saturating_add(1),
            retry_at: now.plus(pause.min(RETRY_LONGEST_US)),
            error,
        };
        if let Call::Tenants(tenants) = call {
            tenants
                .into_iter()
                // The last goes first so that all of them keep their order.
                .rev()
                .for_each(|tenant| self.wanted.push_front(tenant));
        }
        was_up
    }

    /// True once per sweep interval.
    pub(super) fn sweep_is_due(&mut self, now: Micros) -> bool {
        let is_due = now >= self.sweep_at;
        if is_due {
            self.sweep_at = now.plus(self.sweep_us);
        }
        is_due
    }

    pub(super) const fn sweep_now(&mut self) {
        self.sweep_at = Micros(0);
    }

    pub(super) fn pause(&self, now: Micros) -> Duration {
        let until = match self.link {
            Link::Down { retry_at, .. } => retry_at,
            Link::Up if self.first.is_some() || !self.wanted.is_empty() => now,
            Link::Up => self.call_by.min(self.sweep_at),
        };
        Duration::from_micros(until.since(now)).max(PAUSE_MIN)
    }

    pub(super) const fn health(&self) -> SourceHealth {
        match self.link {
            Link::Up => SourceHealth::Up,
            Link::Down { .. } => SourceHealth::Down,
        }
    }

    pub(super) const fn error(&self) -> Option<&'static str> {
        match self.link {
            Link::Up => None,
            Link::Down { error, .. } => Some(error),
        }
    }

    pub(super) const fn down_since(&self) -> Option<Micros> {
        match self.link {
            Link::Up => None,
            Link::Down { since, .. } => Some(since),
        }
    }
}
