//! Renders an answer's JSON straight into one buffer.
//!
//! The output of `Serialize` is the definition; this code writes the same bytes. Names of members
//! are copied as they are, and only members that are empty in an allowed request's answer go
//! through `serde_json`.

use palisade_core::decision::LimitReading;
use serde::Serialize;
use serde_json::Result;

use super::Answer;

impl Answer<'_> {
    /// Appends the answer as JSON.
    ///
    /// # Errors
    /// None that an answer can cause; errors of `serde_json` are passed on.
    pub fn write_json(&self, out: &mut Vec<u8>) -> Result<()> {
        raw(out, "{\"decision\":\"");
        raw(out, self.decision);
        raw(out, "\",\"level\":");
        optional(out, self.level.as_ref())?;
        raw(out, ",\"retry_after\":");
        optional(out, self.retry_after.as_ref())?;
        raw(out, ",\"mode\":\"");
        raw(out, self.mode);
        raw(out, "\",\"rule\":");
        optional(out, self.rule.as_ref())?;
        raw(out, ",\"reasons\":");
        if self.reasons.is_empty() {
            raw(out, "[]");
        } else {
            serde_json::to_writer(&mut *out, self.reasons)?;
        }
        raw(out, ",\"limits\":[");
        separated(out, self.limits, limit)?;
        raw(out, "],\"error\":");
        optional(out, self.error.as_ref())?;
        if let Some(delay_ms) = self.delay_ms {
            raw(out, ",\"delay_ms\":");
            number(out, u64::from(delay_ms));
        }
        if let Some(challenge) = &self.challenge {
            raw(out, ",\"challenge\":");
            serde_json::to_writer(&mut *out, challenge)?;
        }
        if let Some(refused) = self.challenge_refused {
            raw(out, ",\"challenge_refused\":\"");
            raw(out, refused.name());
            raw(out, "\"");
        }
        if let Some(lockout) = &self.lockout {
            raw(out, ",\"lockout\":");
            serde_json::to_writer(&mut *out, lockout)?;
        }
        if let Some(shadow) = self.shadow {
            raw(out, ",\"shadow\":");
            serde_json::to_writer(&mut *out, shadow)?;
        }
        if let Some(receipt) = self.receipt {
            raw(out, ",\"receipt\":");
            text(out, receipt)?;
        }
        if let Some(reservation) = self.reservation {
            raw(out, ",\"reservation\":");
            text(out, reservation)?;
        }
        if !self.not_asked.is_empty() {
            raw(out, ",\"not_asked\":");
            serde_json::to_writer(&mut *out, self.not_asked)?;
        }
        if let Some(waited_ms) = self.waited_ms {
            raw(out, ",\"waited_ms\":");
            number(out, u64::from(waited_ms));
        }
        if !self.warnings.is_empty() {
            raw(out, ",\"warnings\":");
            serde_json::to_writer(&mut *out, self.warnings)?;
        }
        if let Some(is_on) = self.attack {
            raw(out, ",\"attack\":");
            raw(out, if is_on { "true" } else { "false" });
        }
        if let Some(limit) = self.limit_in_force {
            raw(out, ",\"limit_in_force\":");
            number(out, limit);
        }
        raw(out, ",\"headers\":{");
        separated(out, &self.headers, |out, (name, value)| {
            raw(out, "\"");
            raw(out, name);
            raw(out, "\":");
            text(out, value)
        })?;
        raw(out, "},\"status\":");
        number(out, u64::from(self.status));
        raw(out, ",\"body\":");
        optional(out, self.body.as_ref())?;
        raw(out, ",\"request_id\":");
        text(out, self.request_id)?;
        raw(out, "}");
        Ok(())
    }
}

fn limit(out: &mut Vec<u8>, reading: &LimitReading) -> Result<()> {
    raw(out, "{\"name\":");
    text(out, &reading.name)?;
    raw(out, ",\"scope\":\"");
    raw(out, reading.scope);
    raw(out, "\",\"class\":");
    text(out, &reading.class)?;
    raw(out, ",\"limit\":");
    number(out, reading.limit);
    raw(out, ",\"remaining\":");
    number(out, reading.remaining);
    raw(out, ",\"reset\":");
    number(out, reading.reset);
    raw(out, ",\"retry_after\":");
    optional(out, reading.retry_after.as_ref())?;
    if reading.unit.is_named() {
        raw(out, ",\"unit\":");
        text(out, reading.unit.name())?;
    }
    if reading.shadow {
        raw(out, ",\"shadow\":true");
    }
    raw(out, "}");
    Ok(())
}

fn separated<T>(
    out: &mut Vec<u8>,
    members: &[T],
    write: impl Fn(&mut Vec<u8>, &T) -> Result<()>,
) -> Result<()> {
    for (index, member) in members.iter().enumerate() {
        if index > 0 {
            raw(out, ",");
        }
        write(out, member)?;
    }
    Ok(())
}

/// Appends JSON, or a part of a string that needs no escaping.
fn raw(out: &mut Vec<u8>, json: &str) {
    out.extend_from_slice(json.as_bytes());
}

fn optional<T: Serialize>(out: &mut Vec<u8>, value: Option<&T>) -> Result<()> {
    match value {
        None => raw(out, "null"),
        Some(value) => serde_json::to_writer(out, value)?,
    }
    Ok(())
}

fn number(out: &mut Vec<u8>, number: u64) {
    raw(out, itoa::Buffer::new().format(number));
}

fn text(out: &mut Vec<u8>, text: &str) -> Result<()> {
    let bytes = text.as_bytes();
    let seen = look(bytes);
    if seen.others {
        return serde_json::to_writer(out, text);
    }
    out.push(b'"');
    if seen.quotes {
        escape_quotes(out, bytes);
    } else {
        out.extend_from_slice(bytes);
    }
    out.push(b'"');
    Ok(())
}

/// The kinds of characters in a text that JSON has to escape.
struct CharacterKinds {
    quotes: bool,
    /// The text contains backslashes or control characters.
    others: bool,
}

/// Finds characters to escape, eight bytes at a time. Subtracting `n` from each byte of the word
/// borrows into the highest bit of each byte below `n`; `!word` excludes bytes that had this bit
/// before.
fn look(text: &[u8]) -> CharacterKinds {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const HIGHEST: u64 = ONES << 7;
    let below = |word: u64, n: u8| word.wrapping_sub(ONES * u64::from(n)) & !word & HIGHEST;
    let equal = |word: u64, byte: u8| below(word ^ (ONES * u64::from(byte)), 1);
    let (mut quotes, mut others) = (0, 0);
    let mut look = |eight: [u8; 8]| {
        let word = u64::from_ne_bytes(eight);
        quotes |= equal(word, b'"');
        others |= below(word, b' ') | equal(word, b'\\');
    };
    let (eights, rest) = text.as_chunks::<8>();
    eights.iter().copied().for_each(&mut look);
    let mut last = [b'-'; 8];
    last[..rest.len()].copy_from_slice(rest);
    look(last);
    CharacterKinds {
        quotes: quotes != 0,
        others: others != 0,
    }
}

/// Appends text in which only quotes need escaping, such as the structured fields of headers. Their
/// quotes are so close together that searching for the next one costs more than looking at every
/// byte.
fn escape_quotes(out: &mut Vec<u8>, text: &[u8]) {
    let mut from = 0;
    for (at, byte) in text.iter().enumerate() {
        if *byte == b'"' {
            out.extend_from_slice(&text[from..at]);
            out.push(b'\\');
            from = at;
        }
    }
    out.extend_from_slice(&text[from..]);
}

#[cfg(test)]
mod tests {
    use palisade_core::Digest;
    use palisade_core::bodies::Urls;
    use palisade_core::decision::{
        Challenge, Decision, Enforcement, ErrorCode, KeyKind, Level, LockoutNote, Outcome,
        QuotaReading, Reason,
    };
    use palisade_core::headers::HeaderFamilies;
    use palisade_core::policy::QuotaUnit;
    use palisade_core::rule::Rule;
    use palisade_core::time::{Micros, SECOND};

    use super::*;

    fn reading(name: &str, class: &str) -> LimitReading {
        LimitReading {
            name: name.into(),
            scope: "ip",
            class: class.into(),
            limit: u64::MAX,
            remaining: 0,
            reset: 1_800_000_000,
            retry_after: None,
            window_seconds: 60,
            unit: QuotaUnit::Requests,
            partition: Digest(7),
            shadow: false,
        }
    }

    fn allowed(limits: Vec<LimitReading>) -> Decision {
        Decision {
            limits: limits.into(),
            ..Decision::allow(Micros(1_799_999_990 * SECOND))
        }
    }

    fn refused() -> Decision {
        let at = Micros(1_799_999_990 * SECOND);
        let (outcome, error) = (Outcome::HardBlock, ErrorCode::QuotaExceeded);
        let mut refused = Decision::refuse(at, outcome, Rule::G_THRESHOLD, error);
        refused.level = Some(Level::L3);
        refused.retry_after = Some(300);
        refused.delay_ms = Some(250);
        refused.challenge = Some(Challenge::Captcha);
        refused.lockout = Some(LockoutNote::NotAsked);
        refused.receipt = Some("AQID".into());
        refused.enforcement = Enforcement::Degraded;
        refused.quota = Some(QuotaReading {
            limit: Some(10),
            used: 10,
            reset: 1_800_000_000,
        });
        refused.reasons = vec![Reason {
            rule: Rule::G_THRESHOLD,
            key: Some(KeyKind::Account),
            limit: Some("a\"b".into()),
            decision: Outcome::HardBlock,
            level: Some(Level::L3),
            retry_after: Some(300),
        }];
        refused.not_asked = Some(["per-key".into()].into());
        refused.waited_ms = Some(120);
        refused.warnings = Some(Box::new([palisade_core::decision::ThresholdWarning {
            limit: "a\"b".into(),
            share_permille: 800,
        }]));
        let mut shadow = reading("shadow", "all");
        shadow.unit = QuotaUnit::Named("tokens".into());
        shadow.shadow = true;
        shadow.retry_after = Some(7);
        refused.limits = vec![shadow, reading("other", "all")].into();
        refused
    }

    #[test]
    fn every_byte_is_seen_wherever_it_stands() {
        for byte in 0..=u8::MAX {
            for length in 1..20 {
                for place in 0..length {
                    let mut text = vec![b'a'; length];
                    text[place] = byte;
                    let seen = look(&text);
                    assert_eq!(seen.quotes, byte == b'"', "{byte} at {place} of {length}");
                    let others = byte < b' ' || byte == b'\\';
                    assert_eq!(seen.others, others, "{byte} at {place} of {length}");
                }
            }
        }
    }

    #[test]
    fn the_bytes_are_those_that_serialize_defines() {
        let odd = [
            "plain",
            "",
            "a\"b",
            "a\\b",
            "tab\there",
            "héß",
            "\u{7f}",
            "\0",
        ];
        let mut decisions = vec![refused(), allowed(Vec::new())];
        for name in odd {
            decisions.push(allowed(vec![reading(name, "all"), reading("other", name)]));
        }
        let urls = Urls::default();
        let all = HeaderFamilies {
            x_ratelimit: true,
            ietf: true,
            org: true,
            partition_key: true,
            every_bucket: true,
        };
        for (decision, id) in decisions.iter().zip(odd.iter().cycle()) {
            for families in [HeaderFamilies::default(), all] {
                let answer = Answer::new(decision, families, &urls, id);
                let mut written = b"before".to_vec();
                answer.write_json(&mut written).unwrap();
                let defined = serde_json::to_string(&answer).unwrap();
                let written = String::from_utf8(written).unwrap();
                assert_eq!(written, format!("before{defined}"));
            }
        }
    }
}
