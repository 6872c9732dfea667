//! Sessions of the dashboard: a bounded table in this process.
//!
//! A session is a random cookie and a token that only its page knows. The table holds the cookie's
//! digest, so that the time of a lookup reveals nothing.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use axum::http::header::{COOKIE, HeaderName, HeaderValue};
use axum::http::{HeaderMap, Method};
use palisade_core::time::{HOUR, MINUTE};
use palisade_core::{Clock, Micros};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::surfaces::admin::access::{Access, AccessRefusal, Grant, bearer};

/// Most sessions at once. When there are more, the one that was idle for longest ends.
const SESSIONS_MAX: usize = 256;
/// Longest life of a session, however active it is.
const LIFE: u64 = 12 * HOUR;
/// Longest time without a request.
const QUIET_MAX: u64 = 60 * MINUTE;

/// Header with the token by which the page proves that it made a request itself.
pub(crate) const X_CSRF_TOKEN: HeaderName = HeaderName::from_static("x-csrf-token");

type Id = [u8; 32];

struct Session {
    csrf: Box<str>,
    /// Checked anew with every request, so that a token that expires ends its session.
    credential: Zeroizing<String>,
    began: Micros,
    seen: Micros,
}

impl Session {
    const fn is_over(&self, now: Micros) -> bool {
        now.since(self.began) >= LIFE || now.since(self.seen) >= QUIET_MAX
    }
}

/// A new session, as the page gets it.
pub(crate) struct OpenedSession {
    pub(crate) cookie: HeaderValue,
    pub(crate) csrf: Box<str>,
}

/// The session of a request.
pub(crate) struct Visitor {
    pub(crate) grant: Grant,
    pub(crate) csrf: Box<str>,
    id: Id,
}

/// The right to follow the dashboard's events.
pub(crate) enum Watch {
    /// A session that began with a credential.
    Session(Id),
    /// A bearer token, checked anew with every event: it may expire, and its key may be removed.
    Bearer(Zeroizing<String>),
}

/// All sessions.
pub(crate) struct Sessions {
    clock: Arc<dyn Clock>,
    access: Arc<Access>,
    cookie: Cookie,
    table: Mutex<HashMap<Id, Session>>,
}

/// The name and attributes of the session cookie.
#[derive(Clone, Copy)]
struct Cookie {
    name: &'static str,
    attributes: &'static str,
}

/// Within TLS the prefix `__Host-` binds the cookie to this host and to TLS.
const SECURE: Cookie = Cookie {
    name: "__Host-palisade",
    attributes: "; Path=/; HttpOnly; SameSite=Strict; Secure",
};
const PLAIN: Cookie = Cookie {
    name: "palisade",
    attributes: "; Path=/; HttpOnly; SameSite=Strict",
};

impl Sessions {
    /// An empty table. `is_secure` if the address speaks TLS.
    pub(crate) fn new(clock: Arc<dyn Clock>, access: Arc<Access>, is_secure: bool) -> Self {
        Self {
            clock,
            access,
            cookie: if is_secure { SECURE } else { PLAIN },
            table: Mutex::default(),
        }
    }

    /// Begins a session for the holder of this credential.
    pub(crate) fn open(
        &self,
        peer: IpAddr,
        credential: &str,
    ) -> Result<(OpenedSession, Grant), AccessRefusal> {
        let grant = self.access.admit(peer, credential, self.clock.wall())?;
        let (secret, csrf) = (random(), random());
        let now = self.clock.now();
        let session = Session {
            csrf: csrf.clone(),
            credential: Zeroizing::new(credential.to_owned()),
            began: now,
            seen: now,
        };
        let mut table = self.table.lock();
        // Sessions that are over make room first.
        table.retain(|_, session| !session.is_over(now));
        if table.len() >= SESSIONS_MAX {
            leave_quietest(&mut table);
        }
        table.insert(id_of(&secret), session);
        drop(table);
        let cookie = self.set_cookie(&secret, "");
        Ok((OpenedSession { cookie, csrf }, grant))
    }

    fn set_cookie(&self, value: &str, age: &str) -> HeaderValue {
        let Cookie { name, attributes } = self.cookie;
        let text = format!("{name}={value}{attributes}{age}");
        HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static(""))
    }

    /// A cookie that removes the session's cookie.
    pub(crate) fn no_cookie(&self) -> HeaderValue {
        self.set_cookie("", "; Max-Age=0")
    }

    /// Returns the session of a request.
    pub(crate) fn visitor(&self, headers: &HeaderMap) -> Result<Visitor, AccessRefusal> {
        let secret = self
            .secret_in(headers)
            .ok_or(AccessRefusal::Unauthenticated)?;
        self.resume(id_of(secret))
    }

    /// Returns the right of an admitted request to follow events.
    pub(crate) fn watch(&self, headers: &HeaderMap) -> Result<Watch, AccessRefusal> {
        if let Some(presented) = bearer(headers) {
            return Ok(Watch::Bearer(Zeroizing::new(presented.to_owned())));
        }
        self.visitor(headers)
            .map(|visitor| Watch::Session(visitor.id))
    }

    /// True while a watch is permitted: while its session lasts, or its token is valid.
    pub(crate) fn allows(&self, watch: &Watch) -> bool {
        match watch {
            Watch::Session(id) => self.resume(*id).is_ok(),
            Watch::Bearer(token) => self.access.grant(token, self.clock.wall()).is_ok(),
        }
    }

    fn resume(&self, id: Id) -> Result<Visitor, AccessRefusal> {
        let now = self.clock.now();
        let mut table = self.table.lock();
        let session = table.get_mut(&id).filter(|session| !session.is_over(now));
        let Some(session) = session else {
            table.remove(&id);
            return Err(AccessRefusal::Unauthenticated);
        };
        session.seen = now;
        // Not limited like a guess, because the credential was admitted when the session began.
        let grant = self.access.grant(&session.credential, self.clock.wall());
        let csrf = session.csrf.clone();
        if grant.is_err() {
            table.remove(&id);
        }
        Ok(Visitor {
            grant: grant?,
            csrf,
            id,
        })
    }

    /// Returns the grant of a request's session. Unless the method is GET, the request must prove
    /// with the CSRF token that the page itself made it.
    pub(crate) fn admit(
        &self,
        method: &Method,
        headers: &HeaderMap,
    ) -> Result<Grant, AccessRefusal> {
        let visitor = self.visitor(headers)?;
        let shown = headers.get(X_CSRF_TOKEN).map(HeaderValue::as_bytes);
        let is_own = shown.is_some_and(|shown| shown.ct_eq(visitor.csrf.as_bytes()).into());
        if is_own || *method == Method::GET {
            Ok(visitor.grant)
        } else {
            Err(AccessRefusal::Forged)
        }
    }

    /// Ends a session.
    pub(crate) fn close(&self, headers: &HeaderMap) {
        if let Some(secret) = self.secret_in(headers) {
            self.table.lock().remove(&id_of(secret));
        }
    }

    fn secret_in<'h>(&self, headers: &'h HeaderMap) -> Option<&'h str> {
        let lines = headers.get_all(COOKIE).iter();
        let texts = lines.filter_map(|line| line.to_str().ok());
        let mut pairs = texts.flat_map(|text| text.split("; "));
        pairs.find_map(|pair| pair.strip_prefix(self.cookie.name)?.strip_prefix('='))
    }
}

fn leave_quietest(table: &mut HashMap<Id, Session>) {
    let quietest = table.iter().min_by_key(|(_, session)| session.seen);
    if let Some(id) = quietest.map(|(id, _)| *id) {
        table.remove(&id);
    }
}

fn id_of(secret: &str) -> Id {
    Sha256::digest(secret.as_bytes()).into()
}

/// 256 bits in hexadecimal.
fn random() -> Box<str> {
    let [one, two]: [u128; 2] = rand::random();
    format!("{one:032x}{two:032x}").into()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use arc_swap::ArcSwap;
    use axum::http::header::AUTHORIZATION;
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use hmac::{Hmac, KeyInit, Mac};
    use palisade::VirtualClock;
    use palisade::extract::EdgeConfig;
    use palisade::extract::jwt::{JwtKeys, JwtRules, TokenVerifier, parse_algorithm};
    use palisade_core::time::SECOND;

    use super::*;
    use crate::surfaces::Edge;
    use crate::surfaces::admin::access::Role;
    use crate::surfaces::admin::guesses::GuessLimit;

    const TOKEN: &str = "the-static-token";
    const PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn sessions(clock: &Arc<VirtualClock>) -> Sessions {
        let shared: Arc<dyn Clock> = Arc::<VirtualClock>::clone(clock);
        let access = Access::new(GuessLimit::new(&shared).unwrap())
            .with_operators(Some(&TOKEN.into()), "admin")
            .with_viewers(Some(&"the-viewers-token".into()), "viewer");
        Sessions::new(Arc::<VirtualClock>::clone(clock), Arc::new(access), false)
    }

    fn with(cookie: &HeaderValue) -> HeaderMap {
        let pair = cookie.to_str().unwrap().split(';').next().unwrap();
        let mut headers = HeaderMap::new();
        let among = format!("theme=dark; {pair}");
        headers.insert(COOKIE, among.parse().unwrap());
        headers
    }

    #[test]
    fn a_session_is_host_only_and_hidden_from_scripts() {
        let clock = Arc::new(VirtualClock::default());
        let (opened, grant) = sessions(&clock).open(PEER, TOKEN).unwrap();
        assert_eq!(grant.role, Role::Operator);
        let cookie = opened.cookie.to_str().unwrap();
        assert!(
            cookie.ends_with("; Path=/; HttpOnly; SameSite=Strict"),
            "{cookie}"
        );
        assert!(!cookie.contains("Domain"));
        assert!(
            !cookie.contains(&*opened.csrf),
            "the page's token is not in it"
        );
        assert!(sessions(&clock).open(PEER, "wrong").is_err());
    }

    #[test]
    fn a_session_ends_after_an_hour_of_silence_and_after_twelve_in_any_case() {
        let clock = Arc::new(VirtualClock::default());
        let sessions = sessions(&clock);
        let (opened, _) = sessions.open(PEER, TOKEN).unwrap();
        let headers = with(&opened.cookie);
        for _ in 0..13 {
            clock.advance(50 * MINUTE);
            assert!(sessions.visitor(&headers).is_ok());
        }
        clock.advance(40 * MINUTE);
        assert!(sessions.visitor(&headers).is_ok());
        clock.advance(50 * MINUTE);
        assert!(sessions.visitor(&headers).is_err(), "twelve hours");
        let (opened, _) = sessions.open(PEER, TOKEN).unwrap();
        clock.advance(60 * MINUTE);
        assert!(sessions.visitor(&with(&opened.cookie)).is_err(), "silence");
        assert!(sessions.table.lock().is_empty());
    }

    #[test]
    fn a_change_needs_the_token_that_only_the_page_knows() {
        let clock = Arc::new(VirtualClock::default());
        let sessions = sessions(&clock);
        let (opened, _) = sessions.open(PEER, TOKEN).unwrap();
        let mut headers = with(&opened.cookie);
        let admit = |headers: &HeaderMap| sessions.admit(&Method::POST, headers);
        assert_eq!(admit(&headers).unwrap_err(), AccessRefusal::Forged);
        headers.insert(X_CSRF_TOKEN, HeaderValue::from_static("guess"));
        assert_eq!(admit(&headers).unwrap_err(), AccessRefusal::Forged);
        assert!(sessions.admit(&Method::GET, &headers).is_ok());
        headers.insert(X_CSRF_TOKEN, opened.csrf.parse().unwrap());
        assert!(admit(&headers).is_ok());
        sessions.close(&headers);
        assert_eq!(admit(&headers).unwrap_err(), AccessRefusal::Unauthenticated);
    }

    #[test]
    fn sessions_are_bounded_and_the_quietest_leaves() {
        let clock = Arc::new(VirtualClock::default());
        let sessions = sessions(&clock);
        let first = with(&sessions.open(PEER, TOKEN).unwrap().0.cookie);
        clock.advance(1);
        let second = with(&sessions.open(PEER, TOKEN).unwrap().0.cookie);
        clock.advance(1);
        assert!(sessions.visitor(&first).is_ok());
        for _ in 0..SESSIONS_MAX - 1 {
            clock.advance(1);
            sessions.open(PEER, TOKEN).unwrap();
        }
        assert_eq!(sessions.table.lock().len(), SESSIONS_MAX);
        assert!(sessions.visitor(&second).is_err());
        assert!(sessions.visitor(&first).is_ok());
    }

    #[test]
    fn s12_a_watch_ends_with_its_bearer_token_and_with_its_key() {
        let clock = Arc::new(VirtualClock::default());
        let shared: Arc<dyn Clock> = Arc::<VirtualClock>::clone(&clock);
        let edge = || EdgeConfig {
            jwt: Some(Arc::new(TokenVerifier::new(
                JwtKeys::from_secret(&[7; 32], parse_algorithm("HS256").unwrap()).unwrap(),
                JwtRules::default(),
            ))),
            ..EdgeConfig::default()
        };
        let current: Edge = Arc::new(ArcSwap::from_pointee(edge()));
        let access = Access::new(GuessLimit::new(&shared).unwrap())
            .with_operators(None, "admin")
            .with_signed_tokens(Some(Arc::clone(&current)));
        let sessions = Sessions::new(shared, Arc::new(access), false);
        let expiry = clock.wall().0 / SECOND + 600;
        let token = signed(&[7; 32], expiry);
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, format!("Bearer {token}").parse().unwrap());
        let watch = sessions.watch(&headers).unwrap();
        assert!(sessions.allows(&watch));
        current.store(Arc::default());
        assert!(!sessions.allows(&watch), "its key has gone");
        current.store(Arc::new(edge()));
        clock.advance(600 * SECOND);
        assert!(sessions.allows(&watch), "clocks may differ by a minute");
        clock.advance(60 * SECOND);
        assert!(!sessions.allows(&watch));
        assert!(sessions.watch(&HeaderMap::new()).is_err());
    }

    /// A signed token of an operator that expires at this second.
    fn signed(key: &[u8], expiry: u64) -> String {
        let part = |value: serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let claims = serde_json::json!({"sub": "ann", "roles": ["admin"], "exp": expiry});
        let text = format!(
            "{}.{}",
            part(serde_json::json!({"alg": "HS256"})),
            part(claims)
        );
        let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
        mac.update(text.as_bytes());
        let signature = URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes());
        format!("{text}.{signature}")
    }
}
