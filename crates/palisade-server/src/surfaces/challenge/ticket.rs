//! Tickets: what a passed challenge is to free, and where its visitor goes then. They are sealed
//! and carried by the page.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderValue, Uri};
use palisade_core::Micros;
use palisade_core::challenge::ChallengeFlow;
use palisade_core::decision::Level;
use palisade_core::key::{Domain, Keyring};
use palisade_core::time::MINUTE;

/// Time for which a ticket is good: a visitor may leave the page open for a while.
const VALID_US: u64 = 30 * MINUTE;
/// Longest path to return to, in bytes.
const PATH_BYTES_MAX: usize = 2048;
/// Longest ticket, in bytes.
const TICKET_BYTES_MAX: usize = 4096;
/// First byte of a ticket: the version of its encoding.
const VERSION: u8 = 1;
/// Bytes before the path: version, flow, level, expiry.
const HEAD_BYTES: usize = 11;

/// Purpose of a challenge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) flow: ChallengeFlow,
    /// Level of the block, which says how hard the challenge is.
    pub(super) level: Option<Level>,
    pub(super) path: ReturnPath,
}

/// The reason why a ticket is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TicketError {
    /// It was not sealed here, or was changed.
    Forged,
    /// Its time is over.
    Late,
}

impl Ticket {
    /// Seals the ticket, in letters that a URL may have.
    pub(super) fn seal(&self, keyring: &Keyring, now: Micros) -> String {
        let flow = ChallengeFlow::ALL
            .iter()
            .position(|flow| *flow == self.flow);
        let flow = flow.and_then(|index| u8::try_from(index).ok());
        let mut bytes = vec![
            VERSION,
            flow.unwrap_or_default(),
            self.level.map_or(0, Level::number),
        ];
        bytes.extend_from_slice(&now.plus(VALID_US).0.to_be_bytes());
        bytes.extend_from_slice(self.path.as_str().as_bytes());
        let seal = keyring.seal(Domain::ChallengeTicket, &[&bytes]);
        bytes.extend_from_slice(&seal.to_bytes());
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Opens a sealed ticket.
    pub(super) fn open(keyring: &Keyring, text: &str, now: Micros) -> Result<Self, TicketError> {
        if text.len() > TICKET_BYTES_MAX {
            return Err(TicketError::Forged);
        }
        let bytes = URL_SAFE_NO_PAD.decode(text);
        let bytes = bytes.map_err(|_| TicketError::Forged)?;
        let (body, seal) = bytes.split_last_chunk().ok_or(TicketError::Forged)?;
        if !keyring.seal(Domain::ChallengeTicket, &[body]).is(seal) {
            return Err(TicketError::Forged);
        }
        let (ticket, expires) = Self::read(body).ok_or(TicketError::Forged)?;
        match now <= expires {
            true => Ok(ticket),
            false => Err(TicketError::Late),
        }
    }

    fn read(body: &[u8]) -> Option<(Self, Micros)> {
        let (head, path) = body.split_first_chunk::<HEAD_BYTES>()?;
        let [version, flow, level, expires @ ..] = *head;
        let ticket = Self {
            flow: *ChallengeFlow::ALL.get(usize::from(flow))?,
            level: Level::from_number(level),
            path: ReturnPath::new(std::str::from_utf8(path).ok()?)?,
        };
        (version == VERSION).then_some((ticket, Micros(u64::from_be_bytes(expires))))
    }
}

/// A path of the same site that a visitor may be sent to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReturnPath(Box<str>);

impl Default for ReturnPath {
    fn default() -> Self {
        Self("/".into())
    }
}

impl ReturnPath {
    /// A path with its query; `None` for whatever some browser could take for another site's
    /// address.
    pub(super) fn new(target: &str) -> Option<Self> {
        let path = target.split(['?', '#']).next().unwrap_or_default();
        let is_local = path.starts_with('/') && !path.starts_with("//");
        let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'\\';
        let is_good = is_local && target.len() <= PATH_BYTES_MAX && target.bytes().all(is_plain);
        // The page leads away from itself.
        let is_ours = path.starts_with("/.palisade/");
        (is_good && !is_ours).then(|| Self(target.into()))
    }

    /// A path without its query.
    pub(super) fn without_query(target: &str) -> Option<Self> {
        Self::new(target.split('?').next().unwrap_or_default())
    }

    /// The path that `Referer` names, if it is one of this host.
    pub(super) fn of_referer(referer: Option<&HeaderValue>, host: Option<&str>) -> Option<Self> {
        let uri: Uri = referer?.to_str().ok()?.parse().ok()?;
        let names_host = uri.authority()?.as_str().eq_ignore_ascii_case(host?);
        let path = uri.path_and_query()?.as_str();
        names_host.then(|| Self::new(path)).flatten()
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}
