//! Around a login: the guard is asked before the password is verified, and told what came
//! of it.

use std::any::Any;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT_LANGUAGE, HeaderMap, HeaderName, USER_AGENT};
use http::request::Parts as RequestParts;
use http::response::Parts;
use http::{Request, StatusCode};
use palisade_core::facts::{DeviceFacts, GuardFacts, GuardOp, HEADER_BYTES_MAX};
use palisade_core::{FieldError, Id};
use palisade_store::Store;
use tower_layer::Layer;

use super::gate::{Decided, Gate};
use super::refusal::Refusal;
use super::service::{Enforced, Kept, Passed, Rule};
use crate::answer;
use crate::engine::Engine;
use crate::extract::header::truncated;
use crate::extract::login::counted;

const PLATFORM: HeaderName = HeaderName::from_static("sec-ch-ua-platform");

/// Who tries to log in, and from what.
///
/// ```
/// use palisade::tower::Attempt;
///
/// let attempt = Attempt::by(" Ann ")?.account("customer-4711")?;
/// assert!(Attempt::by("").is_err(), "a login must say who tries");
/// # let _ = attempt;
/// # Ok::<(), palisade::core::FieldError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Attempt {
    account: Id,
    username: Option<Id>,
    device: DeviceFacts,
    challenge_passed: bool,
}

impl Attempt {
    /// An attempt by this name, however it was typed: it is the account, and what the lockout
    /// counts on. Surrounding space, upper case, accents, invisible characters and compatible
    /// spellings of a letter make no other name of it.
    ///
    /// # Errors
    /// Empty, too long, or with control characters.
    pub fn by(username: &str) -> Result<Self, FieldError> {
        let username = counted(username)?;
        Ok(Self {
            account: username.clone(),
            username: Some(username),
            device: DeviceFacts::default(),
            challenge_passed: false,
        })
    }

    /// The account that the name belongs to, where it has an id of its own.
    ///
    /// # Errors
    /// As [`Attempt::by`].
    pub fn account(mut self, account: &str) -> Result<Self, FieldError> {
        self.account = Id::new("account", account)?;
        Ok(self)
    }

    /// What is known of the device.
    #[must_use]
    pub fn device(mut self, device: DeviceFacts) -> Self {
        self.device = device;
        self
    }

    /// A challenge was passed: a soft block yields.
    #[must_use]
    pub const fn challenge_passed(mut self) -> Self {
        self.challenge_passed = true;
        self
    }

    fn facts(self, ip: IpAddr, parts: &RequestParts) -> GuardFacts {
        let mut facts = GuardFacts::new(ip);
        facts.user_agent = text(&parts.headers, &USER_AGENT);
        facts.accept_language = text(&parts.headers, &ACCEPT_LANGUAGE);
        facts.platform = text(&parts.headers, &PLATFORM);
        facts.account = Some(self.account);
        facts.username = self.username;
        facts.device = self.device;
        facts.challenge_passed = self.challenge_passed;
        // Made here: a client that chose it could have its failures ignored (G-ONCE).
        facts.request_id = Id::new("request_id", &answer::new_request_id()).ok();
        facts
    }
}

/// A header as far as it is looked at; blank is absent.
fn text(headers: &HeaderMap, name: &HeaderName) -> Option<Box<str>> {
    let line = String::from_utf8_lossy(headers.get(name)?.as_bytes());
    let text = truncated(line.trim(), HEADER_BYTES_MAX);
    Some(text).filter(|text| !text.is_empty()).map(Into::into)
}

/// What the application's answer says about the password.
///
/// ```
/// use http::Response;
/// use palisade::tower::{Outcome, by_status};
///
/// let (unauthorized, ()) = Response::builder().status(401).body(())?.into_parts();
/// assert_eq!(by_status(&unauthorized), Outcome::Failure);
/// # Ok::<(), http::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was right.
    Success,
    /// It was wrong.
    Failure,
    /// Nothing: it was not verified.
    Neither,
}

/// 2xx and 3xx are a success, 4xx other than 429 a failure: whoever guesses learns nothing
/// from an answer that nobody thought of. Everything else is neither.
#[must_use]
pub fn by_status(parts: &Parts) -> Outcome {
    match parts.status {
        StatusCode::TOO_MANY_REQUESTS => Outcome::Neither,
        status if status.is_client_error() => Outcome::Failure,
        status if status.is_success() || status.is_redirection() => Outcome::Success,
        _ => Outcome::Neither,
    }
}

type OutcomeOf = Arc<dyn Fn(&Parts) -> Outcome + Send + Sync>;

/// Guards a login. `read` finds out who tries: it gets the request, may look into its body,
/// and gives it back; `None` is a request that verifies nothing, such as one for the form. One
/// that may verify something and does not say whom is an error: it is refused, and never
/// reaches the application unguarded.
///
/// What is blocked is answered in the application's place. The outcome is reported by its
/// answer ([`by_status`], unless told otherwise), and the delay that the lockout asks for is
/// waited here without holding a thread (A-BACKOFF). An attempt whose answer never comes
/// counts as pending until it expires (G-PENDING).
///
/// ```
/// use palisade::core::FieldError;
/// use palisade::tower::{Attempt, Gate, LoginLayer};
/// use palisade::{Engine, EngineConfig};
/// # use std::convert::Infallible;
/// # use http::{Request, Response};
/// # use tower::{Layer, ServiceExt, service_fn};
/// # use std::path::Path;
/// # use std::sync::Arc;
/// # use palisade::core::{Clock, Keyring};
/// # use palisade::store::memory::{MemoryConfig, MemoryStore};
/// # let clock: Arc<dyn Clock> = Arc::new(palisade::SystemClock::new());
/// # let store = MemoryStore::new(Arc::clone(&clock), &MemoryConfig::default());
/// # let text = "[[limit]]\nname = \"two\"\nby = [\"ip\"]\nrate = \"2/min\"";
/// # let (env, flags) = Default::default();
/// # let loaded = palisade_policy::load_text(Path::new("policy.toml"), text, &env, &flags)?;
/// # let policy = (*loaded.policy).clone();
/// # let keyring = Keyring::new(b"at least 32 random bytes go here", None)?;
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let engine = Engine::new(EngineConfig::new(store, policy, keyring, clock));
/// # let application = service_fn(|_: Request<String>| async {
/// #     let response = Response::builder().status(401);
/// #     Ok::<_, Infallible>(response.body(String::new()).unwrap_or_default())
/// # });
/// # let mut request = Request::new(String::from("ann"));
/// # request.extensions_mut().insert(std::net::IpAddr::from([203, 0, 113, 5]));
/// /// The name is the body.
/// async fn read(request: Request<String>) -> Result<(Request<String>, Option<Attempt>), FieldError> {
///     let attempt = Attempt::by(request.body())?;
///     Ok((request, Some(attempt)))
/// }
///
/// let layer = LoginLayer::new(&Gate::new(Arc::new(engine)), read);
/// let service = layer.layer(application);
/// // Passwords that are wrong are answered so, until no more of them are verified.
/// let mut statuses = Vec::new();
/// for _ in 0..5 {
///     statuses.push(service.clone().oneshot(request.clone()).await?.status());
/// }
/// assert_eq!((statuses[0].as_u16(), statuses[4].as_u16()), (401, 429));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct LoginLayer<S, F>(Login<S, F>);

/// The rule of [`LoginLayer`].
pub struct Login<S, F> {
    gate: Gate<Engine<S>>,
    engine: Arc<Engine<S>>,
    read: Arc<F>,
    outcome: OutcomeOf,
    ops: Ops,
}

/// The commands of one flow.
#[derive(Clone, Copy, Debug)]
struct Ops {
    check: GuardOp,
    failure: GuardOp,
    success: GuardOp,
}

const LOGIN: Ops = Ops {
    check: GuardOp::LoginCheck,
    failure: GuardOp::LoginFailure,
    success: GuardOp::LoginSuccess,
};
const OTP: Ops = Ops {
    check: GuardOp::OtpCheck,
    failure: GuardOp::OtpFailure,
    success: GuardOp::OtpSuccess,
};

impl<S, F> Clone for Login<S, F> {
    fn clone(&self) -> Self {
        Self {
            gate: self.gate.clone(),
            engine: Arc::clone(&self.engine),
            read: Arc::clone(&self.read),
            outcome: Arc::clone(&self.outcome),
            ops: self.ops,
        }
    }
}

impl<S, F> Clone for LoginLayer<S, F> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S, F> std::fmt::Debug for LoginLayer<S, F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoginLayer").finish_non_exhaustive()
    }
}

impl<S: Store, F> LoginLayer<S, F> {
    /// A layer of this gate for passwords.
    #[must_use]
    pub fn new(gate: &Gate<Engine<S>>, read: F) -> Self {
        Self(Login {
            engine: gate.shared(),
            gate: gate.clone(),
            read: Arc::new(read),
            outcome: Arc::new(by_status),
            ops: LOGIN,
        })
    }

    /// The same for one-time codes.
    #[must_use]
    pub fn otp(mut self) -> Self {
        self.0.ops = OTP;
        self
    }

    /// The same, which tells the outcome from the answer so: for applications that answer
    /// with 200 or 302 either way.
    #[must_use]
    pub fn outcome(mut self, outcome: impl Fn(&Parts) -> Outcome + Send + Sync + 'static) -> Self {
        self.0.outcome = Arc::new(outcome);
        self
    }
}

impl<T, S, F> Layer<T> for LoginLayer<S, F> {
    type Service = Enforced<T, Login<S, F>>;

    fn layer(&self, inner: T) -> Self::Service {
        Enforced::new(inner, self.0.clone())
    }
}

impl<S: Store, F> Login<S, F> {
    async fn ask(&self, op: GuardOp, facts: &GuardFacts) -> Result<Decided, Refusal> {
        let asked = self.engine.guard(op, facts).await;
        asked
            .map(Decided::new)
            .map_err(|error| Refusal::unreadable(&error.into()))
    }
}

/// Who tried, until the application's answer says how it ended.
pub struct Tried(Option<Box<GuardFacts>>);

impl Kept for Tried {
    /// How it ended is reported by [`Rule::after`]: the guard has to be waited for.
    fn mark(self, _parts: &mut Parts) -> Option<Box<dyn Any + Send + Sync>> {
        None
    }
}

fn refused(decided: Decided, facts: &GuardFacts) -> Refusal {
    let id = facts.request_id.as_ref().map_or("", Id::as_str);
    Refusal::of(decided, id)
}

impl<B, S, F, Read> Rule<B> for Login<S, F>
where
    B: Send + 'static,
    S: Store,
    F: Fn(Request<B>) -> Read + Send + Sync + 'static,
    Read: Future<Output = Result<(Request<B>, Option<Attempt>), FieldError>> + Send,
{
    type Kept = Tried;

    async fn before(&self, request: Request<B>) -> Result<Passed<B, Self::Kept>, Refusal> {
        let read = (self.read)(request).await;
        let (request, attempt) = read.map_err(|error| Refusal::unreadable(&error.into()))?;
        let Some(attempt) = attempt else {
            return Ok(Passed {
                request,
                kept: Tried(None),
            });
        };
        let (mut parts, body) = request.into_parts();
        let ip = self.gate.client_of(&parts).await?;
        let facts = attempt.facts(ip, &parts);
        let decided = self.ask(self.ops.check, &facts).await?;
        if !decided.decision().is_allowed() {
            return Err(refused(decided, &facts));
        }
        decided.told(&mut parts.extensions);
        Ok(Passed {
            request: Request::from_parts(parts, body),
            kept: Tried(Some(Box::new(facts))),
        })
    }

    async fn after(
        &self,
        kept: Tried,
        parts: &mut Parts,
    ) -> Result<Option<Box<dyn Any + Send + Sync>>, Refusal> {
        let Some(facts) = kept.0 else { return Ok(None) };
        let op = match (self.outcome)(parts) {
            Outcome::Success => self.ops.success,
            Outcome::Failure => self.ops.failure,
            Outcome::Neither => return Ok(None),
        };
        let decided = self.ask(op, &facts).await?;
        if op == self.ops.success && !decided.decision().is_allowed() {
            return Err(refused(decided, &facts));
        }
        if let Some(delay_ms) = decided.decision().delay_ms {
            tokio::time::sleep(Duration::from_millis(delay_ms.into())).await;
        }
        parts.extensions.insert(decided);
        Ok(None)
    }
}
