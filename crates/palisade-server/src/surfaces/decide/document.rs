//! The decision API in the OpenAPI document, from the routes and types that answer.

mod forward_auth;

use http::Method;
use palisade::wire::{
    Answer, ExtendedAnswer, HeldMembers, IssuedAnswer, RawChallenge, RawFollowUp, RawGuard,
    RawRequest, ReservedAnswer, SettledAnswer, VerifiedAnswer,
};
use palisade_core::facts::GuardOp;
use serde_json::{Map, Value, json};
use utoipa::openapi::path::{Operation, OperationBuilder, PathItem, PathItemBuilder};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{
    Components, ComponentsBuilder, Object, OneOfBuilder, Schema, SchemaType, Type,
};
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::{
    ContentBuilder, HeaderBuilder, HttpMethod, OpenApi, OpenApiBuilder, PathsBuilder, Ref, RefOr,
    Required, Response, ResponseBuilder, ServerBuilder,
};
use utoipa::{PartialSchema, ToSchema};

use super::Route;
use super::batch::{Answers, Batch};
use super::checks::{RefundFacts, RefundResult};
use super::guard::{IssuedSession, NewSession, RawSession, RevokedSessions};
use super::reservations::Step;
use crate::surfaces::exchange::problem::Document as Problem;

const TAG: &str = "decisions";

/// Refusals that any request may get, under the names that they have in the components.
const REFUSALS: [(&str, &str, &str); 6] = [
    (
        "400",
        "BadField",
        "A field is not valid. The body names the field and never repeats its value",
    ),
    ("401", "NoCaller", "The caller token is missing or wrong"),
    ("403", "NotFromHere", "Not accepted from here"),
    ("408", "TooSlow", "The body did not arrive in time"),
    ("413", "TooLarge", "The body is too large"),
    ("503", "Unavailable", "The service is unavailable now"),
];

/// Paths, schemas and credentials of the decision API.
pub(in crate::surfaces) fn document() -> OpenApi {
    let paths = Route::all().fold(PathsBuilder::new(), |paths, (path, route)| {
        paths.path(path, item(route))
    });
    OpenApiBuilder::new()
        .paths(paths)
        .components(Some(components()))
        .build()
}

fn item(route: Route) -> PathItem {
    let (_, methods) = route.allow();
    let server = ServerBuilder::new()
        .url("http://127.0.0.1:8080")
        .description(Some(
            "The decision API has an address of its own (`[server] listen`)",
        ))
        .build();
    methods
        .iter()
        .fold(PathItemBuilder::new(), |item, method| {
            item.operation(http_method(method), operation(route, method))
        })
        .servers(Some([server]))
        .build()
}

fn http_method(method: &Method) -> HttpMethod {
    match *method {
        Method::GET => HttpMethod::Get,
        Method::DELETE => HttpMethod::Delete,
        _ => HttpMethod::Post,
    }
}

fn operation(route: Route, method: &Method) -> Operation {
    if route == Route::ForwardAuth {
        return forward_auth::operation(method).tag(TAG).build();
    }
    let words = words(route, method);
    let request = RequestBodyBuilder::new()
        .content("application/json", json(words.takes))
        .required(Some(Required::True))
        .build();
    let answer = ResponseBuilder::new()
        .description(words.answered)
        .content("application/json", json(words.gives))
        .header(
            "X-Request-Id",
            text_header("Id of the request; absent if a header cannot carry it"),
        )
        .build();
    let operation = OperationBuilder::new()
        .tag(TAG)
        .summary(Some(words.summary))
        .operation_id(Some(words.id))
        .securities(Some([
            SecurityRequirement::new("caller", [""; 0]),
            SecurityRequirement::new("bearer", [""; 0]),
            SecurityRequirement::default(),
        ]))
        .request_body(Some(request))
        .response("200", answer.clone());
    // 202: a result that cannot be recorded now is tried again.
    let operation = match route {
        Route::Challenge | Route::VerifyChallenge => operation.response(
            "429",
            problem("The client's address has asked too often; see `Retry-After`"),
        ),
        Route::FollowUp(Step::Settle | Step::Release) => operation.response("202", answer),
        _ => operation,
    };
    REFUSALS
        .iter()
        .fold(operation, |operation, (status, name, _)| {
            operation.response(*status, Ref::from_response_name(*name))
        })
        .build()
}

/// Texts of the document about one operation.
struct Words {
    id: String,
    summary: String,
    answered: &'static str,
    takes: &'static str,
    gives: &'static str,
}

fn words(route: Route, method: &Method) -> Words {
    const DATA: &str = "The decision. The status is 200 also if the request is refused";
    let words = |id: &str, summary: &str, answered, takes, gives| Words {
        id: id.to_owned(),
        summary: summary.to_owned(),
        answered,
        takes,
        gives,
    };
    let decides = |id, summary| words(id, summary, DATA, "RequestFacts", "Answer");
    match route {
        Route::Check => decides("check", "Decides about a request and charges its buckets"),
        Route::Peek => decides("peek", "Decides about a request and charges nothing"),
        Route::Refund => words(
            "refund",
            "Gives back the charge of a check, at most once",
            "Result of the refund",
            "RefundFacts",
            "Refunded",
        ),
        Route::Batch => words(
            "batch",
            "Makes up to 1000 checks, in order",
            DATA,
            "Batch",
            "Answers",
        ),
        Route::Reserve => words(
            "reserve",
            "Reserves the estimated cost of a request, and its slots where requests in progress are limited",
            DATA,
            "ReserveFacts",
            "Reserved",
        ),
        Route::FollowUp(Step::Extend) => words(
            "extend",
            "Extends a reservation: adds cost, moves its end, or both",
            DATA,
            "ReservationFacts",
            "Extended",
        ),
        Route::FollowUp(Step::Settle) => words(
            "settle",
            "Settles a reservation: corrects it to the amounts that were used, at most once",
            "Amounts used and reserved",
            "ReservationFacts",
            "Settled",
        ),
        Route::FollowUp(Step::Release) => words(
            "release",
            "Releases a reservation: gives all of it back, because nothing was used",
            "Amounts reserved",
            "ReservationFacts",
            "Settled",
        ),
        Route::Guard(op) => {
            let takes = match op {
                GuardOp::ApiHit => "HitFacts",
                GuardOp::OtpSend => "SendFacts",
                _ => "GuardFacts",
            };
            let id = op.name().replace('.', "_");
            words(&id, &moment(op), DATA, takes, "Answer")
        }
        Route::Sessions if *method == Method::DELETE => words(
            "revoke_sessions",
            "Revokes one session device of an account, or all of them",
            "Number of revoked session devices",
            "OldSession",
            "Revoked",
        ),
        Route::Sessions => words(
            "issue_session",
            "Issues a session device to an account",
            "The session id. No other answer shows it",
            "NewSession",
            "Issued",
        ),
        Route::Challenge => words(
            "challenge",
            "Issues a challenge for a client",
            "The challenge. Nothing is remembered of it",
            "ChallengeFacts",
            "Challenged",
        ),
        Route::VerifyChallenge => words(
            "verify_challenge",
            "Verifies a solution, and exchanges it for a token that frees one attempt",
            "Whether the challenge was passed",
            "ChallengeSolution",
            "Verified",
        ),
        Route::ForwardAuth => words("forward_auth", "", DATA, "", ""),
        // For browsers, and not described.
        Route::ChallengePage => words("challenge_page", "", DATA, "", ""),
    }
}

/// The moment at which a guard command is to be sent.
fn moment(op: GuardOp) -> String {
    let (flow, step) = op.name().split_once('.').unwrap_or_default();
    let when = match step {
        "check" => "check before the credential is verified",
        "failure" => "report that the credential was wrong",
        "success" => "report that the credential was right",
        "unknown" => "report that the outcome is unknown",
        "send" => "ask before a code is sent",
        _ => return "Heavy API: report a call of a heavy endpoint".to_owned(),
    };
    format!("{flow}: {when}")
}

fn json(schema: &str) -> utoipa::openapi::Content {
    ContentBuilder::new()
        .schema(Some(Ref::from_schema_name(schema)))
        .build()
}

/// A header whose value is text.
fn text_header(description: &str) -> utoipa::openapi::Header {
    HeaderBuilder::new()
        .schema(Some(Object::with_type(SchemaType::Type(Type::String))))
        .description(Some(description))
        .build()
}

/// A refusal as a problem document.
fn problem(description: &str) -> ResponseBuilder {
    ResponseBuilder::new()
        .description(description)
        .content("application/problem+json", json(&Problem::name()))
}

/// Adds a schema with all schemas that it refers to.
fn with<T: ToSchema>(components: ComponentsBuilder) -> ComponentsBuilder {
    let mut referred = Vec::new();
    T::schemas(&mut referred);
    components
        .schema(T::name(), T::schema())
        .schemas_from_iter(referred)
}

fn components() -> Components {
    let components = [
        with::<RequestFacts>,
        with::<RawRequest<'_>>,
        with::<RawGuard<'_>>,
        with::<Batch<'_>>,
        with::<Answer<'_>>,
        with::<Answers<'_>>,
        with::<RefundFacts>,
        with::<RefundResult<'_>>,
        with::<RawFollowUp>,
        with::<HeldMembers<'_>>,
        with::<ReservedAnswer<'_>>,
        with::<ExtendedAnswer<'_>>,
        with::<SettledAnswer<'_>>,
        with::<RawChallenge<'_>>,
        with::<IssuedAnswer<'_>>,
        with::<VerifiedAnswer<'_>>,
        with::<NewSession>,
        with::<RawSession>,
        with::<IssuedSession<'_>>,
        with::<RevokedSessions<'_>>,
        with::<Problem<'_>>,
    ]
    .into_iter()
    .fold(ComponentsBuilder::new(), |components, add| add(components));
    REFUSALS
        .iter()
        .fold(components, |components, (_, name, description)| {
            let refusal: Response = problem(description).build();
            components.response(*name, refusal)
        })
        .security_scheme(
            "caller",
            SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::with_description(
                "X-Palisade-Caller",
                "The caller token, if one is configured",
            ))),
        )
        .security_scheme(
            "bearer",
            SecurityScheme::Http(
                HttpBuilder::new()
                    .scheme(HttpAuthScheme::Bearer)
                    .description(Some("The caller token as a bearer token"))
                    .build(),
            ),
        )
        .build()
}

/// The subject of a check: the facts of a request or of a job. Both are the same fields.
pub(super) struct RequestFacts;

impl PartialSchema for RequestFacts {
    fn schema() -> RefOr<Schema> {
        OneOfBuilder::new()
            .item(Ref::from_schema_name("HttpRequest"))
            .item(Ref::from_schema_name("Job"))
            .description(Some("Facts of an HTTP request or of a background job"))
            .into()
    }
}

impl ToSchema for RequestFacts {}

/// Fields of a job, which counts for its organisation and token (T-JOBS).
const JOB_FIELDS: [&str; 10] = [
    "org",
    "token",
    "class",
    "user",
    "cost",
    "costs",
    "receipt",
    "report",
    "request_id",
    "correlation_id",
];

/// Merges the members of `Held` into the schemas of answers that have them beside members of their
/// own, so that each answer is one object.
fn with_what_is_held(schemas: &mut Map<String, Value>) {
    let held = schemas.remove("Held").unwrap_or_default();
    let answer = schemas.get("Answer").cloned().unwrap_or_default();
    let extended = schemas.get("Extended").map(|one| one["allOf"][1].clone());
    for (name, own) in [
        ("Reserved", answer),
        ("Extended", extended.unwrap_or_default()),
    ] {
        let Some(schema) = schemas.get_mut(name) else {
            continue;
        };
        let mut whole = own;
        whole["description"] = schema["description"].clone();
        for (field, says) in held["properties"].as_object().into_iter().flatten() {
            whole["properties"][field] = says.clone();
        }
        *schema = whole;
    }
}

/// Splits the facts of a challenge into those that ask for one and those that solve it.
fn split_challenges(schemas: &mut Map<String, Value>) {
    if let Some(parameters) = schemas.get_mut("ChallengeParameters") {
        // Otherwise an object of any kind would be the empty one, too.
        parameters["oneOf"][2]["additionalProperties"] = json!(false);
    }
    let Some(facts) = schemas.get_mut("ChallengeFacts") else {
        return;
    };
    let mut solution = facts.clone();
    solution["description"] = json!("Facts about the client of a challenge, and its solution");
    solution["required"] = json!(["flow", "ip", "solution"]);
    solution["properties"]["solution"]["type"] = json!("string");
    if let Some(fields) = facts["properties"].as_object_mut() {
        fields.remove("solution");
    }
    schemas.insert("ChallengeSolution".to_owned(), solution);
}

/// Splits types that are read in more than one way into a schema for each way.
pub(in crate::surfaces) fn refine(schemas: &mut Map<String, Value>) {
    let words = |words: &[&str]| {
        let all = words.iter().map(|word| json!(word)).chain([Value::Null]);
        json!({"type": ["string", "null"], "enum": all.collect::<Vec<_>>()})
    };
    let mut job = json!({"type": "object", "required": ["op"], "properties": {}});
    if let Some(request) = schemas.get_mut("HttpRequest") {
        for field in JOB_FIELDS {
            job["properties"][field] = request["properties"][field].clone();
        }
        request["properties"]["op"] = words(&["request"]);
    }
    if let Some(request) = schemas.get("HttpRequest") {
        let mut reserve = request.clone();
        reserve["description"] = json!("Facts of the request that a reservation is for");
        if let Some(fields) = reserve["properties"].as_object_mut() {
            fields.remove("receipt");
            fields.remove("report");
        }
        reserve["properties"]["hold"] = json!({"type": ["string", "null"],
            "description": "Time until the reservation ends unless it is extended, for example `90s`"});
        reserve["properties"]["at_most"] = json!({"type": ["boolean", "null"],
            "description": "Whether to reserve what is left if the whole cost does not fit"});
        schemas.insert("ReserveFacts".to_owned(), reserve);
    }
    split_challenges(schemas);
    with_what_is_held(schemas);
    job["description"] = json!(
        "Facts of a background job that is about to be enqueued. It counts for its organisation and token"
    );
    job["properties"]["op"] = json!({"type": "string", "enum": ["job.enqueue"]});
    job["properties"]["layers"] = words(&["all", "identity"]);
    let named =
        |field: &str| json!({"required": [field], "properties": {field: {"type": "string"}}});
    job["anyOf"] = json!([named("org"), named("token")]);
    schemas.insert("Job".to_owned(), job);
    let mut send = schemas.get("GuardFacts").cloned().unwrap_or_default();
    send["required"] = json!(["ip", "destination", "channel"]);
    send["description"] = json!("Facts of a one-time code that is about to be sent");
    send["properties"]["account"]["type"] = json!(["string", "null"]);
    send["properties"]["destination"]["type"] = json!("string");
    send["properties"]["channel"] = json!({"$ref": "#/components/schemas/Channel"});
    schemas.insert("SendFacts".to_owned(), send);
    if let Some(guard) = schemas.get_mut("GuardFacts")
        && let Some(fields) = guard["properties"].as_object_mut()
    {
        fields.remove("channel");
        fields.remove("price");
    }
    let mut hit = schemas.get("GuardFacts").cloned().unwrap_or_default();
    if let Some(fields) = hit["properties"].as_object_mut() {
        fields.remove("destination");
    }
    // A call of a heavy endpoint may have no account.
    hit["required"] = json!(["ip"]);
    hit["properties"]["account"]["type"] = json!(["string", "null"]);
    hit["description"] = json!("Facts of a call of a heavy endpoint");
    schemas.insert("HitFacts".to_owned(), hit);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_is_found_at_the_path_that_the_document_gives_it() {
        for (path, route) in Route::all() {
            assert_eq!(Route::find(&path), Some(route), "{path}");
        }
        assert_eq!(Route::all().count(), 12 + GuardOp::ALL.len());
    }
}
