//! Interim answers of the application (103 Early Hints), passed on to the client.
//!
//! RFC 9110 §15.2: a proxy forwards interim answers that it did not request itself. It only
//! requests 100.

use http::{Request, StatusCode};

use super::body::Outgoing;
use super::headers;
use crate::serve::Early;

/// Has interim answers to `request` passed on. A copy of `request`, for another instance, does not
/// inherit this.
pub(super) fn pass_on(request: &mut Request<Outgoing>, early: &Early) {
    let early = early.clone();
    hyper::ext::on_informational(request, move |answer| {
        if is_passed_on(answer.status()) {
            early.tell(answer.status(), &headers::of_interim(answer.headers()));
        }
    });
}

/// Whether an interim answer is passed on. `100 Continue` is sent by whoever reads the body, and
/// 101 is no interim answer.
fn is_passed_on(status: StatusCode) -> bool {
    let is_own = [StatusCode::CONTINUE, StatusCode::SWITCHING_PROTOCOLS].contains(&status);
    status.is_informational() && !is_own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_100_and_101_are_passed_on() {
        let passed: Vec<_> = (100..=200)
            .map(|code| StatusCode::from_u16(code).unwrap())
            .filter(|status| is_passed_on(*status))
            .collect();
        assert_eq!(passed.first(), Some(&StatusCode::PROCESSING));
        assert_eq!(passed.len(), 98);
    }
}
