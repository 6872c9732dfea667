//! User agents, reduced to a family and a major version.

use std::fmt;

/// Browser families, in the order of the search: Edge and Opera also call themselves Chrome, and
/// Chrome calls itself Safari.
const FAMILIES: [(&str, &[&str]); 5] = [
    ("edge", &["edg/", "edge/", "edga/", "edgios/"]),
    ("opera", &["opr/", "opera/", "opios/"]),
    ("firefox", &["firefox/", "fxios/"]),
    ("chrome", &["chrome/", "crios/", "chromium/"]),
    ("safari", &["safari/"]),
];

/// A browser family and its major version; `other/0` for everything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserAgent {
    family: &'static str,
    major: u32,
}

impl UserAgent {
    /// Everything that is not recognised.
    pub const OTHER: Self = Self {
        family: "other",
        major: 0,
    };

    /// Recognises a `User-Agent`.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let text = text.to_ascii_lowercase();
        FAMILIES
            .iter()
            .find_map(|(family, tokens)| {
                let token = tokens.iter().find(|token| text.contains(*token))?;
                Some(Self {
                    family,
                    major: major_of(&text, family, token),
                })
            })
            .unwrap_or(Self::OTHER)
    }
}

/// Major version of a browser. Safari states it in a token of its own.
fn major_of(text: &str, family: &str, token: &str) -> u32 {
    let version = (family == "safari")
        .then(|| number_after(text, "version/"))
        .flatten();
    version.or_else(|| number_after(text, token)).unwrap_or(0)
}

fn number_after(text: &str, token: &str) -> Option<u32> {
    let (_, rest) = text.split_once(token)?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    rest[..digits.min(9)].parse().ok()
}

impl fmt::Display for UserAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.family, self.major)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_looked_for_in_order() {
        let cases = [
            (
                "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/123.0.0.0 Safari/537.36",
                "chrome/123",
            ),
            (
                "Mozilla/5.0 (Windows NT 10.0) AppleWebKit/537.36 Chrome/123.0.0.0 Safari/537.36 Edg/122.0.1",
                "edge/122",
            ),
            (
                "Mozilla/5.0 (Windows NT 10.0) AppleWebKit/537.36 Chrome/122.0.0.0 Safari/537.36 OPR/108.0",
                "opera/108",
            ),
            (
                "Mozilla/5.0 (X11; Linux x86_64; rv:124.0) Gecko/20100101 Firefox/124.0",
                "firefox/124",
            ),
            (
                "Mozilla/5.0 (Macintosh) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/17.4 Safari/605.1.15",
                "safari/17",
            ),
            (
                "Mozilla/5.0 (iPhone) AppleWebKit/605.1.15 CriOS/123.0 Mobile/15E148 Safari/604.1",
                "chrome/123",
            ),
            ("curl/8.5.0", "other/0"),
            ("Chrome/", "chrome/0"),
            ("Chrome/99999999999999999999", "chrome/999999999"),
            ("", "other/0"),
            ("Firefox/é", "firefox/0"),
        ];
        for (text, expected) in cases {
            assert_eq!(UserAgent::parse(text).to_string(), expected, "{text}");
        }
    }
}
