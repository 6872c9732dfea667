//! Header values that are the same in every answer about a limit, or in those of the same
//! second: made once, and shared.

use std::cell::RefCell;
use std::sync::{Arc, LazyLock};

use arrayvec::ArrayVec;
use hashbrown::HashSet;
use http::HeaderValue;
use palisade_core::decision::LimitReading;
use palisade_core::headers::{Field, lasting};
use palisade_core::policy::QuotaUnit;
use parking_lot::Mutex;

use crate::engine::RequestAnswer;

/// Most limits that each thread remembers; a new one evicts the oldest entry. Most services have
/// fewer limits, and searching all entries must cost less than formatting two values.
const LIMITS_MAX: usize = 8;

thread_local! {
    static KNOWN: RefCell<ArrayVec<LimitHeaders, LIMITS_MAX>> = const {
        RefCell::new(ArrayVec::new_const())
    };
}

/// Remembered header values of one limit. A value that is `None` has not been needed yet.
pub(super) struct LimitHeaders {
    name: Arc<str>,
    figures: (u64, u64, QuotaUnit),
    limit: Option<HeaderValue>,
    policy: Option<HeaderValue>,
    limit_in_window: Option<HeaderValue>,
    /// The reset of the last answer, in seconds: buckets that are used now mostly have the same
    /// one.
    reset_at: u64,
    reset: Option<HeaderValue>,
}

impl LimitHeaders {
    fn of(reading: &LimitReading) -> Self {
        Self {
            name: Arc::clone(&reading.name),
            figures: figures(reading),
            limit: None,
            policy: None,
            limit_in_window: None,
            reset_at: reading.reset,
            reset: None,
        }
    }

    /// Makes this the entry of `reset`, without the value of an earlier one.
    fn at(&mut self, reset: u64) -> &mut Self {
        if self.reset_at != reset {
            (self.reset_at, self.reset) = (reset, None);
        }
        self
    }

    /// True if these values belong to the limit of `reading`. The names are compared by address:
    /// this entry keeps the name's allocation alive, and a policy that is loaded anew has
    /// allocations of its own.
    fn is_of(&self, reading: &LimitReading) -> bool {
        Arc::ptr_eq(&self.name, &reading.name) && self.figures == figures(reading)
    }

    /// Returns the slot for the value of `field`, if that value lasts.
    pub(super) const fn place(&mut self, field: Field) -> Option<&mut Option<HeaderValue>> {
        match field {
            Field::XRateLimitLimit => Some(&mut self.limit),
            Field::RateLimitPolicy => Some(&mut self.policy),
            Field::RateLimitLimit => Some(&mut self.limit_in_window),
            Field::XRateLimitReset | Field::RateLimitReset => Some(&mut self.reset),
            _ => None,
        }
    }
}

/// Most texts that live as long as the process, and the longest of them in bytes: enough for the
/// limits of a policy that is reloaded a few times.
const TEXTS_MAX: usize = 1_024;
const TEXT_BYTES_MAX: usize = 256;

/// Header values of limits that live as long as the process, each stored once.
static TEXTS: LazyLock<Mutex<HashSet<&'static str>>> = LazyLock::new(Mutex::default);

/// Returns the value to remember for `field`. A value that lasts as long as its limit becomes a
/// static text of the process, while there is room: cloning and dropping a static value touches no
/// reference count that threads share.
#[cold]
pub(super) fn kept(field: Field, value: HeaderValue) -> HeaderValue {
    match field {
        Field::XRateLimitLimit | Field::RateLimitPolicy | Field::RateLimitLimit => {
            let text = value.to_str().ok().and_then(text_of_process);
            text.map_or(value, HeaderValue::from_static)
        }
        _ => value,
    }
}

fn text_of_process(text: &str) -> Option<&'static str> {
    let mut texts = TEXTS.lock();
    if let Some(known) = texts.get(text) {
        return Some(known);
    }
    if texts.len() >= TEXTS_MAX || text.len() > TEXT_BYTES_MAX {
        return None;
    }
    // Leaked on purpose: the bounds above keep all of them below 256 KiB.
    let text: &'static str = text.to_owned().leak();
    texts.insert(text);
    Some(text)
}

fn figures(reading: &LimitReading) -> (u64, u64, QuotaUnit) {
    (reading.limit, reading.window_seconds, reading.unit.clone())
}

/// Calls `then` with the remembered values of the limit that an answer is about, or with `None` if
/// it is about no limit.
pub(super) fn with<T>(
    answer: &RequestAnswer,
    then: impl FnOnce(Option<&mut LimitHeaders>) -> T,
) -> T {
    let families = answer.policy.settings.headers;
    let Some(reading) = lasting(&answer.decision, families) else {
        return then(None);
    };
    KNOWN.with_borrow_mut(|known| {
        let place = known.iter().position(|one| one.is_of(reading));
        let place = place.unwrap_or_else(|| {
            if known.is_full() {
                known.remove(0);
            }
            known.push(LimitHeaders::of(reading));
            known.len() - 1
        });
        then(known.get_mut(place).map(|known| known.at(reading.reset)))
    })
}

#[cfg(test)]
mod tests {
    use palisade_core::headers::HeaderFamilies;
    use palisade_core::key::Digest;
    use palisade_core::{Decision, Micros, PolicySet};

    use super::*;
    use crate::answer::apply_headers;

    const ALL: HeaderFamilies = HeaderFamilies {
        x_ratelimit: true,
        ietf: true,
        org: true,
        partition_key: false,
        every_bucket: false,
    };

    fn reading(name: &Arc<str>, limit: u64, window_seconds: u64) -> LimitReading {
        LimitReading {
            name: Arc::clone(name),
            scope: "ip",
            class: Arc::clone(name),
            limit,
            remaining: limit - 1,
            reset: 1_735_934_400,
            retry_after: None,
            window_seconds,
            unit: QuotaUnit::Requests,
            partition: Digest(7),
            shadow: false,
        }
    }

    /// Asserts that the headers put on an answer are those of its decision, in their order.
    fn assert_told(families: HeaderFamilies, limits: Vec<LimitReading>) {
        let mut policy = PolicySet::empty();
        policy.settings.headers = families;
        let mut decision = Decision::allow(Micros(1_735_934_355_000_000));
        decision.limits = limits.into();
        let answer = RequestAnswer {
            decision: Box::new(decision),
            policy: Arc::new(policy),
            candidate: None,
        };
        let mut put = http::HeaderMap::new();
        apply_headers(&mut put, &answer);
        let told: Vec<(String, &str)> = put
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap()))
            .collect();
        let headers = answer.headers();
        let expected: Vec<(String, &str)> = headers
            .iter()
            .map(|(name, value)| (name.to_lowercase(), value.as_str()))
            .collect();
        assert_eq!(told, expected);
    }

    #[test]
    fn l_constraint_headers_follow_a_limit_whose_figures_change() {
        let name: Arc<str> = "per-address".into();
        for (limit, window_seconds) in [(10, 60), (10, 60), (20, 60), (20, 3_600), (10, 60)] {
            assert_told(ALL, vec![reading(&name, limit, window_seconds)]);
        }
        let mut bytes = reading(&name, 10, 60);
        bytes.unit = QuotaUnit::ContentBytes;
        assert_told(ALL, vec![bytes]);
        let same: Arc<str> = "per-user".into();
        assert_told(ALL, vec![reading(&same, 10, 60)]);
    }

    #[test]
    fn l_constraint_headers_follow_a_limit_whose_reset_moves() {
        let name: Arc<str> = "per-address".into();
        for reset in [1_735_934_400, 1_735_934_400, 1_735_934_401, 1_735_934_400] {
            let moved = LimitReading {
                reset,
                ..reading(&name, 10, 60)
            };
            assert_told(ALL, vec![moved]);
        }
    }

    #[test]
    fn l_constraint_more_limits_than_are_remembered_have_each_their_own_headers() {
        let names: Vec<Arc<str>> = (0..3 * LIMITS_MAX)
            .map(|number| format!("limit-{number}").into())
            .collect();
        for _ in 0..2 {
            for (name, limit) in names.iter().zip(10..) {
                assert_told(ALL, vec![reading(name, limit, 60)]);
            }
        }
        KNOWN.with_borrow(|known| assert_eq!(known.len(), LIMITS_MAX));
    }

    #[test]
    fn l_constraint_limits_of_more_texts_than_are_kept_have_each_their_own_headers() {
        let name: Arc<str> = "per-address".into();
        for limit in 10_000..10_000 + 2 * u64::try_from(TEXTS_MAX).unwrap() {
            assert_told(ALL, vec![reading(&name, limit, 60)]);
        }
        let long: Arc<str> = "x".repeat(TEXT_BYTES_MAX).into();
        assert_told(ALL, vec![reading(&long, 10, 60)]);
        let texts = TEXTS.lock();
        assert_eq!(texts.len(), TEXTS_MAX);
        assert!(texts.iter().all(|text| text.len() <= TEXT_BYTES_MAX));
    }

    #[test]
    fn l_constraint_what_an_answer_lists_besides_is_not_left_out() {
        let names: [Arc<str>; 2] = ["per-address".into(), "per-user".into()];
        let [first, second] = names.each_ref().map(|name| reading(name, 10, 60));
        let in_shadow = LimitReading {
            shadow: true,
            ..second.clone()
        };
        let of_another = LimitReading {
            partition: Digest(8),
            ..first.clone()
        };
        assert_told(ALL, vec![first.clone()]);
        assert_told(ALL, vec![first.clone(), second.clone()]);
        assert_told(ALL, vec![second.clone(), first.clone()]);
        assert_told(ALL, vec![in_shadow.clone(), first.clone()]);
        assert_told(ALL, vec![in_shadow]);
        let with_key = HeaderFamilies {
            partition_key: true,
            ..ALL
        };
        assert_told(with_key, vec![first.clone()]);
        assert_told(with_key, vec![of_another]);
        let every_bucket = HeaderFamilies {
            every_bucket: true,
            ..ALL
        };
        assert_told(every_bucket, vec![first.clone()]);
        assert_told(every_bucket, vec![first.clone(), second.clone()]);
        assert_told(ALL, Vec::new());
    }
}
