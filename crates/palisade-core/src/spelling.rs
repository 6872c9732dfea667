//! One spelling of a name, however it was typed.
//!
//! An application finds the account by its own comparison, and the most common ones are coarse:
//! MySQL's collations by default tell neither case nor accents apart and pass over invisible
//! characters, so that `ann`, `Ànn` and `a<soft hyphen>nn` are one row. Counted as different
//! names, each spelling would be a fresh budget of guesses. Counted as one, two people whose
//! names differ only so share a record, and nothing else.

use unicode_normalization::UnicodeNormalization;

/// The name without surrounding space, in lower case, in one Unicode spelling, without accents
/// and without what cannot be seen: `Ànn ` is `ann`. Empty if nothing else was in it.
#[must_use]
pub fn one(name: &str) -> String {
    if name.is_ascii() {
        return name.trim().to_ascii_lowercase();
    }
    let plain: String = name
        .nfkd()
        .filter(|c| !is_accent(*c) && !is_invisible(*c))
        .flat_map(char::to_uppercase)
        .flat_map(char::to_lowercase)
        .collect();
    let mut spelt = String::with_capacity(plain.len());
    // A capital may have an accent in lower case that it did not have itself (`İ`).
    for c in plain.nfkd().filter(|c| !is_accent(*c)) {
        match letters(c) {
            Some(letters) => spelt.push_str(letters),
            None => spelt.push(c),
        }
    }
    spelt.trim().nfc().collect()
}

/// Marks above, below and around letters of the Latin, Greek and Cyrillic scripts. Those of
/// other scripts are vowels, which every comparison tells apart.
const fn is_accent(c: char) -> bool {
    matches!(
        c,
        '\u{300}'..='\u{36f}'
            | '\u{1ab0}'..='\u{1aff}'
            | '\u{1dc0}'..='\u{1dff}'
            | '\u{20d0}'..='\u{20ff}'
            | '\u{fe20}'..='\u{fe2f}'
    )
}

/// What Unicode says to ignore where it is not supported (`Default_Ignorable_Code_Point`).
const fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{ad}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

/// Letters that do not come apart by themselves and are compared as others.
const fn letters(c: char) -> Option<&'static str> {
    Some(match c {
        'ß' => "ss",
        'æ' => "ae",
        'œ' => "oe",
        'ø' => "o",
        'ł' => "l",
        'đ' | 'ð' => "d",
        'ħ' => "h",
        'ŧ' => "t",
        'þ' => "th",
        'ı' => "i",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::one;

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
    }
}
