//! `[challenge]`: what callers are asked to prove (C-KIND).

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::time::Duration;

use palisade_core::challenge::{ChallengeKind, ChallengeSettings, ProviderSettings};
use palisade_core::policy::PolicyParts;

use crate::document::Input;
use crate::document::error::{Origin, Sink};
use crate::document::schema::{Section, read_table};
use crate::document::tree::{Table, lookup, member_origin};
use crate::policy::values::{OneOrMany, SecretSource, WebUrl};
use crate::{named, section};

named!(ChallengeKind {
    "proof-of-work" => Self::ProofOfWork,
    "turnstile" => Self::Turnstile,
    "hcaptcha" => Self::Hcaptcha,
    "recaptcha" => Self::Recaptcha,
    "host" => Self::Host,
});

/// The challenge in place of a provider's that does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fallback {
    /// The built-in one.
    ProofOfWork,
    /// None: the challenge stays unsolved.
    None,
}

named!(Fallback {
    "proof-of-work" => Self::ProofOfWork,
    "none" => Self::None,
});

section! {
    /// Challenges: what a client can do to go on after a soft block of the guard, a captcha of the
    /// lockout, or a limit with `on_exceed = "challenge"`.
    pub(crate) struct ChallengeTable(Table "challenge") {
        /// Kind of challenge: `proof-of-work` is built in; `turnstile`, `hcaptcha` and `recaptcha`
        /// ask a provider; with `host` the application shows its own and reports
        /// `challenge_passed`.
        kind: ChallengeKind = "proof-of-work";
        /// Hashes that a proof of work of level 1 is expected to need. Each level above doubles
        /// them, up to 200000.
        difficulty: u32 = "50000" where "1000"..="200000";
        /// Time for which a proof of work can be solved.
        valid_for: Duration = "5min" where "1min"..="15min";
        /// Time for which a passed challenge is good.
        pass_for: Duration = "10min" where "1min"..="15min";
        /// Requests that a pass cookie frees from limits. A login or a code needs a challenge for
        /// each attempt, and a `challenge_token` is good once.
        pass_uses: u32 = "20" where "1"..="250";
        /// Challenges that an address may get on each node in a minute, and solutions that it may
        /// have verified.
        per_minute: u32 = "30" where "1"..="10000";
        /// Address of the page on which a browser solves a challenge, as answers name it.
        url: String = "/.palisade/challenge";
        /// Public key of the site at the provider.
        site_key: Option<String>;
        /// Secret of the site at the provider.
        secret: Option<SecretSource>;
        /// Address at which the provider verifies; its usual one if left out.
        verify_url: Option<WebUrl>;
        /// Host names of the site, one of which the provider must name; any if left out.
        hostnames: Option<OneOrMany>;
        /// Whether the provider is told the client's address.
        remote_ip: Option<bool>;
        /// Version of reCAPTCHA that the site key is for: 2 shows a widget, 3 scores the visitor,
        /// who passes with 0.5 and more. 2 if left out.
        version: Option<NonZeroU32>;
        /// Challenge while the provider does not answer: `proof-of-work`, or `none`, which leaves
        /// the client refused.
        fallback: Option<Fallback>;
    }
}

/// Reads the settings of challenges; `None` if an error was reported.
pub(crate) fn read(root: &Table, input: &Input<'_>, sink: &mut Sink) -> Option<ChallengeSettings> {
    let table = read_table::<ChallengeTable>(root, sink)?;
    let written = lookup(root, ChallengeTable::SCHEMA.path);
    let mut checker = Checker { root, input, sink };
    let micros = |one: Duration| u64::try_from(one.as_micros()).unwrap_or(u64::MAX);
    let provider = match table.kind.is_of_provider() {
        true => Some(checker.provider(&table)?),
        false => {
            checker.no_provider(&table)?;
            None
        }
    };
    Some(ChallengeSettings {
        is_used: written.is_some(),
        kind: table.kind,
        difficulty: table.difficulty,
        valid_us: micros(table.valid_for),
        pass_us: micros(table.pass_for),
        pass_uses: u16::try_from(table.pass_uses).unwrap_or(1),
        per_minute: table.per_minute,
        url: table.url.as_str().into(),
        provider,
    })
}

/// Joins the settings with the limits that ask for challenges; false if they contradict each other.
pub(crate) fn bind(root: &Table, parts: &mut PolicyParts, sink: &mut Sink) -> bool {
    let settings = &mut parts.settings.challenge;
    let mut asking = parts.limits.iter().filter(|one| one.challenge.is_some());
    let Some(limit) = asking.next() else {
        return true;
    };
    settings.is_used = true;
    if settings.kind.is_ours() {
        return true;
    }
    let message = format!(
        "`limit.on_exceed` of `{}` cannot be `challenge` beside `challenge.kind` `host`",
        limit.name
    );
    let hint = "choose a kind that Palisade verifies: limits believe no `challenge_passed`";
    let entry = lookup(root, ChallengeTable::SCHEMA.path);
    let origin = entry.map_or(Origin::Nowhere, |entry| member_origin(&entry.node, "kind"));
    sink.report_with(&origin, message, hint);
    false
}

struct Checker<'a, 'i> {
    root: &'a Table,
    input: &'a Input<'i>,
    sink: &'a mut Sink,
}

impl Checker<'_, '_> {
    fn refuse(&mut self, key: &str, problem: &str, hint: &str) {
        let entry = lookup(self.root, ChallengeTable::SCHEMA.path);
        let origin = entry.map_or(Origin::Nowhere, |entry| member_origin(&entry.node, key));
        self.sink
            .report_with(&origin, format!("`challenge.{key}` {problem}"), hint);
    }

    fn provider(&mut self, table: &ChallengeTable) -> Option<ProviderSettings> {
        let name = table.kind.name();
        if table.site_key.is_none() {
            let hint = "copy the public key from the provider's settings";
            self.refuse("site_key", &format!("is missing: `{name}` needs it"), hint);
        }
        let secret = match &table.secret {
            None => {
                let hint = "write \"env:NAME\" or \"file:PATH\"";
                self.refuse("secret", &format!("is missing: `{name}` needs it"), hint);
                None
            }
            Some(source) => match source.read(self.input) {
                Ok(secret) => Some(secret),
                Err(problem) => {
                    let hint = "set the variable, or check the path and its permissions";
                    self.refuse("secret", problem, hint);
                    None
                }
            },
        };
        let hostnames = table.hostnames.as_ref().map(OneOrMany::all);
        let hostnames = hostnames.unwrap_or_default().iter();
        Some(ProviderSettings {
            site_key: table.site_key.as_deref()?.into(),
            secret: secret?.into(),
            verify_url: self.verify_url(table)?.into(),
            hostnames: hostnames.map(|name| name.as_str().into()).collect(),
            sends_address: table.remote_ip == Some(true),
            is_scored: self.version(table)? == 3,
            has_fallback: table.fallback != Some(Fallback::None),
        })
    }

    fn verify_url<'t>(&mut self, table: &'t ChallengeTable) -> Option<&'t str> {
        let Some(url) = table.verify_url.as_ref().map(WebUrl::as_str) else {
            return Some(usual_url(table.kind));
        };
        if url.starts_with("https://") || is_loopback(url) {
            return Some(url);
        }
        let hint = "only an address of this machine may be without TLS, `http://127.0.0.1:…`";
        self.refuse(
            "verify_url",
            "must be `https://`: our secret is sent there",
            hint,
        );
        None
    }

    fn version(&mut self, table: &ChallengeTable) -> Option<u32> {
        let is_recaptcha = table.kind == ChallengeKind::Recaptcha;
        match table.version.map(NonZeroU32::get) {
            None => Some(2),
            Some(version @ 2..=3) if is_recaptcha => Some(version),
            Some(_) => {
                let hint = "leave it out, or set `kind = \"recaptcha\"` and `version = 3`";
                self.refuse(
                    "version",
                    "must be 2 or 3, and is of `recaptcha` only",
                    hint,
                );
                None
            }
        }
    }

    /// Refuses the keys of a provider where there is none.
    fn no_provider(&mut self, table: &ChallengeTable) -> Option<()> {
        let set = [
            ("site_key", table.site_key.is_some()),
            ("secret", table.secret.is_some()),
            ("verify_url", table.verify_url.is_some()),
            ("hostnames", table.hostnames.is_some()),
            ("remote_ip", table.remote_ip.is_some()),
            ("version", table.version.is_some()),
            ("fallback", table.fallback.is_some()),
        ];
        let mut is_fine = Some(());
        for (key, _) in set.into_iter().filter(|(_, is_set)| *is_set) {
            let hint = "set `kind` to `turnstile`, `hcaptcha` or `recaptcha`, or leave it out";
            self.refuse(key, "only means something to a provider", hint);
            is_fine = None;
        }
        is_fine
    }
}

/// Whether the host of a URL is a loopback address. A name could be anybody's.
fn is_loopback(url: &str) -> bool {
    let rest = url.strip_prefix("http://").unwrap_or_default();
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let address: Option<SocketAddr> = authority.parse().ok();
    let host: Option<IpAddr> = authority.trim_matches(['[', ']']).parse().ok();
    let host = address.map(|address| address.ip()).or(host);
    host.is_some_and(|host| host.is_loopback())
}

/// Where a provider verifies unless it is told otherwise.
const fn usual_url(kind: ChallengeKind) -> &'static str {
    match kind {
        ChallengeKind::Turnstile => "https://challenges.cloudflare.com/turnstile/v0/siteverify",
        ChallengeKind::Hcaptcha => "https://api.hcaptcha.com/siteverify",
        ChallengeKind::Recaptcha => "https://www.google.com/recaptcha/api/siteverify",
        ChallengeKind::ProofOfWork | ChallengeKind::Host => "",
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{Env, Overrides, load_text};

    fn env() -> Env {
        Env::from([("SECRET", "s3cret\n"), ("EMPTY", "")])
    }

    fn settings(text: &str) -> ChallengeSettings {
        let loaded = load_text(Path::new("p.toml"), text, &env(), &Overrides::default()).unwrap();
        loaded.policy.settings.challenge.clone()
    }

    fn errors(text: &str) -> String {
        let loaded = load_text(Path::new("p.toml"), text, &env(), &Overrides::default());
        loaded.unwrap_err().to_string()
    }

    const PROVIDER: &str = "[challenge]\nkind = \"hcaptcha\"\nsite_key = \"k\"\n";
    const LIMIT: &str =
        "[[limit]]\nname = \"a\"\nby = [\"ip\"]\nrate = \"5/min\"\non_exceed = \"challenge\"\n";

    #[test]
    fn c_kind_proof_of_work_is_the_default_as_soon_as_a_policy_uses_challenges() {
        assert_eq!(settings(""), ChallengeSettings::default());
        assert!(!settings("").is_used);
        for text in ["[challenge]\n", LIMIT] {
            let expected = ChallengeSettings {
                is_used: true,
                ..ChallengeSettings::default()
            };
            assert_eq!(settings(text), expected, "{text}");
        }
    }

    #[test]
    fn c_kind_a_provider_has_its_key_its_secret_and_its_address() {
        let provider = settings(&format!("{PROVIDER}secret = \"env:SECRET\"\n"));
        let provider = provider.provider.unwrap();
        assert_eq!(&*provider.secret, "s3cret");
        assert_eq!(&*provider.verify_url, "https://api.hcaptcha.com/siteverify");
        assert!(provider.has_fallback && provider.hostnames.is_empty());
        assert!(!format!("{provider:?}").contains("s3cret"));
        let own = "secret = \"env:SECRET\"\nverify_url = \"http://127.0.0.1:1/v\"\nfallback = \"none\"\nhostnames = \"a.example\"\n";
        let provider = settings(&format!("{PROVIDER}{own}")).provider.unwrap();
        assert_eq!(&*provider.verify_url, "http://127.0.0.1:1/v");
        assert!(!provider.has_fallback);
        assert_eq!(provider.hostnames, ["a.example".into()]);
    }

    #[test]
    fn c_kind_a_secret_is_read_from_a_file_beside_the_policy() {
        let folder =
            std::env::temp_dir().join(format!("palisade-challenge-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("secret"), "of a file\n").unwrap();
        let text = format!("{PROVIDER}secret = \"file:secret\"\n");
        let path = folder.join("p.toml");
        let loaded = load_text(&path, &text, &env(), &Overrides::default()).unwrap();
        let provider = loaded.policy.settings.challenge.provider.clone().unwrap();
        assert_eq!(&*provider.secret, "of a file");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn c_kind_what_cannot_be_is_refused_with_its_key() {
        for (text, message) in [
            (PROVIDER.to_owned(), "`challenge.secret` is missing"),
            (
                "[challenge]\nkind = \"turnstile\"\nsecret = \"env:SECRET\"\n".to_owned(),
                "`challenge.site_key` is missing",
            ),
            (
                format!("{PROVIDER}secret = \"env:NOWHERE\"\n"),
                "`challenge.secret` refers to a variable that is not set",
            ),
            (
                format!("{PROVIDER}secret = \"env:EMPTY\"\n"),
                "`challenge.secret` refers to an empty secret",
            ),
            (
                format!("{PROVIDER}secret = \"canary\"\n"),
                "`challenge.secret` must refer to a secret, not contain it",
            ),
            (
                "[challenge]\nfallback = \"none\"\n".to_owned(),
                "`challenge.fallback` only means something to a provider",
            ),
            (
                "[challenge]\ndifficulty = 200001\n".to_owned(),
                "`challenge.difficulty`",
            ),
            (
                format!("[challenge]\nkind = \"host\"\n{LIMIT}"),
                "`limit.on_exceed`",
            ),
            (format!("{LIMIT}throttle = true\n"), "`limit.on_exceed`"),
            (format!("{LIMIT}shadow = true\n"), "`limit.on_exceed`"),
            (format!("{LIMIT}overdraft = true\n"), "`limit.on_exceed`"),
            (
                LIMIT.replace("on_exceed = \"challenge\"", "challenge_extra = 2"),
                "`limit.challenge_extra` needs `on_exceed`",
            ),
        ] {
            let errors = errors(&text);
            assert!(errors.contains(message), "{text}: {errors}");
            assert!(!errors.contains("canary"), "{errors}");
        }
    }
}
