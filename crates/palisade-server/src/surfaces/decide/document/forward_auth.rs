//! `/forward-auth` in the OpenAPI document.

use http::Method;
use utoipa::openapi::path::{OperationBuilder, Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{Object, ObjectBuilder, SchemaType, Type};
use utoipa::openapi::security::SecurityRequirement;
use utoipa::openapi::{ContentBuilder, Ref, Required, ResponseBuilder};

use super::{problem, text_header};

/// The refusal that a client gets in place of the application's answer.
fn refused(response: ResponseBuilder) -> ResponseBuilder {
    let body = ContentBuilder::new().schema(Some(Ref::from_schema_name("Refused")));
    response.content("application/json", body.build())
}

fn waits(response: ResponseBuilder) -> ResponseBuilder {
    response.header("Retry-After", text_header("Whole seconds to wait"))
}

fn parameter(name: &str, required: Required, description: &str) -> Parameter {
    ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Header)
        .required(required)
        .description(Some(description))
        .schema(Some(Object::with_type(SchemaType::Type(Type::String))))
        .build()
}

/// Describes forward-auth in the document.
pub(super) fn operation(method: &Method) -> OperationBuilder {
    let let_through = ResponseBuilder::new()
        .description("The request may pass, with these headers")
        .header(
            "X-RateLimit-Limit",
            text_header("Size of the most constraining limit"),
        )
        .header(
            "X-RateLimit-Remaining",
            text_header("Units left of that limit"),
        )
        .header(
            "X-RateLimit-Reset",
            text_header("Unix time in seconds at which all of that limit is available again"),
        );
    let refuse = waits(refused(
        ResponseBuilder::new().description("The request is refused"),
    ));
    let closed = "Overloaded, or the store is unavailable and the class fails closed";
    let described = OperationBuilder::new()
        .summary(Some("Decides whether a proxy may pass a request on"))
        .securities(Some([
            SecurityRequirement::new("caller", [""; 0]),
            SecurityRequirement::default(),
        ]))
        .parameter(parameter(
            "X-Forwarded-Uri",
            Required::True,
            "Path and query of the original request (or `X-Original-URI`)",
        ))
        .parameter(parameter(
            "X-Forwarded-Method",
            Required::False,
            "Method of the original request; GET if absent",
        ))
        .parameter(parameter(
            "X-Forwarded-For",
            Required::False,
            "Addresses that the original request came through",
        ))
        .response("200", let_through.build())
        .response(
            "400",
            problem("A header is not valid. The body names the header and never repeats its value")
                .build(),
        )
        .response(
            "401",
            refused(problem(
                "The caller token or the client's API key is missing or wrong",
            ))
            .build(),
        )
        .response(
            "403",
            refused(problem(
                "The peer is not a trusted proxy, or a scope is missing",
            ))
            .build(),
        )
        .response("408", problem("The form did not arrive in time").build())
        .response("413", problem("The form is too large").build())
        .response("429", refuse.build())
        .response("503", waits(refused(problem(closed))).build());
    if *method == Method::GET {
        return described.operation_id(Some("forward_auth"));
    }
    described
        .operation_id(Some("forward_auth_form"))
        .request_body(Some(form()))
}

fn form() -> utoipa::openapi::request_body::RequestBody {
    let text = Object::with_type(SchemaType::Type(Type::String));
    let form = ObjectBuilder::new().property("client_id", text).build();
    // The body is the application's. A body that cannot be read names no client and is no error, so
    // that its JSON form is described in words and not by a schema.
    RequestBodyBuilder::new()
        .description(Some(
            "The original body, if the proxy passes it on. `client_id` in a form or JSON object names the OAuth client",
        ))
        .content(
            "application/x-www-form-urlencoded",
            ContentBuilder::new().schema(Some(form)).build(),
        )
        .required(Some(Required::False))
        .build()
}
