//! The page's texts, in the language that the browser prefers.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use http::HeaderMap;
use http::header::ACCEPT_LANGUAGE;
use palisade_core::challenge::ChallengeFlow;
use serde::{Deserialize, Serialize};

use crate::surfaces::exchange::accept::weighed;

/// The language of browsers that prefer none of ours.
const LANGUAGE: &str = "en";

/// The wait that is named where the refusal's own is not known, in seconds.
const WAIT_S: u64 = 60;

/// All texts. A test reads the file, so that a build of ours has every text.
static ALL: LazyLock<BTreeMap<String, Words>> =
    LazyLock::new(|| serde_json::from_str(TEXTS).unwrap_or_default());

const TEXTS: &str = include_str!("../../../challenge/words.json");

/// The texts of one language.
#[derive(Debug, Deserialize)]
pub(super) struct Words {
    pub(super) title: String,
    pub(super) heading: String,
    login: String,
    requests: String,
    pub(super) progress: String,
    pub(super) onward: String,
    pub(super) again: String,
    noscript: String,
    pub(super) request: String,
    seconds: String,
    minutes: String,
    hours: String,
    #[serde(flatten)]
    pub(super) shown_by_script: ScriptWords,
}

/// The texts that the script shows.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct ScriptWords {
    working: String,
    answer: String,
    done: String,
    late: String,
    wrong: String,
    wait: String,
    offline: String,
    blocked: String,
}

impl Words {
    /// The texts for a client, and the name of their language.
    pub(super) fn for_client(headers: &HeaderMap) -> Option<(&'static str, &'static Self)> {
        let mut best = None;
        for (range, weight) in weighed(headers, &ACCEPT_LANGUAGE) {
            let language = range.split('-').next().unwrap_or_default();
            let known = ALL.get_key_value(&language.to_ascii_lowercase());
            let is_better = best.is_none_or(|(before, _)| weight > before);
            if let Some(known) = known.filter(|_| weight > 0 && is_better) {
                best = Some((weight, known));
            }
        }
        let found = best.map(|(_, known)| known);
        let (name, words) = found.or_else(|| ALL.get_key_value(LANGUAGE))?;
        Some((name, words))
    }

    /// The reason for which a challenge is asked for.
    pub(super) fn reason(&self, flow: ChallengeFlow) -> &str {
        match flow.is_of_guesses() {
            true => &self.login,
            false => &self.requests,
        }
    }

    /// Advice where scripts do not run: switch them on, or wait.
    pub(super) fn noscript(&self, wait: Option<u64>) -> String {
        self.noscript.replace("{wait}", &self.wait(wait))
    }

    fn wait(&self, seconds: Option<u64>) -> String {
        // Never one, so that the texts need no singular.
        let (number, unit) = match seconds.unwrap_or(WAIT_S) {
            seconds @ 0..=90 => (seconds.max(2), &self.seconds),
            seconds @ 91..=5_400 => (seconds.div_ceil(60), &self.minutes),
            seconds => (seconds.div_ceil(3_600), &self.hours),
        };
        unit.replace("{n}", &number.to_string())
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn c_page_every_language_has_every_text() {
        let read: BTreeMap<String, Words> = serde_json::from_str(TEXTS).unwrap();
        assert!(read.len() >= 4);
        let texts: BTreeMap<String, BTreeMap<String, String>> =
            serde_json::from_str(TEXTS).unwrap();
        for (language, texts) in &texts {
            for (name, text) in texts {
                assert!(!text.trim().is_empty(), "{language}.{name}");
                let holes = text.matches('{').count();
                let has_hole = ["noscript", "seconds", "minutes", "hours"].contains(&&**name);
                assert_eq!(holes, usize::from(has_hole), "{language}.{name}");
            }
        }
    }

    #[test]
    fn c_page_the_browser_chooses_the_language() {
        for (sent, language) in [
            ("de-AT,de;q=0.9,en;q=0.8", "de"),
            ("nl, fr;q=0.5, en;q=0.4", "fr"),
            ("en;q=0.2, ES;q=0.3", "es"),
            ("de;q=0", "en"),
            ("xx", "en"),
            ("*", "en"),
            ("", "en"),
        ] {
            let value = HeaderValue::from_static(sent);
            let headers = HeaderMap::from_iter([(ACCEPT_LANGUAGE, value)]);
            assert_eq!(Words::for_client(&headers).unwrap().0, language, "{sent}");
        }
    }

    #[test]
    fn c_page_without_scripts_the_wait_is_said() {
        let (_, words) = Words::for_client(&HeaderMap::new()).unwrap();
        for (seconds, said) in [
            (None, "60 seconds"),
            (Some(60), "60 seconds"),
            (Some(300), "5 minutes"),
            (Some(86_400), "24 hours"),
        ] {
            assert!(words.noscript(seconds).contains(said), "{said}");
        }
    }
}
