//! Passes in cookies, one for each flow.

use http::header::{HeaderMap, HeaderValue};
use palisade::extract::cookies;
use palisade_core::challenge::{ChallengeFlow, PassNote, ShownPass};

/// The passes that a request brings.
#[derive(Default)]
pub(in crate::surfaces) struct Passes(Vec<(ChallengeFlow, Box<ShownPass>)>);

impl Passes {
    /// Reads the passes of a request. Within TLS only names that no other host can set count.
    pub(in crate::surfaces) fn read(headers: &HeaderMap, is_secure: bool) -> Self {
        let shown = ChallengeFlow::ALL.into_iter().filter_map(|flow| {
            let name = name(flow, is_secure);
            let text = cookies::values(headers, &name).next()?;
            Some((flow, Box::new(ShownPass::cookie(text))))
        });
        Self(shown.collect())
    }

    /// Takes the passes out of a request: they are no concern of the application.
    pub(in crate::surfaces) fn taken_from(headers: &mut HeaderMap, is_secure: bool) -> Self {
        let passes = Self::read(headers, is_secure);
        cookies::retain(headers, |name, _| !is_pass(name));
        passes
    }

    /// The pass for a flow.
    pub(in crate::surfaces) fn of(&self, flow: ChallengeFlow) -> Option<Box<ShownPass>> {
        let mut all = self.0.iter();
        all.find_map(|(own, pass)| (*own == flow).then(|| pass.clone()))
    }
}

fn name(flow: ChallengeFlow, is_secure: bool) -> String {
    let prefix = if is_secure { "__Host-" } else { "" };
    format!("{prefix}palisade-{}", flow.name())
}

fn is_pass(name: &[u8]) -> bool {
    let plain = name.strip_prefix(b"__Host-").unwrap_or(name);
    let flow = plain.strip_prefix(b"palisade-");
    let flow = flow.and_then(|flow| std::str::from_utf8(flow).ok());
    flow.is_some_and(|flow| ChallengeFlow::from_name(flow).is_some())
}

/// The header that sets a pass: for this host only, not readable by scripts, and not sent with forms
/// of other sites.
pub(super) fn set_cookie(
    flow: ChallengeFlow,
    pass: &str,
    seconds: u64,
    is_secure: bool,
) -> Option<HeaderValue> {
    let name = name(flow, is_secure);
    let secure = if is_secure { "; Secure" } else { "" };
    let text = format!("{name}={pass}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}");
    HeaderValue::try_from(text).ok()
}

/// The header that replaces a pass which has followed its holder to another address.
pub(in crate::surfaces) fn moved(
    flow: ChallengeFlow,
    note: Option<&PassNote>,
    seconds: u64,
    is_secure: bool,
) -> Option<HeaderValue> {
    match note? {
        PassNote::Moved(pass) => set_cookie(flow, pass, seconds, is_secure),
        PassNote::Accepted | PassNote::Refused(_) => None,
    }
}
