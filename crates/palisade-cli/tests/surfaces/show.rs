//! An answer as text that is the same in every run: instants and waits are masked,
//! after it was checked that they agree with each other.

use serde_json::Value;

use crate::common::Reply;

/// Headers that say nothing about the decision.
const PLUMBING: [&str; 5] = ["date", "content-length", "connection", "x-app", "server"];

/// Anything larger is an instant, in seconds.
const INSTANT: u64 = 1_000_000_000;

pub(crate) fn shown(reply: &Reply) -> String {
    let mut lines = vec![reply.status.to_string()];
    let mut headers: Vec<(String, String)> = reply
        .headers
        .iter()
        .map(|(name, value)| (name.to_ascii_lowercase(), value.clone()))
        .filter(|(name, _)| !PLUMBING.contains(&name.as_str()))
        .collect();
    headers.sort();
    let wait = reply
        .header("retry-after")
        .map(|wait| wait.parse().unwrap());
    for (name, value) in &headers {
        lines.push(format!("{name}: {}", masked_header(name, value)));
    }
    if !reply.body.is_empty() {
        let mut body: Value = reply.json();
        if wait.is_some() && !body["retry_after"].is_null() {
            assert_eq!(body["retry_after"].as_u64(), wait, "header and body agree");
        }
        mask(&mut body);
        lines.push(serde_json::to_string_pretty(&body).unwrap());
    }
    lines.join("\n")
}

fn masked_header(name: &str, value: &str) -> String {
    match name {
        "retry-after" => {
            let wait: u64 = value.parse().unwrap();
            assert!(wait >= 1, "at least a second");
            "<wait>".to_owned()
        }
        "x-request-id" if value.len() == 32 => "<made>".to_owned(),
        "ratelimit" => masked_parameter(value),
        _ => match value.parse::<u64>() {
            Ok(number) if number > INSTANT => "<instant>".to_owned(),
            _ => value.to_owned(),
        },
    }
}

/// `"name";r=0;t=60`: the time left.
fn masked_parameter(value: &str) -> String {
    let part = |part: &str| match part.split_once("t=") {
        Some(("", _)) => "t=<wait>".to_owned(),
        _ => part.to_owned(),
    };
    value.split(';').map(part).collect::<Vec<_>>().join(";")
}

fn mask(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(mask),
        Value::Object(members) => {
            for (name, member) in members {
                mask_member(name, member);
            }
        }
        Value::Number(number) if number.as_u64().is_some_and(|n| n > INSTANT) => {
            *value = "<instant>".into();
        }
        _ => {}
    }
}

fn mask_member(name: &str, member: &mut Value) {
    let text = member.as_str().map(str::to_owned);
    match (name, text) {
        ("timestamp", Some(_)) => *member = "<instant>".into(),
        ("request_id", Some(id)) if id.len() == 32 => *member = "<made>".into(),
        ("retry_after", None) if member.is_u64() => {
            assert!(member.as_u64() >= Some(1), "at least a second");
            *member = "<wait>".into();
        }
        (name, Some(text)) => *member = masked_header(&name.to_ascii_lowercase(), &text).into(),
        _ => mask(member),
    }
}

/// Several answers, one below the other.
pub(crate) fn together(answers: &[(&str, String)]) -> String {
    let one = |(name, answer): &(&str, String)| format!("== {name}\n{answer}\n");
    answers.iter().map(one).collect()
}
