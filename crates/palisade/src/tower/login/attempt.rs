//! A login attempt: its user name, account and device.

use std::net::IpAddr;

use http::header::{ACCEPT_LANGUAGE, HeaderMap, HeaderName, USER_AGENT};
use http::request::Parts;
use palisade_core::facts::{DeviceFacts, GuardFacts, HEADER_BYTES_MAX};
use palisade_core::{FieldError, Id};

use crate::extract::header::truncated;
use crate::extract::login::counted;
use crate::extract::request_id::new_id;

const PLATFORM: HeaderName = HeaderName::from_static("sec-ch-ua-platform");

/// A login attempt: its user name, account and device.
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
    /// An attempt with this user name, however it was typed. The name is the account, and the key
    /// of the lockout. Surrounding space, upper case, accents, invisible characters and compatible
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

    /// Sets the account that the name belongs to, where it has an id of its own.
    ///
    /// # Errors
    /// As [`Attempt::by`].
    pub fn account(mut self, account: &str) -> Result<Self, FieldError> {
        self.account = Id::new("account", account)?;
        Ok(self)
    }

    /// Sets the facts that are known of the device.
    #[must_use]
    pub fn device(mut self, device: DeviceFacts) -> Self {
        self.device = device;
        self
    }

    /// Says that a challenge was passed: a soft block yields.
    #[must_use]
    pub const fn challenge_passed(mut self) -> Self {
        self.challenge_passed = true;
        self
    }

    pub(super) fn facts(self, ip: IpAddr, request_id: Option<Id>, parts: &Parts) -> GuardFacts {
        let mut facts = GuardFacts::new(ip);
        facts.user_agent = text(&parts.headers, &USER_AGENT);
        facts.accept_language = text(&parts.headers, &ACCEPT_LANGUAGE);
        facts.platform = text(&parts.headers, &PLATFORM);
        facts.account = Some(self.account);
        facts.username = self.username;
        facts.device = self.device;
        facts.challenge_passed = self.challenge_passed;
        facts.request_id = request_id;
        // Not taken from the client: one that chose the id could have its failures ignored
        // (G-ONCE).
        facts.attempt_id = new_id();
        facts
    }
}

/// Returns the text of a header, cut at the bound; blank is absent.
fn text(headers: &HeaderMap, name: &HeaderName) -> Option<Box<str>> {
    let line = String::from_utf8_lossy(headers.get(name)?.as_bytes());
    let text = truncated(line.trim(), HEADER_BYTES_MAX);
    Some(text).filter(|text| !text.is_empty()).map(Into::into)
}
