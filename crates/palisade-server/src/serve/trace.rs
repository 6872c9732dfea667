//! A span for each request, to which the spans of its decisions belong. Nothing of this is compiled
//! without the feature `otlp`, and nothing is measured without a collector.

#[cfg(feature = "otlp")]
pub(crate) use exported::{Traces, identify, run, span};
#[cfg(not(feature = "otlp"))]
pub(crate) use nothing::{Traces, identify, run, span};

#[cfg(not(feature = "otlp"))]
mod nothing {
    use http::Request;

    use crate::failure::Failure;

    /// Traces without the feature `otlp`.
    pub(crate) struct Traces;

    impl Traces {
        pub(crate) fn start() -> Result<Self, Failure> {
            if std::env::var_os("OTEL_EXPORTER_OTLP_ENDPOINT").is_some() {
                crate::output::error_line(
                    "OTEL_EXPORTER_OTLP_ENDPOINT has no effect: this binary was built without the feature `otlp`",
                );
            }
            Ok(Self)
        }

        pub(crate) fn flush(&self) {}
    }

    /// A span without the feature `otlp`.
    pub(crate) struct NoSpan;

    pub(crate) const fn span<B>(_request: &Request<B>) -> NoSpan {
        NoSpan
    }

    pub(crate) const fn identify(_request_id: &str) {}

    pub(crate) fn run<F>(_span: NoSpan, answering: F) -> F {
        answering
    }
}

#[cfg(feature = "otlp")]
mod exported {
    use std::time::Duration;

    use bytes::Bytes;
    use http::{HeaderMap, Method, Request, Response};
    use http_body_util::{BodyExt, Full, Limited};
    use hyper_util::client::legacy::Client;
    use hyper_util::rt::TokioExecutor;
    use opentelemetry::propagation::{Extractor, TextMapPropagator};
    use opentelemetry::trace::TracerProvider;
    use opentelemetry_http::{HttpClient, HttpError};
    use opentelemetry_otlp::{SpanExporter, WithHttpConfig};
    use opentelemetry_sdk::Resource;
    use opentelemetry_sdk::propagation::TraceContextPropagator;
    use opentelemetry_sdk::trace::SdkTracerProvider;
    use palisade::observe::SPAN_TARGET;
    use tracing::instrument::{Instrument, Instrumented};
    use tracing::level_filters::LevelFilter;
    use tracing_opentelemetry::OpenTelemetrySpanExt;
    use tracing_subscriber::filter::Targets;
    use tracing_subscriber::{Layer, Registry};

    use crate::failure::Failure;

    /// Standard variables with the address of a collector.
    const ENDPOINTS: [&str; 2] = [
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
    ];
    /// Longest time to send a batch.
    const EXPORT_MAX: Duration = Duration::from_secs(10);
    /// Longest time to send the last batch at shutdown.
    const FLUSH_MAX: Duration = Duration::from_secs(5);
    /// Largest answer of a collector that is read, in bytes.
    const ANSWER_BYTES_MAX: usize = 64 * 1024;

    /// The export of spans to a collector, if one is configured.
    pub(crate) struct Traces(Option<SdkTracerProvider>);

    impl Traces {
        /// Starts the export if the environment names a collector.
        pub(crate) fn start() -> Result<Self, Failure> {
            let Some((name, endpoint)) = endpoint() else {
                return Ok(Self(None));
            };
            let refused = |what: &str| {
                Failure::usage(
                    format!("`{name}` {what}"),
                    "name a collector that takes OTLP over HTTP, for example http://127.0.0.1:4318",
                )
            };
            if !endpoint.starts_with("http://") {
                return Err(refused(
                    "must be plain HTTP: a collector beside this process",
                ));
            }
            let exporter = SpanExporter::builder()
                .with_http()
                .with_http_client(Collector)
                .build()
                .map_err(|_| refused("cannot be used"))?;
            let resource = match std::env::var_os("OTEL_SERVICE_NAME") {
                Some(_) => Resource::builder(),
                None => Resource::builder().with_service_name("palisade"),
            };
            let provider = SdkTracerProvider::builder()
                .with_batch_exporter(exporter)
                .with_resource(resource.build())
                .build();
            Ok(Self(Some(provider)))
        }

        /// The tracing layer that exports spans; `None` without a collector.
        pub(crate) fn layer(&self) -> Option<Box<dyn Layer<Registry> + Send + Sync>> {
            let tracer = self.0.as_ref()?.tracer("palisade");
            let ours = Targets::new().with_target(SPAN_TARGET, LevelFilter::INFO);
            let layer = tracing_opentelemetry::layer()
                .with_tracer(tracer)
                .with_location(false)
                .with_threads(false)
                .with_tracked_inactivity(false)
                .with_filter(ours);
            Some(layer.boxed())
        }

        /// Sends queued spans, at shutdown.
        pub(crate) fn flush(&self) {
            if let Some(provider) = &self.0
                && provider.shutdown_with_timeout(FLUSH_MAX).is_err()
            {
                tracing::warn!("spans were still waiting to be sent at the end");
            }
        }
    }

    fn endpoint() -> Option<(&'static str, String)> {
        ENDPOINTS.into_iter().find_map(|name| {
            let value = std::env::var(name).ok().filter(|value| !value.is_empty());
            Some((name, value?))
        })
    }

    /// The span of a request, as a child of the caller's if it has one. Methods are recorded only
    /// if they are well known, and paths never: they may hold an identifier.
    pub(crate) fn span<B>(request: &Request<B>) -> tracing::Span {
        if !tracing::enabled!(target: SPAN_TARGET, tracing::Level::INFO) {
            return tracing::Span::none();
        }
        let method = request.method();
        let known = [
            Method::GET,
            Method::HEAD,
            Method::POST,
            Method::PUT,
            Method::PATCH,
            Method::DELETE,
            Method::OPTIONS,
        ];
        let shown = if known.contains(method) {
            method.as_str()
        } else {
            "_OTHER"
        };
        let span = tracing::info_span!(
            target: SPAN_TARGET,
            "request",
            otel.kind = "server",
            http.request.method = shown,
            palisade.request_id = tracing::field::Empty
        );
        if !span.is_disabled() {
            // The span continues the caller's trace.
            let parent = TraceContextPropagator::new().extract(&Headers(request.headers()));
            let _ = span.set_parent(parent);
        }
        span
    }

    /// Records the id of the request on the current span (I-ID). Must be called within that span.
    pub(crate) fn identify(request_id: &str) {
        if tracing::enabled!(target: SPAN_TARGET, tracing::Level::INFO) {
            tracing::Span::current().record("palisade.request_id", request_id);
        }
    }

    pub(crate) fn run<F: Future>(span: tracing::Span, answering: F) -> Instrumented<F> {
        answering.instrument(span)
    }

    /// Gives the propagator access to the headers.
    struct Headers<'a>(&'a HeaderMap);

    impl Extractor for Headers<'_> {
        fn get(&self, key: &str) -> Option<&str> {
            self.0.get(key)?.to_str().ok()
        }

        fn keys(&self) -> Vec<&str> {
            self.0.keys().map(http::HeaderName::as_str).collect()
        }
    }

    /// Sends batches on the exporter's own thread. That thread has no runtime, so that each batch
    /// gets one of its own.
    #[derive(Debug)]
    struct Collector;

    #[async_trait::async_trait]
    impl HttpClient for Collector {
        async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(async { tokio::time::timeout(EXPORT_MAX, send(request)).await })?
        }
    }

    async fn send(request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = Client::builder(TokioExecutor::new()).build_http();
        let response = client.request(request.map(Full::new)).await?;
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await?;
        Ok(Response::from_parts(parts, body.to_bytes()))
    }
}
