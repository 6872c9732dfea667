//! The layer around a login: it asks the guard before the password is verified, and reports the
//! outcome after.

mod attempt;
mod finished;
mod outcome;
mod service;

use std::sync::Arc;

use http::response::Parts;
use palisade_core::facts::GuardOp;
use tower_layer::Layer;

use super::gate::Gate;
use crate::engine::Engine;

pub use attempt::Attempt;
pub use outcome::{Outcome, by_status};
pub use service::LoginService;

type OutcomeOf = Arc<dyn Fn(&Parts) -> Outcome + Send + Sync>;

/// Guards a login. `read` reads the attempt: it gets the request, may read its body, and gives it
/// back. It returns `None` for a request that verifies nothing, such as one for the form. A request
/// that may verify a password but does not name its user is an error: it is refused, and never
/// reaches the application unguarded.
///
/// A blocked attempt is answered in the application's place. The outcome is read from the
/// application's answer ([`by_status`], unless set otherwise), and the delay of the lockout is
/// waited here without holding a thread (A-BACKOFF).
///
/// Once the application has been called, its answer is awaited and the outcome reported, whatever
/// the client does: if the client disconnects, the rest goes on in a task of the runtime. A guess
/// counts even if its client hangs up early. An application that fails reports an unknown outcome:
/// from the third within ten minutes on each counts as a failure (G-UNKNOWN). An attempt whose
/// handler panicked or whose process ended counts as pending until it expires (G-PENDING).
///
/// ```
/// use palisade::tower::{Attempt, Gate, LoginLayer};
/// use palisade::{FieldError, Palisade};
/// # use std::convert::Infallible;
/// # use http::{Request, Response};
/// # use tower::{Layer, ServiceExt, service_fn};
/// # tokio::runtime::Runtime::new()?.block_on(async {
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
/// let palisade = Palisade::builder().start().await?;
/// let layer = LoginLayer::new(&Gate::new(palisade.engine()), read);
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
pub struct LoginLayer<F>(Login<F>);

/// State of the layer, shared by its services.
struct Login<F> {
    gate: Gate<Engine>,
    engine: Arc<Engine>,
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
    unknown: GuardOp,
}

impl Ops {
    /// Returns the command that reports an outcome; `None` if nothing is reported.
    const fn of(self, outcome: Outcome) -> Option<GuardOp> {
        match outcome {
            Outcome::Success => Some(self.success),
            Outcome::Failure => Some(self.failure),
            Outcome::Unknown => Some(self.unknown),
            Outcome::Neither => None,
        }
    }
}

const LOGIN: Ops = Ops {
    check: GuardOp::LoginCheck,
    failure: GuardOp::LoginFailure,
    success: GuardOp::LoginSuccess,
    unknown: GuardOp::LoginUnknown,
};
const OTP: Ops = Ops {
    check: GuardOp::OtpCheck,
    failure: GuardOp::OtpFailure,
    success: GuardOp::OtpSuccess,
    unknown: GuardOp::OtpUnknown,
};

impl<F> Clone for Login<F> {
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

impl<F> Clone for LoginLayer<F> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<F> std::fmt::Debug for LoginLayer<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoginLayer").finish_non_exhaustive()
    }
}

impl<F> LoginLayer<F> {
    /// A layer of this gate for passwords.
    #[must_use]
    pub fn new(gate: &Gate<Engine>, read: F) -> Self {
        Self(Login {
            engine: gate.shared(),
            gate: gate.clone(),
            read: Arc::new(read),
            outcome: Arc::new(by_status),
            ops: LOGIN,
        })
    }

    /// Guards one-time codes instead of passwords.
    #[must_use]
    pub fn otp(mut self) -> Self {
        self.0.ops = OTP;
        self
    }

    /// Reads the outcome from the answer with `outcome`: for applications that answer with 200 or
    /// 302 either way.
    #[must_use]
    pub fn outcome(mut self, outcome: impl Fn(&Parts) -> Outcome + Send + Sync + 'static) -> Self {
        self.0.outcome = Arc::new(outcome);
        self
    }
}

impl<T, F> Layer<T> for LoginLayer<F> {
    type Service = LoginService<T, F>;

    fn layer(&self, inner: T) -> Self::Service {
        LoginService::new(inner, self.0.clone())
    }
}
