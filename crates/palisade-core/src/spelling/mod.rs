//! One spelling of a name, however it was typed.
//!
//! An application finds the account by its own comparison, and the most common ones are coarse: by
//! default, MySQL's collations distinguish neither case nor accents and skip invisible characters,
//! so that `ann`, `Ànn` and `a<soft hyphen>nn` are one row. If each spelling were counted as a
//! name of its own, it would be a fresh budget of guesses. Counted as one, two people whose names
//! differ only in this way share a record, and nothing else.

mod tables;

use unicode_normalization::UnicodeNormalization;
use unicode_properties::{GeneralCategory, UnicodeGeneralCategory};

use tables::{EQUALS, IGNORED, LETTER_MARKS};

/// Returns the name without surrounding or repeated space, in lower case, in one Unicode spelling,
/// without accents and invisible characters, with plain digits: `Ànn ` is `ann`. Empty if nothing else was
/// in it.
///
/// Names that ICU compares as equal at the first level of its root collation are spelt alike here.
#[must_use]
pub fn one(name: &str) -> String {
    if name.is_ascii() {
        return single_spaced(&name.trim().to_ascii_lowercase());
    }
    // Filtered before decomposition too: some ignored characters decompose into a space and a
    // mark, and the space would stay.
    let visible = name.chars().filter(|c| !is_ignored(*c));
    // To Unicode this is an apostrophe and the letter.
    let visible = visible.map(|c| if c == 'ŉ' { 'n' } else { c });
    let plain: String = visible
        .nfkd()
        .filter(|c| !is_ignored(*c))
        .flat_map(char::to_uppercase)
        .flat_map(char::to_lowercase)
        .collect();
    let mut spelt = String::with_capacity(plain.len());
    // Decomposed again: a capital may get an accent in lower case that it did not have itself
    // (`İ`).
    for c in plain.nfkd().filter(|c| !is_ignored(*c)) {
        push(&mut spelt, c);
    }
    single_spaced(spelt.trim()).nfc().collect()
}

/// Returns the spelling under which a user name is counted: [`one`], and of a number its digits.
/// Applications read a telephone number in any grouping, and a customer's number with leading zeros.
#[must_use]
pub fn of_name(name: &str) -> String {
    const GROUPING: &str = " +-().,/";
    let spelt = one(name);
    let mut chars = spelt.chars();
    if !chars.all(|c| c.is_ascii_digit() || GROUPING.contains(c)) {
        return spelt;
    }
    let digits: String = spelt.chars().filter(char::is_ascii_digit).collect();
    match digits.trim_start_matches('0') {
        "" if digits.is_empty() => spelt,
        "" => "0".to_owned(),
        number => number.to_owned(),
    }
}

/// Several spaces in a row are one to applications that tidy names (WordPress, MediaWiki).
fn single_spaced(name: &str) -> String {
    let words: Vec<&str> = name.split(' ').filter(|word| !word.is_empty()).collect();
    words.join(" ")
}

/// Appends a character in the form in which it is compared.
fn push(spelt: &mut String, c: char) {
    // The dot of `ŀ` is part of the letter, even where it is written as a character of its own.
    if c == '·' && spelt.ends_with('l') {
        return;
    }
    if c.is_ascii() {
        spelt.push(c);
    } else if let Some(value) = digit(c) {
        spelt.push(value);
    } else if let Some(text) = equal(c) {
        spelt.push_str(text);
    } else {
        spelt.push(c);
    }
}

/// True for marks and for invisible characters. Marks that are vowels are letters to every
/// comparison and stay; a mark that is newer than the tables is taken for an accent.
fn is_ignored(c: char) -> bool {
    use GeneralCategory::{EnclosingMark, Format, NonspacingMark};
    if c.is_ascii() {
        return false;
    }
    match c.general_category() {
        EnclosingMark | Format | NonspacingMark => !is_within(&LETTER_MARKS, c),
        _ => is_filler(c) || is_within(&IGNORED, c),
    }
}

/// True for invisible characters that are neither marks nor formats: Unicode lists them as
/// `Default_Ignorable_Code_Point`, to be ignored where they are not supported.
const fn is_filler(c: char) -> bool {
    matches!(
        c,
        '\u{115f}'..='\u{1160}'
            | '\u{2065}'
            | '\u{3164}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fff8}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

fn is_within(ranges: &[(char, char)], c: char) -> bool {
    let at = ranges.partition_point(|(_, last)| *last < c);
    ranges.get(at).is_some_and(|(first, _)| *first <= c)
}

/// The ASCII digit for a decimal digit of any script. Unicode has them in runs of ten, from zero
/// up.
fn digit(c: char) -> Option<char> {
    let is_digit = |c: &char| c.general_category() == GeneralCategory::DecimalNumber;
    Some(c).filter(is_digit)?;
    let run = ('\0'..c).rev().take_while(is_digit).count();
    char::from_digit(u32::try_from(run % 10).ok()?, 10)
}

/// The text that a character is compared as, if not as itself.
fn equal(c: char) -> Option<&'static str> {
    // MySQL compares these differently from ICU; here they count as one either way.
    match c {
        'ß' => return Some("ss"),
        'æ' => return Some("ae"),
        'œ' => return Some("oe"),
        'ŧ' => return Some("t"),
        'þ' => return Some("th"),
        'ı' => return Some("i"),
        // WordPress has these so (`remove_accents`).
        'ŋ' => return Some("n"),
        'ĸ' => return Some("k"),
        _ => {}
    }
    let at = EQUALS.binary_search_by_key(&c, |(from, _)| *from);
    at.ok().map(|at| EQUALS[at].1)
}

#[cfg(test)]
mod tests {
    use super::{of_name, one};

    #[test]
    fn s3_a_number_is_one_name_however_it_is_grouped() {
        for spelling in [
            "4917612345",
            "+49 176 123-45",
            "+49 (176) 123/45",
            "004917612345",
            "4 9 1 7 6 . 1 2 3 4 5",
            "\u{ff14}917612345",
        ] {
            assert_eq!(of_name(spelling), "4917612345", "{spelling}");
        }
        for (name, counted) in [
            ("000", "0"),
            ("-", "-"),
            ("", ""),
            ("12@x", "12@x"),
            ("Ann-1", "ann-1"),
            ("1a", "1a"),
        ] {
            assert_eq!(of_name(name), counted);
        }
    }

    #[test]
    fn repeated_spaces_count_as_one() {
        assert_eq!(one("ann   smith"), "ann smith");
        assert_eq!(one(" \u{c0}nn\u{a0} smith "), "ann smith");
        assert_eq!(
            one("a\t\tb"),
            "a\t\tb",
            "control characters are refused elsewhere"
        );
    }

    #[test]
    fn what_a_coarse_comparison_takes_for_one_name_is_one() {
        for spelling in [
            "ann",
            " ANN ",
            "ａｎｎ",
            "Ànn",
            "a\u{301}nn",
            "a\u{ad}nn",
            "an\u{200b}n",
            "\u{feff}ann",
            "a\u{fe0f}nn",
            "än\u{303}n",
            "ⓐnn",
            "ann\u{e0041}",
            "a\u{591}nn",
            "a\u{6e1}nn",
            "\u{363}nn",
            "\u{1f150}nn",
        ] {
            assert_eq!(one(spelling), "ann", "{spelling:?}");
        }
        for (spelling, name) in [
            ("STRASSE", "strasse"),
            ("straße", "strasse"),
            ("STRAẞE", "strasse"),
            ("Æsir", "aesir"),
            ("Łukasz", "lukasz"),
            ("İbrahim", "ibrahim"),
            ("ıbrahim", "ibrahim"),
            ("ΑΣ", "ασ"),
            ("ας", "ας"),
            ("ασ", "ας"),
            ("ann\u{661}\u{6f2}\u{966}", "ann120"),
            ("o\u{2019}brien", "o'brien"),
            ("カタ", "かた"),
        ] {
            assert_eq!(one(spelling), one(name), "{spelling:?}");
        }
    }

    #[test]
    fn names_that_differ_otherwise_stay_apart() {
        for (one_name, other) in [
            ("ann", "anne"),
            ("a.nn", "ann"),
            ("a nn", "ann"),
            ("कि", "की"),
            ("कु", "क"),
            ("กี", "ก"),
            ("가", "각"),
            ("анна", "анно"),
        ] {
            assert_ne!(one(one_name), one(other));
        }
        assert_eq!(one("한글"), "한글", "as an operator types it");
        assert_eq!(one("\u{ad}"), "", "nothing is left that could be a name");
    }

    #[test]
    fn a_spelling_is_its_own() {
        for name in ["Ànn@Example.com", "İ", "ẞ", "ŉ", "ﷺ", "ǅ", "ΐ", "ᾳ\u{345}"] {
            let spelt = one(name);
            assert_eq!(one(&spelt), spelt, "{name:?}");
        }
        for c in '\0'..=char::MAX {
            let spelt = one(&c.to_string());
            assert_eq!(one(&spelt), spelt, "{c:?}");
        }
    }
}
