//! The OpenAPI document: administration as its handlers declare it, and beside it
//! the decision API, health and metrics, which have none.

use serde_json::{Map, Value, json};
use utoipa::openapi::OpenApi;

/// Paths and schemas of everything that is not administration.
const DECISIONS: &str = include_str!("decisions.json");

/// What any operation of an operator may be answered, if it says nothing else.
const REFUSALS: [(&str, &str); 6] = [
    ("400", "A field is not valid; its value is not repeated"),
    ("401", "No credential, or one that is not valid"),
    ("403", "A valid token without the role"),
    ("404", "There is nothing of that name"),
    ("413", "The body is too large"),
    ("503", "The store cannot be asked now"),
];

/// The whole document.
pub(super) fn whole(administration: &OpenApi) -> Value {
    let mut document = serde_json::to_value(administration).unwrap_or_default();
    if let Some(paths) = document["paths"].as_object_mut() {
        for operation in paths.values_mut().filter_map(Value::as_object_mut) {
            operation.values_mut().for_each(add_refusals);
        }
    }
    let decisions: Value = serde_json::from_str(DECISIONS).unwrap_or_default();
    merge(&mut document, decisions);
    document
}

fn add_refusals(operation: &mut Value) {
    let Some(responses) = operation["responses"].as_object_mut() else {
        return;
    };
    for (status, description) in REFUSALS {
        responses.entry(status).or_insert_with(|| {
            let schema = json!({"$ref": "#/components/schemas/Refusal"});
            json!({"description": description, "content": {"application/json": {"schema": schema}}})
        });
    }
}

/// Adds what `into` does not have yet.
fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => merge_members(into, from),
        (into @ Value::Null, from) => *into = from,
        _ => {}
    }
}

fn merge_members(into: &mut Map<String, Value>, from: Map<String, Value>) {
    for (name, value) in from {
        merge(into.entry(name).or_insert(Value::Null), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_both_interfaces_and_every_reference_leads_somewhere() {
        let (_, administration) = super::super::described();
        let document = whole(&administration);
        for path in ["/v1/check", "/forward-auth", "/metrics", "/admin/blocks"] {
            assert!(document["paths"][path].is_object(), "{path}");
        }
        let text = document.to_string();
        for part in text.split("\"#/components/").skip(1) {
            let name = part.split('"').next().unwrap();
            let part = document["components"].pointer(&format!("/{name}"));
            assert!(part.is_some_and(Value::is_object), "{name}");
        }
    }

    #[test]
    fn every_path_of_the_decision_api_is_described() {
        let decisions: Value = serde_json::from_str(DECISIONS).unwrap();
        let paths = decisions["paths"].as_object().unwrap();
        for op in palisade_core::facts::GuardOp::ALL {
            let path = format!("/v1/guard/{}", op.name().replace('.', "/"));
            assert!(paths.contains_key(&path), "{path}");
        }
        for path in [
            "/v1/check",
            "/v1/peek",
            "/v1/refund",
            "/v1/batch",
            "/v1/guard/sessions",
        ] {
            assert!(paths.contains_key(path), "{path}");
        }
    }
}
