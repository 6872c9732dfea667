//! Recognition of bots by their user agent (I-BOT).

use palisade_core::FieldError;

/// Most patterns in one list.
pub const PATTERNS_MAX: usize = 256;
/// Longest pattern, in bytes.
pub const PATTERN_BYTES_MAX: usize = 256;

/// Scanners that name themselves in their user agent.
const SCANNERS: [&str; 18] = [
    "sqlmap",
    "nikto",
    "nmap",
    "masscan",
    "zgrab",
    "wpscan",
    "dirbuster",
    "gobuster",
    "nuclei",
    "feroxbuster",
    "ffuf",
    "wfuzz",
    "acunetix",
    "nessus",
    "openvas",
    "arachni",
    "w3af",
    "whatweb",
];

/// User-Agent patterns, case-insensitive: a substring, or, with `*` or `?` in
/// it, a glob over the whole text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BotPatterns {
    patterns: Vec<Pattern>,
    /// A quick test on the first bytes of the patterns, which most user agents fail; `None` if the
    /// patterns do not permit it.
    beginnings: Option<Beginnings>,
}

/// The first three bytes of every pattern, as bits of a small table. A user agent with none of
/// these in it matches no substring. Searching for each pattern would cost more than deciding the
/// request.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Beginnings([u64; Self::WORDS]);

impl Beginnings {
    const WORDS: usize = 32;

    /// Returns `None` if a pattern is a glob, or shorter than three bytes.
    fn of(patterns: &[Pattern]) -> Option<Self> {
        let mut table = [0; Self::WORDS];
        for pattern in patterns {
            let Pattern::Substring(part) = pattern else {
                return None;
            };
            let (word, bit) = Self::place(*part.as_bytes().first_chunk()?);
            table[word] |= bit;
        }
        Some(Self(table))
    }

    const fn place([a, b, c]: [u8; 3]) -> (usize, u64) {
        let hash = (a as usize) ^ ((b as usize) << 3) ^ ((c as usize) << 6);
        (hash / 64 % Self::WORDS, 1 << (hash % 64))
    }

    /// False only if no pattern can occur in `text` in any letter case.
    fn may_be_in(&self, text: &str) -> bool {
        // Some characters beyond ASCII have an ASCII letter as their lower case (the Kelvin sign).
        !text.is_ascii()
            || text.as_bytes().windows(3).any(|three| {
                let &[a, b, c] = three else { return false };
                let small = [a, b, c].map(|byte| byte.to_ascii_lowercase());
                let (word, bit) = Self::place(small);
                self.0[word] & bit != 0
            })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Pattern {
    Substring(Box<str>),
    Glob(Box<str>),
}

/// Treatment of a request without a user agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingUserAgent {
    /// The request is a bot's. For surfaces that see the client's own request.
    #[default]
    Marks,
    /// A missing user agent says nothing. For surfaces that get facts from a caller, who may have
    /// left it out.
    SaysNothing,
}

impl Default for BotPatterns {
    fn default() -> Self {
        Self::compiled(SCANNERS.iter().map(|name| Pattern::new(name)).collect())
    }
}

impl BotPatterns {
    /// Marks requests whose user agent matches one of `patterns`.
    ///
    /// # Errors
    /// More than [`PATTERNS_MAX`], or a pattern that is blank or over
    /// [`PATTERN_BYTES_MAX`].
    pub fn new<S: AsRef<str>>(patterns: &[S]) -> Result<Self, FieldError> {
        const FIELD: &str = "bot.user_agents";
        if patterns.len() > PATTERNS_MAX {
            return Err(FieldError::new(FIELD, "has too many patterns"));
        }
        let compile = |pattern: &S| {
            let text = pattern.as_ref().trim();
            palisade_core::facts::bounded(FIELD, text, PATTERN_BYTES_MAX)?;
            Ok(Pattern::new(text))
        };
        patterns
            .iter()
            .map(compile)
            .collect::<Result<_, _>>()
            .map(Self::compiled)
    }

    fn compiled(patterns: Vec<Pattern>) -> Self {
        Self {
            beginnings: Beginnings::of(&patterns),
            patterns,
        }
    }

    /// True if a request with this user agent is a bot's.
    #[must_use]
    pub fn marks(&self, user_agent: Option<&str>, missing: MissingUserAgent) -> bool {
        let Some(text) = user_agent.filter(|text| !text.trim().is_empty()) else {
            return missing == MissingUserAgent::Marks;
        };
        // Excludes most user agents before the text is copied and searched.
        let beginnings = self.beginnings.as_ref();
        if beginnings.is_some_and(|beginnings| !beginnings.may_be_in(text)) {
            return false;
        }
        let text = text.to_lowercase();
        self.patterns.iter().any(|pattern| pattern.matches(&text))
    }
}

impl Pattern {
    fn new(text: &str) -> Self {
        let text = text.to_lowercase().into_boxed_str();
        if text.contains(['*', '?']) {
            Self::Glob(text)
        } else {
            Self::Substring(text)
        }
    }

    fn matches(&self, text: &str) -> bool {
        match self {
            Self::Substring(part) => text.contains(&**part),
            Self::Glob(glob) => glob_matches(glob.as_bytes(), text.as_bytes()),
        }
    }
}

/// Greedy matching that backtracks to the last star only, so that it takes at most `glob × text`
/// steps.
fn glob_matches(glob: &[u8], text: &[u8]) -> bool {
    let (mut g, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match glob.get(g) {
            Some(b'*') => {
                star = Some((g, t));
                g += 1;
            }
            Some(byte) if *byte == b'?' || *byte == text[t] => {
                g += 1;
                t += 1;
            }
            _ => {
                let Some((at, from)) = star else {
                    return false;
                };
                // Let the last star match one more byte.
                star = Some((at, from + 1));
                (g, t) = (at + 1, from + 1);
            }
        }
    }
    glob[g..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn marks(patterns: &[&str], user_agent: &str) -> bool {
        BotPatterns::new(patterns)
            .unwrap()
            .marks(Some(user_agent), MissingUserAgent::Marks)
    }

    #[test]
    fn i_bot_known_scanners_are_marked_in_any_case() {
        let bots = BotPatterns::default();
        let marked = |text| bots.marks(Some(text), MissingUserAgent::Marks);
        assert!(marked("sqlmap/1.7.2#stable (https://sqlmap.org)"));
        assert!(marked("Mozilla/5.00 (Nikto/2.5.0)"));
        assert!(marked("Mozilla/5.0 (compatible; Nmap Scripting Engine)"));
        assert!(!marked("Mozilla/5.0 (X11; Linux x86_64) Firefox/140.0"));
        assert!(!marked("curl/8.5.0"));
    }

    #[test]
    fn i_bot_a_missing_user_agent_marks_only_where_the_client_is_seen() {
        let bots = BotPatterns::default();
        for blank in [None, Some(""), Some("  ")] {
            assert!(bots.marks(blank, MissingUserAgent::Marks));
            assert!(!bots.marks(blank, MissingUserAgent::SaysNothing));
        }
        assert!(bots.marks(Some("nuclei"), MissingUserAgent::SaysNothing));
    }

    #[test]
    fn i_bot_globs_cover_the_whole_text() {
        assert!(marks(&["*Bot/?.*"], "EvilBot/1.0"));
        assert!(!marks(&["bot*"], "EvilBot/1.0"));
        assert!(marks(&["python-requests/*"], "Python-Requests/2.31"));
        assert!(!marks(&["a?c"], "ac"));
        assert!(!marks(&[], "sqlmap"));
    }

    #[test]
    fn i_bot_lists_are_bounded() {
        assert!(BotPatterns::new(&[" "]).is_err());
        assert!(BotPatterns::new(&["x".repeat(PATTERN_BYTES_MAX + 1)]).is_err());
        assert!(BotPatterns::new(&vec!["x"; PATTERNS_MAX + 1]).is_err());
    }

    fn naive(glob: &[u8], text: &[u8]) -> bool {
        match (glob.split_first(), text.split_first()) {
            (None, None) => true,
            (Some((b'*', rest)), _) => {
                naive(rest, text) || (!text.is_empty() && naive(glob, &text[1..]))
            }
            (Some((g, glob)), Some((t, text))) => (*g == b'?' || g == t) && naive(glob, text),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn i_bot_a_substring_is_found_wherever_it_stands(
            patterns in proptest::collection::vec("[a-ck]{1,5}", 0..4),
            text in "[a-dA-Dk\u{212a}]{1,12}",
        ) {
            let found = patterns.iter().any(|part| text.to_lowercase().contains(part));
            let bots = BotPatterns::new(&patterns).unwrap();
            prop_assert_eq!(bots.marks(Some(&text), MissingUserAgent::Marks), found);
        }

        #[test]
        fn i_bot_globs_agree_with_the_definition(glob in "[ab*?]{0,8}", text in "[ab]{0,10}") {
            prop_assert_eq!(
                glob_matches(glob.as_bytes(), text.as_bytes()),
                naive(glob.as_bytes(), text.as_bytes())
            );
        }
    }
}
