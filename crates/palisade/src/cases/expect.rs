//! Comparison of an answer with the expectation of a case.

use serde_json::{Map, Value};

/// One member that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Path of the member.
    pub member: String,
    /// The value that the case asks for.
    pub expected: Value,
    /// The value that the answer has.
    pub given: Value,
}

/// Compares an answer with what a case expects. Members that the case does not
/// name are free; `rules` must all appear among the reasons, the objects of a
/// list among those of the answer's, and `remaining` is what is left of limits by name.
#[must_use]
pub fn compare(expect: &Map<String, Value>, answer: &Value) -> Vec<Mismatch> {
    let mut found = Vec::new();
    for (member, expected) in expect {
        if member == "rules" {
            compare_rules(expected, answer, &mut found);
        } else if member == "remaining" {
            compare_member(member, expected, &remaining(answer), &mut found);
        } else {
            compare_member(member, expected, &answer[member.as_str()], &mut found);
        }
    }
    found
}

/// Remaining amounts by the names of the limits.
fn remaining(answer: &Value) -> Value {
    let limits = answer["limits"].as_array().into_iter().flatten();
    let named = limits.filter_map(|limit| {
        let name = limit["name"].as_str()?;
        Some((name.to_owned(), limit["remaining"].clone()))
    });
    Value::Object(named.collect())
}

fn compare_rules(expected: &Value, answer: &Value, found: &mut Vec<Mismatch>) {
    let given: Vec<Value> = answer["reasons"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|reason| reason["rule"].clone())
        .collect();
    let all = expected
        .as_array()
        .is_some_and(|rules| rules.iter().all(|rule| given.contains(rule)));
    if !all {
        found.push(Mismatch {
            member: "rules".to_owned(),
            expected: expected.clone(),
            given: Value::Array(given),
        });
    }
}

fn compare_member(member: &str, expected: &Value, given: &Value, found: &mut Vec<Mismatch>) {
    if let (Value::Object(expected), Value::Object(given)) = (expected, given) {
        for (name, expected) in expected {
            let given = given.get(name).unwrap_or(&Value::Null);
            compare_member(&format!("{member}.{name}"), expected, given, found);
        }
    } else if !is_found(expected, given) {
        found.push(Mismatch {
            member: member.to_owned(),
            expected: expected.clone(),
            given: given.clone(),
        });
    }
}

/// True if both are equal, or if every object of the expected list is in the given one.
fn is_found(expected: &Value, given: &Value) -> bool {
    let (Value::Array(expected), Value::Array(given)) = (expected, given) else {
        return expected == given;
    };
    if expected.is_empty() || !expected.iter().all(Value::is_object) {
        return expected == given;
    }
    let matches = |wanted: &Value, one: &Value| {
        let mut found = Vec::new();
        compare_member("", wanted, one, &mut found);
        found.is_empty()
    };
    expected
        .iter()
        .all(|wanted| given.iter().any(|one| matches(wanted, one)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn differs(expect: &Value, answer: &Value) -> Vec<String> {
        let expect = expect.as_object().unwrap();
        compare(expect, answer)
            .into_iter()
            .map(|m| m.member)
            .collect()
    }

    #[test]
    fn only_named_members_are_compared() {
        let answer = json!({"decision": "deny", "status": 429, "headers": {"Retry-After": "59"},
            "reasons": [{"rule": "L-IP"}]});
        assert!(differs(&json!({"decision": "deny", "rules": ["L-IP"]}), &answer).is_empty());
        assert!(differs(&json!({"headers": {"Retry-After": "59"}}), &answer).is_empty());
        assert_eq!(
            differs(&json!({"headers": {"Retry-After": "5"}}), &answer),
            ["headers.Retry-After"]
        );
        assert_eq!(differs(&json!({"rules": ["L-USER"]}), &answer), ["rules"]);
        assert_eq!(differs(&json!({"level": "L2"}), &answer), ["level"]);
    }

    #[test]
    fn a_list_names_what_must_be_among_the_answers() {
        let answer =
            json!({"limits": [{"name": "a", "remaining": 1}, {"name": "b", "remaining": 0}]});
        assert!(differs(&json!({"limits": [{"name": "b", "remaining": 0}]}), &answer).is_empty());
        assert_eq!(
            differs(&json!({"limits": [{"name": "b", "remaining": 1}]}), &answer),
            ["limits"]
        );
        assert_eq!(differs(&json!({"limits": []}), &answer), ["limits"]);
    }
}
