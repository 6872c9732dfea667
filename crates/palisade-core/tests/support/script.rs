//! Behaviour scripts. One line is `time [xN/step] command facts… => expectation…`:
//!
//! ```text
//! 0      fail d=d1            => allow
//! 1s     fail d=d1            => soft L1 15s G-THRESHOLD
//! 5m x3/1s check a=a2 d=f0    => *
//! ```
//!
//! Commands: check fail ok unknown otp.check otp.fail otp.ok hit rotate. Facts: `a=` account,
//! `ip=` last byte, `d=NAME[/low|/high][+known][+trusted]` (trusted is HIGH), `ua=` Chrome's version,
//! `user=`, `id=`, `c=` country and `pass`; `#` in a value is the repetition's number. Expectations:
//! the decision or `*`, level, seconds, the deciding rule, `+RULE` among the reasons,
//! `score:KEY+N`, `delay=N`, `captcha`, `nothing` (no record is written).

use palisade_core::facts::{Confidence, DeviceFacts, GuardFacts, GuardOp, Id};
use palisade_core::geo::Country;
use palisade_core::key::Keyring;
use palisade_core::time::{DAY, HOUR, MINUTE, Micros, SECOND};

use super::{CHROME, Outcome, START, World};

/// Runs a script. The error is the first line that gets another answer.
pub(crate) fn check(world: &mut World, script: &str) -> Result<(), String> {
    let lines = script.lines().map(str::trim);
    for line in lines.filter(|line| !line.is_empty()) {
        let (command, expected) = line.split_once("=>").expect("a line has an expectation");
        let mut words = command.split_whitespace().peekable();
        let mut at = START.plus(span(words.next().unwrap()));
        let (times, step) = match words.peek().and_then(|word| word.strip_prefix('x')) {
            Some(repeat) => {
                words.next();
                let (times, step) = repeat.split_once('/').unwrap();
                (times.parse().unwrap(), span(step))
            }
            None => (1, 0),
        };
        let words: Vec<&str> = words.collect();
        for number in 0..times {
            let outcome = step_of(world, &words, number, at);
            if let Some(outcome) = outcome
                && let Err(problem) = judge(&outcome, expected)
            {
                return Err(format!(
                    "{line} (#{number}): {problem}, got {:?}",
                    outcome.answer
                ));
            }
            at = at.plus(step);
        }
    }
    Ok(())
}

fn step_of(world: &mut World, words: &[&str], number: u64, at: Micros) -> Option<Outcome> {
    let (command, facts) = words.split_first().unwrap();
    if *command == "rotate" {
        rotate(world);
        return None;
    }
    let op = match *command {
        "check" => GuardOp::LoginCheck,
        "fail" => GuardOp::LoginFailure,
        "ok" => GuardOp::LoginSuccess,
        "unknown" => GuardOp::LoginUnknown,
        "otp.check" => GuardOp::OtpCheck,
        "otp.fail" => GuardOp::OtpFailure,
        "otp.ok" => GuardOp::OtpSuccess,
        "hit" => GuardOp::ApiHit,
        other => unreachable!("no command {other}"),
    };
    Some(world.apply(op, &facts_of(facts, number), at))
}

/// Rotates the secret; the old one stays readable as long as G-ROT is on.
fn rotate(world: &mut World) {
    let previous: Option<&[u8]> = if world.rotates { Some(&[7; 32]) } else { None };
    world.keyring = Keyring::new(&[8; 32], previous).unwrap();
}

fn facts_of(words: &[&str], number: u64) -> GuardFacts {
    let mut facts = GuardFacts::new("203.0.113.1".parse().unwrap());
    facts.user_agent = Some(CHROME.into());
    facts.account = id("a1");
    for word in words {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        let value = value.replace('#', &number.to_string());
        match name {
            "a" => facts.account = id(&value),
            "ip" => facts.ip = format!("203.0.113.{value}").parse().unwrap(),
            "d" => facts.device = device(&value),
            "ua" => facts.user_agent = Some(format!("Chrome/{value}.0").into()),
            "user" => facts.username = id(&value),
            "id" => facts.request_id = id(&value),
            "session" => facts.device.session_id = id(&value),
            "pass" => facts.challenge_passed = true,
            "c" => facts.geo.stated.country = Country::parse(&value),
            other => unreachable!("no fact {other}"),
        }
    }
    facts
}

fn device(text: &str) -> DeviceFacts {
    let mut parts = text.split('+');
    let (name, confidence) = match parts.next().unwrap().split_once('/') {
        Some((name, "low")) => (name, Confidence::Low),
        Some((name, "high")) => (name, Confidence::High),
        Some((name, _)) => (name, Confidence::Medium),
        None => (text.split('+').next().unwrap(), Confidence::Medium),
    };
    let flags: Vec<&str> = parts.collect();
    let trusted = flags.contains(&"trusted");
    DeviceFacts {
        fingerprint: id(name),
        confidence: Some(if trusted {
            Confidence::High
        } else {
            confidence
        }),
        known: flags.contains(&"known"),
        trusted,
        ..DeviceFacts::default()
    }
}

fn id(text: &str) -> Option<Id> {
    Some(Id::new("id", text).unwrap())
}

/// `1d2h3m4s`, `250ms`, or plain seconds.
fn span(text: &str) -> u64 {
    let mut total = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, tail) = rest.split_at(digits);
        let unit_end = tail.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, tail) = tail.split_at(unit_end);
        let us = match unit {
            "d" => DAY,
            "h" => HOUR,
            "m" => MINUTE,
            "s" | "" => SECOND,
            "ms" => 1_000,
            "us" => 1,
            other => unreachable!("no unit {other}"),
        };
        total += number.parse::<u64>().unwrap() * us;
        rest = tail;
    }
    total
}

fn judge(outcome: &Outcome, expected: &str) -> Result<(), String> {
    let decision = outcome.answer.decision(START);
    let reasons: Vec<&str> = decision.reasons.iter().map(|r| r.rule.id()).collect();
    for word in expected.split_whitespace() {
        let holds = match word {
            "*" => true,
            "allow" => decision.outcome.name() == "allow" && decision.rule.is_none(),
            "soft" => decision.outcome.name() == "soft_block",
            "hard" => decision.outcome.name() == "hard_block",
            "deny" => decision.outcome.name() == "deny",
            "captcha" => decision.challenge.is_some(),
            "nocaptcha" => decision.challenge.is_none(),
            "nothing" => !outcome.changed.any(),
            "locked" => outcome.locked,
            word => holds(outcome, word, &reasons),
        };
        if !holds {
            return Err(format!("`{word}` does not hold"));
        }
    }
    Ok(())
}

fn holds(outcome: &Outcome, word: &str, reasons: &[&str]) -> bool {
    let answer = &outcome.answer;
    if let Some(rule) = word.strip_prefix('+') {
        return reasons.contains(&rule);
    }
    if let Some(rule) = word.strip_prefix('-') {
        return !reasons.contains(&rule);
    }
    if let Some(ms) = word.strip_prefix("delay=") {
        return answer.delay_ms.unwrap_or(0).to_string() == ms;
    }
    if let Some(score) = word.strip_prefix("score:") {
        return outcome
            .scored
            .iter()
            .any(|scored| format!("{}+{}", scored.key.code(), scored.points) == score);
    }
    if ["G-", "A-", "P-"]
        .iter()
        .any(|family| word.starts_with(family))
    {
        return answer.rule.map(palisade_core::Rule::id) == Some(word);
    }
    if word.starts_with('L') {
        return answer.level.map(|level| format!("{level:?}")) == Some(word.to_owned());
    }
    answer.retry_after == Some(span(word) / SECOND)
}
