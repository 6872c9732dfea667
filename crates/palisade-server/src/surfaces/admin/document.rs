//! The OpenAPI document: administration, the decision API, health and metrics, each
//! as its own code declares it.

use serde_json::{Value, json};
use utoipa::openapi::OpenApi;

use super::{probes, watched};
use crate::surfaces::decide;

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
pub(super) fn whole(administration: OpenApi) -> Value {
    let mut operators = serde_json::to_value(&administration.paths).unwrap_or_default();
    for operation in members(&mut operators).flat_map(members) {
        add_refusals(operation);
    }
    let everything = administration
        .merge_from(decide::document::document())
        .merge_from(probes().1)
        .merge_from(watched().1);
    let mut document = serde_json::to_value(everything).unwrap_or_default();
    if let (Some(all), Value::Object(own)) = (document["paths"].as_object_mut(), operators) {
        all.extend(own);
    }
    let schemas = &mut document["components"]["schemas"];
    if let Some(schemas) = schemas.as_object_mut() {
        decide::document::refine(schemas);
    }
    members(schemas).for_each(close);
    for name in ANSWERS {
        leave_out_nulls(&mut schemas[name]);
    }
    document
}

fn members(value: &mut Value) -> impl Iterator<Item = &mut Value> {
    value
        .as_object_mut()
        .into_iter()
        .flat_map(|all| all.values_mut())
}

/// An object has the fields that are named and no others.
fn close(schema: &mut Value) {
    if let Some(schema) = schema.as_object_mut()
        && schema.contains_key("properties")
    {
        schema.insert("additionalProperties".to_owned(), Value::Bool(false));
    }
}

/// In these a field that does not apply is left out and never null.
const ANSWERS: [&str; 5] = ["Answer", "DecisionReason", "Problem", "Reading", "Refused"];

fn leave_out_nulls(schema: &mut Value) {
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    let optional = schema["properties"].as_object_mut().into_iter().flatten();
    for (_, field) in optional.filter(|(name, _)| !required.contains(&json!(name))) {
        for among in ["type", "oneOf"] {
            if let Some(kinds) = field.get_mut(among).and_then(Value::as_array_mut) {
                kinds.retain(|kind| kind != "null" && *kind != json!({"type": "null"}));
            }
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_both_interfaces_and_every_reference_leads_somewhere() {
        let (_, administration) = super::super::described();
        let document = whole(administration);
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
}
