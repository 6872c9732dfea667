//! Destinations of one-time codes in one spelling: a telephone number in E.164, or a mail address.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::calling_codes;
use crate::facts::{FieldError, ID_BYTES_MAX, bounded};
use crate::spelling;

/// Fewest and most digits of a number with its calling code. The shortest numbers in use are those
/// of islands with three to five digits of their own.
const DIGITS: std::ops::RangeInclusive<usize> = 7..=15;

/// Characters that group the digits of a number and mean nothing.
const GROUPING: &str = " -.()/\u{2010}\u{2011}\u{2013}";

/// Way by which a code is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Channel {
    /// A text message.
    Sms,
    /// A telephone call.
    Voice,
    /// A mail.
    Email,
}

/// A telephone number or mail address in the spelling under which it is counted.
///
/// `Debug` hides it: destinations are personal data.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Destination(Box<str>);

impl Destination {
    /// Reads a destination: `+34 600-12 34 56` and `0034600123456` are `+34600123456`,
    /// `Ann@Example.com` is `ann@example.com`.
    ///
    /// # Errors
    /// Neither a number in international form nor a mail address; the error names `destination`.
    pub fn new(text: &str) -> Result<Self, FieldError> {
        bounded("destination", text, ID_BYTES_MAX)?;
        // Folded first: digits and signs may be written in another script or width.
        let spelt = spelling::one(text);
        let read = match spelt.rsplit_once('@') {
            Some((name, domain)) => mail(name, domain),
            None => number(&spelt),
        };
        read.map(|read| Self(read.into())).ok_or(FieldError::new(
            "destination",
            "must be a telephone number in international form (`+` and a calling code) or a mail \
             address",
        ))
    }

    /// Refuses a destination that the channel cannot reach.
    ///
    /// # Errors
    /// A number for a mail, or an address for a message or call.
    pub fn suits(&self, channel: Channel) -> Result<(), FieldError> {
        match (channel, self.domain()) {
            (Channel::Email, None) => {
                let problem = "must be a mail address for the channel `email`";
                Err(FieldError::new("destination", problem))
            }
            (Channel::Sms | Channel::Voice, Some(_)) => {
                let problem = "must be a telephone number for the channels `sms` and `voice`";
                Err(FieldError::new("destination", problem))
            }
            _ => Ok(()),
        }
    }

    /// The destination's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The domain of a mail address; `None` for a number.
    #[must_use]
    pub fn domain(&self) -> Option<&str> {
        self.0.rsplit_once('@').map(|(_, domain)| domain)
    }

    /// The country calling code of a number, with its `+`; `None` for a mail address.
    #[must_use]
    pub fn calling_code(&self) -> Option<&str> {
        let digits = self
            .0
            .strip_prefix('+')
            .filter(|_| self.domain().is_none())?;
        self.0.get(..=calling_codes::length(digits)?)
    }
}

impl fmt::Debug for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Destination(…)")
    }
}

fn mail(name: &str, domain: &str) -> Option<String> {
    let domain = domain.trim_end_matches('.');
    let is_host = domain.contains('.')
        && domain.split('.').all(|label| !label.is_empty())
        && !domain.contains([' ', '@', '/', ',', ';']);
    let is_plain = !name.is_empty() && !name.contains([' ', ',', ';']);
    (is_host && is_plain).then(|| format!("{name}@{domain}"))
}

fn number(text: &str) -> Option<String> {
    // `+44 (0)20 …`: the zero is dialled within the country only.
    let text = text.replacen("(0)", "", 1);
    let text = text.trim();
    let (text, has_sign) = match text.strip_prefix('+') {
        Some(rest) => (rest, true),
        None => (text, false),
    };
    let mut digits = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '0'..='9' => digits.push(c),
            _ if GROUPING.contains(c) => {}
            _ => return None,
        }
    }
    let digits = match has_sign {
        true => digits.as_str(),
        false => digits.strip_prefix("00")?,
    };
    calling_codes::length(digits)?;
    DIGITS.contains(&digits.len()).then(|| format!("+{digits}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelt(text: &str) -> Option<String> {
        Destination::new(text)
            .ok()
            .map(|one| one.as_str().to_owned())
    }

    #[test]
    fn a_number_is_one_destination_however_it_is_written() {
        for text in [
            "+34600123456",
            "0034 600 12 34 56",
            " +34 600-12-34-56 ",
            "+34 (600) 12.34/56",
            "+34\u{a0}600\u{2011}123\u{2011}456",
            "\u{ff0b}\u{ff13}\u{ff14}600123456",
        ] {
            assert_eq!(spelt(text).as_deref(), Some("+34600123456"), "{text:?}");
        }
        assert_eq!(
            spelt("+44 (0)20 7946 0000").as_deref(),
            Some("+442079460000")
        );
    }

    #[test]
    fn a_mail_address_is_folded_as_a_name_is() {
        for text in [
            "Ann@Example.com",
            " ann@example.COM. ",
            "\u{c0}nn@example.com",
        ] {
            assert_eq!(spelt(text).as_deref(), Some("ann@example.com"), "{text:?}");
        }
    }

    #[test]
    fn a_destination_that_nothing_reaches_is_refused_by_name() {
        for text in [
            "",
            "600123456",
            "+34",
            "+99912345678",
            "+34600123456789012",
            "+34 600 ext 5",
            "ann@",
            "@example.com",
            "ann@localhost",
            "ann@a..b",
            "a b@example.com",
            "ann@example.com,bob@example.com",
        ] {
            let refused = Destination::new(text).unwrap_err();
            assert_eq!(refused.field, "destination", "{text:?}");
        }
        let (number, mail) = ("+34600123456", "ann@example.com");
        for (text, channel, suits) in [
            (number, Channel::Sms, true),
            (number, Channel::Voice, true),
            (number, Channel::Email, false),
            (mail, Channel::Sms, false),
            (mail, Channel::Voice, false),
            (mail, Channel::Email, true),
        ] {
            let found = Destination::new(text).unwrap().suits(channel);
            assert_eq!(found.is_ok(), suits, "{text} {channel:?}");
        }
    }

    #[test]
    fn destinations_never_reach_debug_output() {
        let one = Destination::new("+34600123456").unwrap();
        assert!(!format!("{one:?}").contains("600"));
    }
}
