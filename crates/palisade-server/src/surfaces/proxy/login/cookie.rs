//! The device cookie: a random id, sealed under the service's secret, by which a browser that has
//! logged in is recognised (guard.md §2: client-assisted, MEDIUM).
//!
//! The seal keeps others from choosing an id. The id reveals nothing about anybody. Only the
//! account's record tells whether an account knows it.

use http::header::{HeaderMap, HeaderValue};
use palisade::extract::cookies;
use palisade_core::Id;
use palisade_core::key::{Digest, Domain, Keyring, Seal};

/// Version of the cookie's format.
const VERSION: &str = "1";
/// Time that a browser keeps the cookie, in seconds: half a year after the last login.
const MAX_AGE: u32 = 180 * 24 * 3600;

/// The id of a device, a fact of the guard.
#[derive(Clone)]
pub(super) struct DeviceId(Digest);

impl DeviceId {
    /// A new random id.
    pub(super) fn generate() -> Self {
        Self(Digest::from_bytes(rand::random()))
    }

    /// Returns the id of the first cookie called `name` with a valid seal, under the current secret
    /// or the one before.
    pub(super) fn read(headers: &HeaderMap, name: &str, keyring: &Keyring) -> Option<Self> {
        cookies::values(headers, name).find_map(|value| opened(value, name, keyring))
    }

    /// The id as a fact.
    pub(super) fn id(&self) -> Option<Id> {
        Id::new("client_id", &self.0.hex()).ok()
    }

    /// The header that sets the cookie: for this host only, not readable by scripts, and not sent
    /// with forms of other sites.
    pub(super) fn set_cookie(
        &self,
        name: &str,
        keyring: &Keyring,
        is_secure: bool,
    ) -> Option<HeaderValue> {
        let seal = Digest::from_bytes(self.seal(name, keyring).to_bytes());
        let secure = if is_secure { "; Secure" } else { "" };
        let text = format!(
            "{name}={VERSION}.{}.{}; Path=/; Max-Age={MAX_AGE}; HttpOnly; SameSite=Lax{secure}",
            self.0.hex(),
            seal.hex(),
        );
        HeaderValue::try_from(text).ok()
    }

    /// Seals the id together with the name, so that a cookie of one name is not valid under
    /// another.
    fn seal(&self, name: &str, keyring: &Keyring) -> Seal {
        let parts: [&[u8]; 2] = [name.as_bytes(), &self.0.to_bytes()];
        keyring.seal(Domain::DeviceCookie, &parts)
    }
}

fn opened(value: &str, name: &str, keyring: &Keyring) -> Option<DeviceId> {
    let mut parts = value.split('.');
    let (version, id, seal) = (parts.next()?, parts.next()?, parts.next()?);
    if version != VERSION || parts.next().is_some() {
        return None;
    }
    let (id, seal) = (Digest::from_hex(id)?, Digest::from_hex(seal)?);
    let device = DeviceId(id);
    let is_own = device.seal(name, keyring).is(&seal.to_bytes());
    is_own.then_some(device)
}

#[cfg(test)]
mod tests {
    use http::header::COOKIE;

    use super::*;

    fn ring(current: u8, previous: Option<u8>) -> Keyring {
        Keyring::new(
            &[current; 32],
            previous.map(|byte| [byte; 32]).as_ref().map(|k| &k[..]),
        )
        .unwrap()
    }

    fn sent(value: &str) -> HeaderMap {
        HeaderMap::from_iter([(COOKIE, HeaderValue::from_str(value).unwrap())])
    }

    fn issued(device: &DeviceId, ring: &Keyring) -> String {
        let header = device.set_cookie("dev", ring, false).unwrap();
        let text = header.to_str().unwrap().to_owned();
        text.split(';').next().unwrap().to_owned()
    }

    #[test]
    fn a_cookie_is_read_back_and_survives_one_rotation_of_the_secret() {
        let device = DeviceId::generate();
        let cookie = issued(&device, &ring(1, None));
        let read = |ring: &Keyring| {
            let headers = sent(&format!("a=b; {cookie}; dev=junk"));
            DeviceId::read(&headers, "dev", ring).map(|found| found.0)
        };
        assert_eq!(read(&ring(1, None)), Some(device.0));
        assert_eq!(read(&ring(2, Some(1))), Some(device.0));
        assert_eq!(read(&ring(3, Some(2))), None);
    }

    #[test]
    fn a_cookie_that_we_did_not_make_is_none() {
        let ring = ring(1, None);
        let device = DeviceId::generate();
        let genuine = issued(&device, &ring);
        let other = DeviceId::generate().0.hex();
        let forged = genuine.replace(&device.0.hex(), &other);
        let plain = format!("dev=1.{other}.{other}");
        for cookie in [
            forged,
            plain,
            "dev=".to_owned(),
            "dev=1..".to_owned(),
            genuine.clone() + ".x",
        ] {
            assert!(
                DeviceId::read(&sent(&cookie), "dev", &ring).is_none(),
                "{cookie}"
            );
        }
        let renamed = genuine.replacen("dev", "other", 1);
        assert!(DeviceId::read(&sent(&renamed), "other", &ring).is_none());
    }

    #[test]
    fn a_cookie_stays_on_its_host_and_out_of_scripts() {
        let ring = ring(1, None);
        let of = |is_secure| {
            let header = DeviceId::generate()
                .set_cookie("dev", &ring, is_secure)
                .unwrap();
            header.to_str().unwrap().to_owned()
        };
        for part in ["; Path=/;", "; HttpOnly", "; SameSite=Lax", "; Max-Age="] {
            assert!(of(false).contains(part), "{part}");
        }
        assert!(!of(true).contains("Domain"));
        assert!(of(true).ends_with("; Secure"));
        assert!(!of(false).contains("Secure"));
    }
}
