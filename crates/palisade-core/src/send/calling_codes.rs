//! Country calling codes of ITU-T E.164 (its list of assigned codes): of one digit, of two, else of
//! three.

/// Calling codes of one digit: the zones of North America and of Russia and Kazakhstan.
const ONE: [&str; 2] = ["1", "7"];

/// Calling codes of two digits.
const TWO: [&str; 44] = [
    "20", "27", "30", "31", "32", "33", "34", "36", "39", "40", "41", "43", "44", "45", "46", "47",
    "48", "49", "51", "52", "53", "54", "55", "56", "57", "58", "60", "61", "62", "63", "64", "65",
    "66", "81", "82", "84", "86", "90", "91", "92", "93", "94", "95", "98",
];

/// Calling codes of three digits, as ranges: first and last. Those for services without a country
/// (satellites, international premium and freephone numbers) are among them.
const THREE: [(u16, u16); 33] = [
    (211, 213),
    (216, 216),
    (218, 218),
    (220, 258),
    (260, 269),
    (290, 291),
    (297, 299),
    (350, 359),
    (370, 383),
    (385, 387),
    (389, 389),
    (420, 421),
    (423, 423),
    (500, 509),
    (590, 599),
    (670, 670),
    (672, 683),
    (685, 692),
    (800, 800),
    (808, 808),
    (850, 850),
    (852, 853),
    (855, 856),
    (870, 870),
    (878, 878),
    (880, 883),
    (886, 886),
    (888, 888),
    (960, 968),
    (970, 977),
    (979, 979),
    (992, 996),
    (998, 998),
];

/// The number of digits of the calling code that a number without its `+` starts with; `None` if
/// no such code is assigned.
pub(super) fn length(digits: &str) -> Option<usize> {
    let starts = |code: &&str| digits.starts_with(code);
    if ONE.iter().any(starts) {
        return Some(1);
    }
    if TWO.iter().any(starts) {
        return Some(2);
    }
    let code: u16 = digits.get(..3)?.parse().ok()?;
    let is_assigned = THREE
        .iter()
        .any(|(first, last)| (*first..=*last).contains(&code));
    is_assigned.then_some(3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_the_calling_code_of_its_country() {
        for (digits, code) in [
            ("12125550100", Some(1)),
            ("74951234567", Some(1)),
            ("34600123456", Some(2)),
            ("351912345678", Some(3)),
            ("38344123456", Some(3)),
            ("97912345678", Some(3)),
            ("99312345678", Some(3)),
            ("25912345678", None),
            ("99912345678", None),
            ("0123456789", None),
            ("21", None),
        ] {
            assert_eq!(length(digits), code, "{digits}");
        }
    }

    /// A code of three digits that starts like one of two would never be found.
    #[test]
    fn no_calling_code_starts_with_another() {
        let three = THREE.iter().flat_map(|(first, last)| *first..=*last);
        for code in three.map(|code| code.to_string()) {
            assert_eq!(length(&code), Some(3), "{code}");
        }
        for code in TWO {
            assert_eq!(length(&format!("{code}0")), Some(2), "{code}");
        }
    }
}
