//! Participants of a random sequence of events, and what they do.

use palisade_core::facts::{Confidence, GuardOp};
use palisade_core::guard::Signals;
use palisade_core::guard::signals::{Fingerprint, Source};
use palisade_core::key::{Digest, DigestPair};
use palisade_core::time::{DAY, HOUR, MINUTE, Micros, SECOND};

use super::support::START;

/// Splitmix64: small, seedable, the same everywhere.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// Participants of a sequence, and their pace.
#[derive(Clone, Copy)]
pub(crate) struct Cast {
    pub(crate) accounts: u64,
    pub(crate) prefixes: u64,
    pub(crate) devices: u64,
    pub(crate) agents: u64,
    /// Share of failures; in percent, like the shares below.
    pub(crate) failures: u64,
    pub(crate) successes: u64,
    pub(crate) missing: u64,
    pub(crate) familiar: u64,
    pub(crate) named: u64,
    pub(crate) otp: u64,
    /// Share of hits of heavy endpoints.
    pub(crate) api: u64,
    pub(crate) low: u64,
    /// Longest ordinary step, and how often a long one comes instead.
    pub(crate) step: u64,
    pub(crate) pause: u64,
    pub(crate) pause_percent: u64,
    /// True if steps are spread evenly; otherwise most are short.
    pub(crate) even: bool,
}

/// Number of kinds of cast.
pub(crate) const CASTS: u64 = 11;

pub(crate) const CALM: Cast = Cast {
    accounts: 1,
    prefixes: 1,
    devices: 2,
    agents: 1,
    failures: 60,
    successes: 3,
    missing: 0,
    familiar: 10,
    named: 0,
    otp: 0,
    api: 0,
    low: 10,
    step: 40 * SECOND,
    pause: 20 * MINUTE,
    pause_percent: 10,
    even: false,
};

pub(crate) fn cast(seed: u64) -> Cast {
    let otp = if seed.is_multiple_of(2) { 0 } else { 100 };
    match seed / 2 % CASTS {
        0 => Cast { otp, ..CALM },
        1 => Cast {
            accounts: 12,
            failures: 20,
            pause: 9 * MINUTE,
            otp,
            ..CALM
        },
        2 => Cast {
            devices: 14,
            prefixes: 12,
            failures: 10,
            pause: 30 * MINUTE,
            otp,
            ..CALM
        },
        3 => Cast {
            accounts: 3,
            devices: 3,
            failures: 10,
            successes: 1,
            otp,
            ..CALM
        },
        4 => Cast {
            accounts: 40,
            prefixes: 14,
            devices: 1,
            failures: 5,
            low: 40,
            successes: 0,
            step: 60 * SECOND,
            otp,
            ..CALM
        },
        5 => Cast {
            failures: 80,
            familiar: 50,
            step: HOUR,
            pause: 4 * HOUR,
            even: true,
            otp,
            ..CALM
        },
        6 => Cast {
            accounts: 2,
            missing: 80,
            failures: 70,
            step: 4 * MINUTE,
            otp,
            ..CALM
        },
        7 => Cast {
            accounts: 12,
            prefixes: 2,
            devices: 12,
            familiar: 95,
            named: 100,
            otp: 30,
            step: 4 * MINUTE,
            ..CALM
        },
        8 => Cast {
            accounts: 3,
            prefixes: 60,
            devices: 80,
            failures: 30,
            otp,
            step: 5 * SECOND,
            ..CALM
        },
        9 => Cast {
            accounts: 2,
            prefixes: 2,
            devices: 1,
            agents: 3,
            api: 95,
            missing: 10,
            pause: 10 * MINUTE,
            step: 6 * SECOND,
            ..CALM
        },
        _ => Cast {
            accounts: 6,
            prefixes: 8,
            devices: 10,
            agents: 3,
            missing: 15,
            familiar: 30,
            named: 30,
            otp: 50,
            pause: 2 * DAY,
            pause_percent: 3,
            ..CALM
        },
    }
}

pub(crate) fn digest(kind: u128, n: u64) -> DigestPair {
    // Spread like a keyed digest would be, over both halves.
    let mixed = u128::from(Random(n ^ 0xABCD).next()) << 64 | u128::from(n);
    DigestPair {
        current: Digest(mixed.wrapping_mul(2 * kind + 1)),
        previous: None,
    }
}

/// The digest of the same identifier after the secret was rotated.
pub(crate) fn rotated(old: DigestPair) -> DigestPair {
    DigestPair {
        current: Digest(!old.current.0.rotate_left(41)),
        previous: Some(old.current),
    }
}

#[derive(Clone)]
pub(crate) struct Event {
    pub(crate) op: GuardOp,
    pub(crate) signals: Signals,
    pub(crate) at: Micros,
}

pub(crate) fn events(seed: u64, count: usize) -> Vec<Event> {
    let cast = cast(seed);
    let mut random = Random(seed.wrapping_mul(77));
    let mut at = START.plus(random.below(DAY));
    let mut round = 0;
    (0..count)
        .map(|_| {
            let long = random.chance(cast.pause_percent);
            let step = if long { cast.pause } else { cast.step };
            round += u64::from(long);
            let haste = if cast.even { 1 } else { 1 + random.below(40) };
            at = at.plus(random.below(step) / haste);
            event(&cast, &mut random, round, at)
        })
        .collect()
}

pub(crate) fn event(cast: &Cast, random: &mut Random, round: u64, at: Micros) -> Event {
    let otp = random.chance(cast.otp);
    let kind = random.below(100);
    let op = match (kind < cast.failures, kind >= 100 - cast.successes) {
        _ if random.chance(cast.api) => GuardOp::ApiHit,
        (true, _) if otp => GuardOp::OtpFailure,
        (true, _) => GuardOp::LoginFailure,
        (_, true) if otp => GuardOp::OtpSuccess,
        (_, true) => GuardOp::LoginSuccess,
        _ if otp => GuardOp::OtpCheck,
        _ => GuardOp::LoginCheck,
    };
    let familiar = random.chance(cast.familiar);
    let confidence = match random.below(100) {
        n if n < cast.low => Confidence::Low,
        n if n > 90 => Confidence::High,
        _ => Confidence::Medium,
    };
    // New strangers come with each pause; familiar devices stay the same.
    let device = random.below(cast.devices) + if familiar { 500 } else { 1000 * round };
    let account = random.below(cast.accounts);
    let named = random.chance(cast.named);
    let prefix = random.below(cast.prefixes);
    let mut event = Event {
        op,
        at,
        signals: Signals {
            prefix: digest(1, prefix),
            user_agent: digest(2, random.below(cast.agents)),
            fingerprint: (!random.chance(cast.missing)).then(|| Fingerprint {
                digest: digest(3, device),
                confidence,
                source: Source::Host,
            }),
            account: Some(digest(4, account)),
            session: None,
            username: named.then(|| digest(5, prefix)),
            request: random.chance(8).then(|| digest(6, random.below(6))),
            attempt_id: random.chance(50).then(|| digest(7, random.below(40))),
            known: familiar,
            trusted: familiar && random.chance(30),
            challenge_passed: random.chance(4),
            captcha_passed: false,
            sprayed_area: false,
            country: None,
        },
    };
    // The host vouches for half of the passed challenges.
    event.signals.captcha_passed = event.signals.challenge_passed && round.is_multiple_of(2);
    event
}

impl Event {
    /// The same event, with every key under a new secret.
    pub(crate) fn rotated(&self) -> Self {
        let signals = &self.signals;
        Self {
            signals: Signals {
                prefix: rotated(signals.prefix),
                user_agent: rotated(signals.user_agent),
                fingerprint: signals.fingerprint.map(|found| Fingerprint {
                    digest: rotated(found.digest),
                    ..found
                }),
                account: signals.account.map(rotated),
                username: signals.username.map(rotated),
                request: signals.request.map(rotated),
                attempt_id: signals.attempt_id.map(rotated),
                ..signals.clone()
            },
            ..self.clone()
        }
    }

    /// The device of a check or a failure, if nobody vouches for it.
    pub(crate) fn stranger(&self) -> Option<&DigestPair> {
        let success = matches!(self.op, GuardOp::LoginSuccess | GuardOp::OtpSuccess);
        let known = self.signals.known || self.signals.trusted;
        let found = self.signals.fingerprint.as_ref()?;
        (!success && !known).then_some(&found.digest)
    }
}
