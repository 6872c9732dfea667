//! Policy cases of a draft: each limit denies the first request beyond its amount.

use palisade_core::policy::{EntryMatch, ValueMatch};
use serde_json::{Map, Value, json};
use time::{Date, Duration, Month};

use super::draft::{Draft, Figure, Limit, Subject};

/// Most values that are tried where a more specific limit matches the earlier ones.
const TRIES: usize = 50;

/// The cases, one JSON object a line, and the limits that no case can exercise.
#[derive(Debug, Default)]
pub(super) struct Cases {
    pub(super) lines: Vec<Value>,
    pub(super) not_shown: Vec<String>,
}

pub(super) fn cases(draft: &Draft) -> Cases {
    let mut cases = Cases::default();
    let limits: Vec<&Limit> = draft.limits().collect();
    for (at, limit) in limits.iter().enumerate() {
        let asked = match &limit.subject {
            Subject::Descriptor {
                domain, entries, ..
            } => sample(&limits, limit, entries).map(|values| ask_rls(domain, entries, &values)),
            Subject::Requests { .. } => ask_request(&limits, limit, at),
        };
        match asked {
            Some(asked) => cases.lines.extend(lines(limit, &asked, &day(at))),
            None => cases.not_shown.push(limit.name.clone()),
        }
    }
    cases
}

/// Returns a day for each limit: usage of other cases has expired by then, and the clock of the
/// cases never goes back.
fn day(at: usize) -> String {
    let first = Date::from_calendar_date(2026, Month::January, 1).unwrap_or(Date::MIN);
    let days = i64::try_from(at).unwrap_or(0);
    let date = first.checked_add(Duration::days(days)).unwrap_or(first);
    format!("{date}T00:00:00Z")
}

/// The fields of a question, and the name of its cost field.
struct QuestionFields {
    fields: Map<String, Value>,
    weight: &'static str,
}

fn ask_rls(domain: &str, entries: &[EntryMatch], values: &[String]) -> QuestionFields {
    let entries: Vec<Value> = entries
        .iter()
        .zip(values)
        .map(|(entry, value)| json!({"key": &*entry.key, "value": value}))
        .collect();
    let fields = json!({"op": "rls", "domain": domain, "descriptors": [entries]});
    QuestionFields {
        fields: object(fields),
        weight: "hits",
    }
}

fn ask_request(limits: &[&Limit], limit: &Limit, at: usize) -> Option<QuestionFields> {
    let Subject::Requests { by, path, .. } = &limit.subject else {
        return None;
    };
    let beside = limits.iter().filter(|other| meet(limit, other));
    let own = capacity(&limit.figure)?;
    if beside
        .filter_map(|other| capacity(&other.figure))
        .any(|other| other < own)
    {
        return None;
    }
    let ip = format!("2001:db8:{at:x}::1");
    let mut fields = object(json!({"op": "request", "ip": ip, "method": "GET", "path": path}));
    if by.iter().any(|one| one == "user") {
        fields.insert("user".to_owned(), json!("sample"));
    }
    Some(QuestionFields {
        fields,
        weight: "cost",
    })
}

/// True if a request for one limit is charged to the other too.
fn meet(limit: &Limit, other: &Limit) -> bool {
    match (&limit.subject, &other.subject) {
        (
            Subject::Requests { classes, .. },
            Subject::Requests {
                classes: others, ..
            },
        ) => {
            // The path of the case belongs to the first class.
            let class = classes.first();
            let shared = others.is_empty() || class.is_some_and(|one| others.contains(one));
            limit.name != other.name && !other.shadow && shared
        }
        _ => false,
    }
}

fn capacity(figure: &Figure) -> Option<u32> {
    match figure {
        Figure::Window { count, .. } => Some(*count),
        Figure::Bucket { burst, .. } => Some(*burst),
        Figure::Admits | Figure::Denies => None,
    }
}

fn lines(limit: &Limit, asked: &QuestionFields, at: &str) -> Vec<Value> {
    let line = |weight: u32, decision: &str| {
        let mut fields = asked.fields.clone();
        fields.insert("at".to_owned(), json!(at));
        fields.insert(asked.weight.to_owned(), json!(weight));
        fields.insert("expect".to_owned(), json!({"decision": decision}));
        fields.insert("note".to_owned(), json!(limit.name));
        Value::Object(fields)
    };
    let past = if limit.shadow { "allow" } else { "deny" };
    match capacity(&limit.figure) {
        Some(count) => vec![line(count, "allow"), line(1, past)],
        None if limit.figure == Figure::Denies => vec![line(1, past)],
        None => vec![line(1, "allow")],
    }
}

/// Returns values that match this limit and no other.
fn sample(limits: &[&Limit], limit: &Limit, entries: &[EntryMatch]) -> Option<Vec<String>> {
    (1..=TRIES)
        .map(|attempt| {
            let values = entries.iter().map(|entry| value(&entry.value, attempt));
            values.collect::<Vec<String>>()
        })
        .find(|values| {
            selected(limits, &limit.subject, values).is_some_and(|found| found.name == limit.name)
        })
}

fn value(matches: &ValueMatch, attempt: usize) -> String {
    match matches {
        ValueMatch::Exact(value) => value.to_string(),
        ValueMatch::Prefix(start) => format!("{start}sample-{attempt}"),
        ValueMatch::Any => format!("sample-{attempt}"),
    }
}

/// Returns the limit that answers these values by R-DEPTH and R-VALUE.
fn selected<'a>(limits: &[&'a Limit], asked: &Subject, values: &[String]) -> Option<&'a Limit> {
    let found = limits.iter().filter_map(|limit| {
        let entries = answering(&limit.subject, asked)?;
        let fits = entries
            .iter()
            .zip(values)
            .all(|(entry, value)| entry.value.matches(value));
        fits.then(|| (specificity(entries), *limit))
    });
    let best = found.max_by(|(one, _), (other, _)| one.cmp(other));
    best.map(|(_, limit)| limit)
}

fn specificity(entries: &[EntryMatch]) -> Vec<(u8, usize)> {
    let each = entries.iter().map(|entry| entry.value.specificity());
    each.collect()
}

/// Returns the entries of a limit with the same domain and keys.
fn answering<'a>(subject: &'a Subject, asked: &Subject) -> Option<&'a [EntryMatch]> {
    match (subject, asked) {
        (
            Subject::Descriptor {
                domain, entries, ..
            },
            Subject::Descriptor {
                domain: of,
                entries: keys,
                ..
            },
        ) => {
            let same = domain == of
                && entries.len() == keys.len()
                && entries
                    .iter()
                    .zip(keys)
                    .all(|(one, other)| one.key == other.key);
            same.then_some(entries.as_slice())
        }
        _ => None,
    }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}
