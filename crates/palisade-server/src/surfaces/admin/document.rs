//! The OpenAPI document: administration, the decision API, health and metrics, each as its own code
//! declares it. The service serves `openapi.json`; a test compares that file with the output of
//! this module.

use serde_json::{Value, json};
use utoipa::OpenApi;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};

use super::{
    allowlist, attack, blocks, cache, candidate, clients, explain, health, keys, lookup, quota,
    reservations, reset,
};
use crate::surfaces::decide;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Palisade administration",
        description = "Allowlist, quotas, resets, blocks and cached policies. Identifiers are never repeated in errors."
    ),
    security(("operator" = [])),
    tags(
        (name = "decisions", description = "The decision API, for backends and proxies"),
        (name = "health", description = "Probes and metrics, for supervisors and scrapers")
    ),
    paths(
        allowlist::add, allowlist::remove, allowlist::list, reset::reset,
        quota::get, quota::reset, quota::tier, quota::list,
        keys::create, keys::rotate, keys::revoke, keys::list,
        clients::add, clients::remove, clients::list,
        cache::invalidate, cache::show, blocks::list, blocks::lift,
        explain::explain, candidate::show, lookup::look_up,
        reservations::list, reservations::release,
        attack::show, attack::set
    )
)]
struct Administration;

#[derive(OpenApi)]
#[openapi(paths(health::live, health::ready, health::dependencies, super::metrics))]
struct MonitoringApi;

/// The part of the document about administration.
pub(super) fn administration() -> utoipa::openapi::OpenApi {
    let mut document = Administration::openapi();
    let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    let components = document.components.get_or_insert_default();
    components.add_security_scheme("operator", bearer);
    document
}

/// The answers that every operation of an operator may give unless it declares its own.
const REFUSALS: [(&str, &str); 7] = [
    ("400", "A field is not valid. Its value is not repeated"),
    ("401", "The credential is missing or not valid"),
    ("403", "The credential is valid, but lacks the role"),
    ("404", "Not found"),
    ("408", "The body did not arrive in time"),
    ("413", "The body is too large"),
    (
        "503",
        "The store is unavailable, or the answer took too long",
    ),
];

/// The whole document.
pub(super) fn whole() -> Value {
    let administration = administration();
    let mut operators = serde_json::to_value(&administration.paths).unwrap_or_default();
    for operation in members(&mut operators).flat_map(members) {
        add_refusals(operation);
    }
    let everything = administration
        .merge_from(decide::document::document())
        .merge_from(MonitoringApi::openapi());
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

/// Forbids fields that the schema does not name.
fn close(schema: &mut Value) {
    if let Some(schema) = schema.as_object_mut()
        && schema.contains_key("properties")
    {
        schema.insert("additionalProperties".to_owned(), Value::Bool(false));
    }
}

/// Schemas in which a field that does not apply is left out and never null.
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

#[test]
fn the_document_has_both_interfaces_and_every_reference_leads_somewhere() {
    let document = whole();
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
fn the_document_that_is_served_is_what_the_code_says() {
    let mut written = serde_json::to_string_pretty(&whole()).unwrap();
    written.push('\n');
    if written != super::DOCUMENT {
        let new = std::env::temp_dir().join("palisade-openapi.json");
        std::fs::write(&new, written).unwrap();
        panic!(
            "openapi.json is not what the code says: look at {} and put it in its place",
            new.display()
        );
    }
}
