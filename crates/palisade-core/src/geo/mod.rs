//! Country and network of an address: where they come from, and how a request carries them.

mod codes;
mod filter;

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::OnceLock;

use crate::facts::FieldError;

pub use filter::{GeoFilter, NetworkKind};

/// The word for a country or network that nobody knows. It is a value like any other: addresses
/// without a known country share a bucket, and match `not_country`.
pub const UNKNOWN: &str = "unknown";

/// A country, by its code of two letters.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Country([Letter; 2]);

/// A capital letter. Of its values `Option` needs only one that is no letter, so that an optional
/// country is as small as a country.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Letter(std::num::NonZeroU8);

impl Letter {
    fn of(byte: u8) -> Option<Self> {
        let letter = byte.to_ascii_uppercase();
        let letter = std::num::NonZeroU8::new(letter)?;
        letter.get().is_ascii_uppercase().then_some(Self(letter))
    }
}

impl Country {
    /// The country with this code, in letters of either case; `None` if it is not two letters.
    #[must_use]
    pub fn parse(code: &str) -> Option<Self> {
        match code.as_bytes() {
            [first, second] => Some(Self([Letter::of(*first)?, Letter::of(*second)?])),
            _ => None,
        }
    }

    /// True if ISO 3166 assigns the code to a country.
    #[must_use]
    pub fn is_assigned(self) -> bool {
        codes::is_assigned(self.bytes())
    }

    /// The two capital letters.
    #[must_use]
    pub fn bytes(self) -> [u8; 2] {
        self.0.map(|letter| letter.0.get())
    }
}

impl fmt::Display for Country {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, second] = self.bytes().map(char::from);
        write!(f, "{first}{second}")
    }
}

impl fmt::Debug for Country {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An autonomous system: a network of the internet, by its number. The number 0 is no network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Asn(NonZeroU32);

impl Asn {
    /// The network with this number; `None` for 0.
    #[must_use]
    pub fn new(number: u32) -> Option<Self> {
        NonZeroU32::new(number).map(Self)
    }

    /// The network in a text such as `64496` or `AS64496`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = match text.get(..2) {
            Some(start) if start.eq_ignore_ascii_case("as") => &text[2..],
            _ => text,
        };
        let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
        Self::new(digits.parse().ok().filter(|_| is_number)?)
    }

    /// The number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0.get()
    }
}

/// Country and network of one address, as far as they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Geo {
    /// The country.
    pub country: Option<Country>,
    /// The network.
    pub asn: Option<Asn>,
}

impl Geo {
    /// Nothing is known.
    pub const UNKNOWN: Self = Self {
        country: None,
        asn: None,
    };

    /// This, with what is unknown filled in from `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            country: self.country.or(other.country),
            asn: self.asn.or(other.asn),
        }
    }

    /// Reads a country and a network that a caller states.
    ///
    /// # Errors
    /// A country that is not two letters, or a number that is no network's.
    pub fn stated(country: Option<&str>, asn: Option<u64>) -> Result<Self, FieldError> {
        let country = country.map(|code| {
            let problem = "must be a country code of two letters";
            Country::parse(code).ok_or(FieldError::new("country", problem))
        });
        let asn = asn.map(|number| {
            let number = u32::try_from(number).ok().and_then(Asn::new);
            number.ok_or(FieldError::new("asn", "must be 1 to 4294967295"))
        });
        Ok(Self {
            country: country.transpose()?,
            asn: asn.transpose()?,
        })
    }

    const fn is_complete(self) -> bool {
        self.country.is_some() && self.asn.is_some()
    }
}

/// Finds the country and network of an address. A lookup is fast and does not wait.
pub trait GeoLookup: Send + Sync {
    /// Country and network of `ip`, as far as they are known.
    fn find(&self, ip: IpAddr) -> Geo;

    /// State of each database that is asked, for operators.
    fn databases(&self) -> Vec<DatabaseState>;
}

/// State of a database of countries or networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatabaseState {
    /// `country` or `network`.
    pub name: &'static str,
    /// Number of times that a new file was taken over.
    pub replaced: u64,
    /// Number of times that a changed file could not be used.
    pub refused: u64,
    /// The reason why the file as it is now cannot be used, in a word; `None` while it is in use.
    pub error: Option<&'static str>,
}

/// Country and network of a subject: what was stated with it, and what was found by its address.
/// The address is looked up when a rule first needs it, and once only: every rule that judges the
/// subject then sees the same, also while a database is being replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GeoFacts {
    /// Stated by a backend or a trusted proxy; it takes precedence over what is found.
    pub stated: Geo,
    all: OnceLock<Geo>,
}

impl GeoFacts {
    /// Facts with what a caller or a trusted proxy states.
    #[must_use]
    pub const fn stating(stated: Geo) -> Self {
        Self {
            stated,
            all: OnceLock::new(),
        }
    }

    /// Country and network of the subject, which comes from `ip`.
    pub fn look_up(&self, ip: Option<IpAddr>, lookup: Option<&dyn GeoLookup>) -> Geo {
        *self.all.get_or_init(|| {
            let found = match (ip, lookup) {
                (Some(ip), Some(lookup)) if !self.stated.is_complete() => lookup.find(ip),
                _ => Geo::UNKNOWN,
            };
            self.stated.or(found)
        })
    }

    /// Country and network as they were looked up; `None` if no rule has asked.
    #[must_use]
    pub fn known(&self) -> Option<Geo> {
        self.all.get().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Default)]
    struct CountingLookup(AtomicUsize);

    impl GeoLookup for CountingLookup {
        fn find(&self, _: IpAddr) -> Geo {
            self.0.fetch_add(1, Ordering::Relaxed);
            Geo {
                country: Country::parse("ES"),
                asn: Asn::new(64496),
            }
        }

        fn databases(&self) -> Vec<DatabaseState> {
            Vec::new()
        }
    }

    #[test]
    fn p_by_an_address_is_looked_up_once_and_what_was_stated_wins() {
        let (lookup, ip) = (CountingLookup::default(), "203.0.113.5".parse().ok());
        let stated = Geo::stated(Some("de"), None).unwrap();
        let facts = GeoFacts::stating(stated);
        assert_eq!(facts.known(), None);
        for _ in 0..3 {
            let geo = facts.look_up(ip, Some(&lookup));
            assert_eq!(geo.country, Country::parse("DE"));
            assert_eq!(geo.asn, Asn::new(64496));
        }
        assert_eq!(lookup.0.load(Ordering::Relaxed), 1);
        let complete = GeoFacts::stating(Geo::stated(Some("DE"), Some(7)).unwrap());
        complete.look_up(ip, Some(&lookup));
        assert_eq!(lookup.0.load(Ordering::Relaxed), 1, "nothing to find");
        let nowhere = GeoFacts::default();
        assert_eq!(nowhere.look_up(None, Some(&lookup)), Geo::UNKNOWN);
    }

    #[test]
    fn p_by_stated_values_are_two_letters_and_a_number_of_32_bits() {
        for wrong in ["", "D", "DEU", "D1", "é", "🇩"] {
            let refused = Geo::stated(Some(wrong), None).unwrap_err();
            assert_eq!(refused.field, "country", "{wrong}");
        }
        for wrong in [0, 1 << 32, u64::MAX] {
            assert_eq!(Geo::stated(None, Some(wrong)).unwrap_err().field, "asn");
        }
        let largest = Geo::stated(Some("zz"), Some(u64::from(u32::MAX))).unwrap();
        assert_eq!(largest.country.unwrap().to_string(), "ZZ");
        assert_eq!(largest.asn.unwrap().number(), u32::MAX);
    }

    #[test]
    fn networks_are_read_with_and_without_their_letters() {
        assert_eq!(Asn::parse("AS64496"), Asn::new(64496));
        assert_eq!(Asn::parse("64496"), Asn::new(64496));
        for wrong in ["", "AS", "0", "+5", "-1", "4294967296", "AS 5"] {
            assert_eq!(Asn::parse(wrong), None, "{wrong}");
        }
    }

    /// Every request carries them, whether or not its policy asks for a country.
    #[test]
    fn facts_of_a_country_are_small() {
        assert!(size_of::<GeoFacts>() <= 24, "{}", size_of::<GeoFacts>());
        assert_eq!(size_of::<Option<Country>>(), 2);
    }
}
