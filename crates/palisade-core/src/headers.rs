//! Turns a decision into response headers, in the families that the configuration selects.

use crate::decision::{Decision, Enforcement, LimitReading};
use crate::policy::QuotaUnit;

/// A family of rate-limit headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HeaderFamily {
    /// `X-RateLimit-Limit`, `-Remaining`, `-Reset`.
    XRateLimit,
    /// `RateLimit-Policy` and `RateLimit`, structured fields of the IETF draft
    /// (`draft-ietf-httpapi-ratelimit-headers`, version 10).
    Ietf,
    /// `RateLimit-Limit` with its window, `-Remaining`, `-Reset`.
    Org,
}

/// Families that the configuration selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderFamilies {
    /// `X-RateLimit-*`.
    pub x_ratelimit: bool,
    /// The IETF draft.
    pub ietf: bool,
    /// `RateLimit-Limit` with its window, `-Remaining`, `-Reset`.
    pub org: bool,
    /// Whether the IETF fields identify the bucket by a digest (`pk`).
    pub partition_key: bool,
    /// Whether `RateLimit` reports every limit, not only the most constraining one.
    pub every_bucket: bool,
}

impl Default for HeaderFamilies {
    fn default() -> Self {
        Self {
            x_ratelimit: true,
            ietf: true,
            org: false,
            partition_key: false,
            every_bucket: false,
        }
    }
}

/// Most policies that `RateLimit-Policy` lists.
const POLICIES_MAX: usize = 8;

/// A header that an answer may carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the header of its name")]
pub enum Field {
    XRateLimitLimit,
    XRateLimitRemaining,
    XRateLimitReset,
    XRateLimitStatus,
    RateLimitPolicy,
    RateLimit,
    RateLimitLimit,
    RateLimitRemaining,
    RateLimitReset,
    RetryAfter,
    XQuotaLimit,
    XQuotaRemaining,
    XQuotaReset,
}

impl Field {
    /// All headers.
    pub const ALL: [Self; 13] = [
        Self::XRateLimitLimit,
        Self::XRateLimitRemaining,
        Self::XRateLimitReset,
        Self::XRateLimitStatus,
        Self::RateLimitPolicy,
        Self::RateLimit,
        Self::RateLimitLimit,
        Self::RateLimitRemaining,
        Self::RateLimitReset,
        Self::RetryAfter,
        Self::XQuotaLimit,
        Self::XQuotaRemaining,
        Self::XQuotaReset,
    ];

    /// The header's name in canonical case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::XRateLimitLimit => "X-RateLimit-Limit",
            Self::XRateLimitRemaining => "X-RateLimit-Remaining",
            Self::XRateLimitReset => "X-RateLimit-Reset",
            Self::XRateLimitStatus => "X-RateLimit-Status",
            Self::RateLimitPolicy => "RateLimit-Policy",
            Self::RateLimit => "RateLimit",
            Self::RateLimitLimit => "RateLimit-Limit",
            Self::RateLimitRemaining => "RateLimit-Remaining",
            Self::RateLimitReset => "RateLimit-Reset",
            Self::RetryAfter => "Retry-After",
            Self::XQuotaLimit => "X-Quota-Limit",
            Self::XQuotaRemaining => "X-Quota-Remaining",
            Self::XQuotaReset => "X-Quota-Reset",
        }
    }
}

/// One header: its name in canonical case and an ASCII value.
pub type Header = (&'static str, String);

/// The headers of an answer, in the order of [`each_header`].
#[must_use]
pub fn headers(decision: &Decision, families: HeaderFamilies) -> Vec<Header> {
    let mut listed = HeaderList {
        headers: Vec::with_capacity(8),
        text: String::new(),
    };
    each_header(decision, families, &mut listed);
    listed.headers
}

/// Receives the headers of an answer, one after another.
pub trait TakeHeaders {
    /// Receives `field` with the ASCII text that `write` appends. An implementation that already
    /// knows the text need not call `write`.
    fn take(&mut self, field: Field, write: impl FnOnce(&mut String));

    /// Receives `field` with a number.
    fn take_number(&mut self, field: Field, number: u64) {
        self.take(field, |text| push_number(text, number));
    }
}

struct HeaderList {
    headers: Vec<Header>,
    /// Buffer of the last value: it grows once, and each copy is only as long as its text.
    text: String,
}

impl TakeHeaders for HeaderList {
    fn take(&mut self, field: Field, write: impl FnOnce(&mut String)) {
        self.text.clear();
        write(&mut self.text);
        self.headers.push((field.name(), self.text.clone()));
    }
}

/// Hands every header of an answer to `taker`. They describe the most constraining bucket that can
/// deny (L-CONSTRAINT), which is the first of [`Decision::limits`] that is not in shadow; without
/// one they are left out. Clients read the `X-RateLimit` family and its like as numbers of
/// requests, so those describe the first bucket that does not count in a unit of the policy's own
/// (B-UNIT).
pub fn each_header(decision: &Decision, families: HeaderFamilies, taker: &mut impl TakeHeaders) {
    let mut enforced = decision.limits.iter().filter(|reading| !reading.shadow);
    let first = enforced.next();
    let of_requests = match first {
        Some(first) if first.unit.is_named() => enforced.find(|one| one.unit.is_usual()),
        first => first,
    };
    if families.x_ratelimit
        && let Some(reading) = of_requests
    {
        taker.take_number(Field::XRateLimitLimit, reading.limit);
        taker.take_number(Field::XRateLimitRemaining, reading.remaining);
        taker.take_number(Field::XRateLimitReset, reading.reset);
    }
    if families.ietf
        && let Some(reading) = first
    {
        let with_key = families.partition_key;
        taker.take(Field::RateLimitPolicy, |text| {
            write_policies(text, &decision.limits, with_key);
        });
        taker.take(Field::RateLimit, |text| {
            write_current(text, reading, decision, families);
        });
    }
    if families.org
        && let Some(reading) = of_requests
    {
        taker.take(Field::RateLimitLimit, |text| {
            push_number(text, reading.limit);
            text.push_str(";w=");
            push_number(text, reading.window_seconds);
        });
        taker.take_number(Field::RateLimitRemaining, reading.remaining);
        taker.take_number(Field::RateLimitReset, reading.reset);
    }
    if let Some(seconds) = decision.wait() {
        taker.take_number(Field::RetryAfter, seconds);
    }
    take_quota(decision, taker);
    take_status(decision, taker);
}

/// The limit whose header texts may be reused: those of [`Field::XRateLimitLimit`],
/// [`Field::RateLimitPolicy`] and [`Field::RateLimitLimit`] change with its name, limit, window and
/// unit only. `None` where several limits are listed, or the answer carries a partition key.
#[must_use]
pub fn lasting(decision: &Decision, families: HeaderFamilies) -> Option<&LimitReading> {
    let mut enforced = decision.limits.iter().filter(|reading| !reading.shadow);
    let only = enforced.next().filter(|_| !families.partition_key)?;
    enforced.next().is_none().then_some(only)
}

fn push_number(text: &mut String, number: u64) {
    text.push_str(itoa::Buffer::new().format(number));
}

/// Usual length of an entry of the IETF fields without the limit's name, in bytes.
const ENTRY_BYTES: usize = 32;

/// The limits that can deny, the most constraining first. A limit that only reports does not
/// concern the client.
fn enforced(readings: &[LimitReading]) -> impl Iterator<Item = &LimitReading> {
    let enforced = readings.iter().filter(|reading| !reading.shadow);
    enforced.take(POLICIES_MAX)
}

fn write_policies(list: &mut String, readings: &[LimitReading], with_key: bool) {
    let bytes: usize = enforced(readings)
        .map(|reading| reading.name.len() + ENTRY_BYTES)
        .sum();
    list.reserve(bytes);
    for reading in enforced(readings) {
        if !list.is_empty() {
            list.push_str(", ");
        }
        let figures = [reading.limit, reading.window_seconds];
        push_entry(list, reading, [";q=", ";w="], figures);
        // The draft's default unit is left out; for a policy's own unit the draft has no name.
        if reading.unit == QuotaUnit::ContentBytes {
            list.push_str(";qu=\"content-bytes\"");
        }
        if with_key {
            push_partition(list, reading);
        }
    }
}

/// Appends an entry of a structured list: the limit's name and two numbers about it. Written piece
/// by piece, because every answer has one and formatting machinery is not free. Inlined, so that
/// the keys' lengths are known and copying them is no call.
#[inline]
fn push_entry(list: &mut String, reading: &LimitReading, keys: [&str; 2], figures: [u64; 2]) {
    list.push('"');
    list.push_str(&reading.name);
    list.push('"');
    list.push_str(keys[0]);
    push_number(list, figures[0]);
    list.push_str(keys[1]);
    push_number(list, figures[1]);
}

/// Appends a digest of the bucket's own digest, as a byte sequence: names of buckets in stores are
/// not disclosed.
fn push_partition(list: &mut String, reading: &LimitReading) {
    use siphasher::sip::SipHasher24;
    use std::hash::Hasher;
    let mut hasher = SipHasher24::new_with_key(b"palisade pk/1\0\0\0");
    hasher.write(&reading.partition.to_bytes());
    let mut bytes = [0; 9];
    bytes[..8].copy_from_slice(&hasher.finish().to_be_bytes());
    list.push_str(";pk=:");
    push_base64(list, bytes);
    list.push(':');
}

/// Appends nine bytes as twelve characters, without padding.
fn push_base64(text: &mut String, bytes: [u8; 9]) {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for [first, second, third] in bytes.as_chunks().0 {
        let word = u32::from_be_bytes([0, *first, *second, *third]);
        for shift in [18, 12, 6, 0] {
            let index = usize::try_from(word >> shift & 63).unwrap_or_default();
            text.push(char::from(ALPHABET[index]));
        }
    }
}

fn write_current_of(
    text: &mut String,
    reading: &LimitReading,
    decision: &Decision,
    with_key: bool,
) {
    if !text.is_empty() {
        text.push_str(", ");
    }
    // The reset is rounded up to a second and the instant down: within a second of a hit the
    // difference would be longer than the window.
    let until_reset = reading
        .reset
        .saturating_sub(decision.at.0 / crate::time::SECOND)
        .min(reading.window_seconds);
    let figures = [reading.remaining, until_reset];
    push_entry(text, reading, [";r=", ";t="], figures);
    if with_key {
        push_partition(text, reading);
    }
}

/// Writes the most constraining bucket or, with `every_bucket`, all buckets that
/// `RateLimit-Policy` lists.
fn write_current(
    text: &mut String,
    reading: &LimitReading,
    decision: &Decision,
    families: HeaderFamilies,
) {
    let with_key = families.partition_key;
    if !families.every_bucket {
        return write_current_of(text, reading, decision, with_key);
    }
    for reading in enforced(&decision.limits) {
        write_current_of(text, reading, decision, with_key);
    }
}

fn take_quota(decision: &Decision, taker: &mut impl TakeHeaders) {
    let Some(quota) = decision.quota else { return };
    let mut show = |field, amount: Option<u64>| {
        taker.take(field, |text| match amount {
            Some(amount) => push_number(text, amount),
            None => text.push_str("unlimited"),
        });
    };
    show(Field::XQuotaLimit, quota.limit);
    show(Field::XQuotaRemaining, quota.remaining());
    show(Field::XQuotaReset, Some(quota.reset));
}

fn take_status(decision: &Decision, taker: &mut impl TakeHeaders) {
    let status = match decision.enforcement {
        Enforcement::Full => return,
        Enforcement::Degraded => "degraded",
        Enforcement::Disabled => "disabled",
    };
    taker.take(Field::XRateLimitStatus, |text| text.push_str(status));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::{ErrorCode, Outcome, QuotaReading};
    use crate::key::Digest;
    use crate::rule::Rule;
    use crate::time::{Micros, SECOND};
    use sfv::{BareItem, ListEntry, Parameters};

    fn denied() -> Decision {
        let at = Micros(1_735_934_355 * SECOND);
        let mut decision =
            Decision::refuse(at, Outcome::Deny, Rule::L_IP, ErrorCode::RateLimitExceeded);
        decision.retry_after = Some(45);
        decision.limits = vec![LimitReading {
            name: "ip-auth".into(),
            scope: "ip",
            class: "auth".into(),
            limit: 10,
            remaining: 0,
            reset: 1_735_934_400,
            retry_after: Some(45),
            window_seconds: 60,
            unit: QuotaUnit::Requests,
            partition: Digest(7),
            shadow: false,
        }]
        .into();
        decision
    }

    fn lines(decision: &Decision, families: HeaderFamilies) -> Vec<String> {
        headers(decision, families)
            .into_iter()
            .map(|(name, value)| format!("{name}: {value}"))
            .collect()
    }

    #[test]
    fn all_three_families_describe_the_most_constraining_bucket() {
        let all = HeaderFamilies {
            org: true,
            ..HeaderFamilies::default()
        };
        assert_eq!(
            lines(&denied(), all),
            [
                "X-RateLimit-Limit: 10",
                "X-RateLimit-Remaining: 0",
                "X-RateLimit-Reset: 1735934400",
                "RateLimit-Policy: \"ip-auth\";q=10;w=60",
                "RateLimit: \"ip-auth\";r=0;t=45",
                "RateLimit-Limit: 10;w=60",
                "RateLimit-Remaining: 0",
                "RateLimit-Reset: 1735934400",
                "Retry-After: 45",
            ]
        );
    }

    /// Names and parameters of a field, as an independent parser reads them.
    fn parsed(value: &str) -> Vec<(String, Parameters)> {
        let list = sfv::Parser::new(value).parse::<sfv::List>().unwrap();
        let item = |entry| match entry {
            ListEntry::Item(item) => item,
            ListEntry::InnerList(_) => panic!("no list within the list"),
        };
        list.into_iter()
            .map(item)
            .map(|item: sfv::Item| {
                let name = item.bare_item.as_string().unwrap();
                (name.as_str().to_owned(), item.params)
            })
            .collect()
    }

    fn field(decision: &Decision, partition_key: bool, name: &str) -> Vec<(String, Parameters)> {
        let families = HeaderFamilies {
            partition_key,
            ..HeaderFamilies::default()
        };
        let headers = headers(decision, families);
        let found = headers.iter().find(|(found, _)| *found == name);
        parsed(&found.unwrap().1)
    }

    fn figure(parameters: &Parameters, key: &str) -> Option<i64> {
        let item = parameters.get(key)?;
        item.as_integer().map(Into::into)
    }

    #[test]
    fn the_ietf_fields_name_the_limit_that_denied_and_its_unit() {
        let mut decision = denied();
        let mut bytes = decision.limits[0].clone();
        (bytes.name, bytes.unit) = ("upload".into(), QuotaUnit::ContentBytes);
        let mut shadow = decision.limits[0].clone();
        (shadow.name, shadow.shadow) = ("trial".into(), true);
        decision.limits.extend([bytes, shadow]);

        let policies = field(&decision, false, "RateLimit-Policy");
        let names: Vec<&str> = policies.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["ip-auth", "upload"]);
        assert_eq!(figure(&policies[0].1, "q"), Some(10));
        assert_eq!(figure(&policies[0].1, "w"), Some(60));
        assert!(policies[0].1.get("qu").is_none() && policies[0].1.get("pk").is_none());
        let unit = policies[1].1.get("qu").and_then(BareItem::as_string);
        assert_eq!(unit.map(sfv::StringRef::as_str), Some("content-bytes"));

        let current = field(&decision, false, "RateLimit");
        assert_eq!(current.len(), 1);
        assert_eq!(current[0].0, "ip-auth");
        assert_eq!(figure(&current[0].1, "r"), Some(0));
        assert_eq!(figure(&current[0].1, "t"), Some(45));
    }

    #[test]
    fn l_constraint_a_limit_in_shadow_is_in_no_header() {
        let all = HeaderFamilies {
            org: true,
            ..HeaderFamilies::default()
        };
        let mut decision = Decision::allow(denied().at);
        decision.limits = denied().limits;
        decision.limits[0].shadow = true;
        assert_eq!(lines(&decision, all), Vec::<String>::new());

        let mut enforced = denied().limits.remove(0);
        (enforced.name, enforced.limit) = ("ip-read".into(), 100);
        decision.limits.push(enforced);
        let shown = lines(&decision, all).join("\n");
        assert!(shown.contains("X-RateLimit-Limit: 100\n"), "{shown}");
        assert!(!shown.contains("ip-auth"), "{shown}");
    }

    #[test]
    fn the_ietf_time_left_is_never_longer_than_the_window() {
        let mut decision = denied();
        decision.at = Micros(1_735_934_339 * SECOND + 1);
        let left = |decision: &Decision| figure(&field(decision, false, "RateLimit")[0].1, "t");
        assert_eq!(decision.limits[0].reset - decision.at.0 / SECOND, 61);
        assert_eq!(left(&decision), Some(60));
        decision.limits[0].reset -= 1;
        assert_eq!(left(&decision), Some(60));
        decision.limits[0].reset -= 1;
        assert_eq!(left(&decision), Some(59));
    }

    #[test]
    fn every_bucket_has_what_is_left_of_it_if_asked_for() {
        let mut decision = denied();
        let mut user = decision.limits[0].clone();
        (user.name, user.scope, user.remaining) = ("user-consent".into(), "user", 7);
        let mut shadow = user.clone();
        (shadow.name, shadow.shadow) = ("trial".into(), true);
        decision.limits.extend([user, shadow]);
        let current = |every_bucket| {
            let families = HeaderFamilies {
                every_bucket,
                ..HeaderFamilies::default()
            };
            let headers = headers(&decision, families);
            let found = headers.iter().find(|(name, _)| *name == "RateLimit");
            let left = |(name, parameters): (String, _)| (name, figure(&parameters, "r"));
            let entries = parsed(&found.unwrap().1).into_iter().map(left);
            entries.collect::<Vec<_>>()
        };
        assert_eq!(current(false), [("ip-auth".to_owned(), Some(0))]);
        let all = [("ip-auth", 0), ("user-consent", 7)];
        let all = all.map(|(name, left)| (name.to_owned(), Some(left)));
        assert_eq!(current(true), all);
    }

    #[test]
    fn the_partition_key_is_a_digest_and_only_there_if_asked_for() {
        let key = |decision: &Decision, name: &str| {
            let entries = field(decision, true, name);
            let key = entries[0].1.get("pk").and_then(BareItem::as_byte_sequence);
            key.map(<[u8]>::to_vec).unwrap()
        };
        let mut other = denied();
        other.limits[0].partition = Digest(8);
        let own = key(&denied(), "RateLimit");
        assert_eq!(own, key(&denied(), "RateLimit-Policy"));
        assert_ne!(own, key(&other, "RateLimit"));
        assert_ne!(own[..8], Digest(7).to_bytes()[8..]);
    }

    #[test]
    fn base64_is_what_others_write() {
        let mut text = String::new();
        push_base64(&mut text, *b"\x00\x10\x83\xffman+/");
        assert_eq!(text, "ABCD/21hbisv");
    }

    #[test]
    fn an_unlimited_quota_says_so() {
        let mut decision = Decision::allow(Micros(0));
        decision.quota = Some(QuotaReading {
            limit: None,
            used: 5,
            reset: 60,
        });
        let shown = lines(&decision, HeaderFamilies::default());
        assert_eq!(
            shown,
            [
                "X-Quota-Limit: unlimited",
                "X-Quota-Remaining: unlimited",
                "X-Quota-Reset: 60"
            ]
        );
    }

    #[test]
    fn a_refusal_without_a_wait_still_says_retry_after_one() {
        let mut decision = denied();
        decision.retry_after = None;
        decision.limits.clear();
        assert_eq!(
            lines(&decision, HeaderFamilies::default()),
            ["Retry-After: 1"]
        );
    }
}
