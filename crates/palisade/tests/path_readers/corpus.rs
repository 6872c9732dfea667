//! Honest and disguised spellings of paths, generated from a seed.

use std::collections::BTreeSet;

const PATHS: [&str; 16] = [
    "/auth/token",
    "/auth/authorize",
    "/mfa/verify",
    "/admin/users",
    "/consent",
    "/vc/issue",
    "/me/data-export",
    "/health",
    "/files/a/b",
    "/~staff/x",
    "/caf%C3%A9/menu",
    "/v1/users:login",
    "/api/x",
    "/apix",
    "/x/y/z",
    "/",
];

const PIECES: [&str; 44] = [
    "/",
    "//",
    "/./",
    "/../",
    "/x/..",
    "/x/../",
    "/%2e/",
    "/%2E%2e/",
    "/.%2e/",
    "/..;/",
    "/.;a/",
    ";a=b",
    ";",
    "%3B",
    "%2F",
    "%2f",
    "%5C",
    "%5c",
    "\\",
    "%00",
    "%0a",
    "%09",
    "%7F",
    "%20",
    "+",
    "%2B",
    "%25",
    "%252F",
    "%252e%252e",
    "%",
    "%zz",
    "%u002f",
    "%c0%af",
    "%e0%80%af",
    "%ff",
    "%c3%a9",
    "%EF%BC%8F",
    "...",
    "~",
    "%7e",
    ":",
    "%3a",
    "@",
    "%40",
];

const QUERIES: [&str; 4] = ["", "?x=1", "?/../auth/token", "?a=//b;c"];

/// A linear congruential generator, so that the corpus is the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % sides
    }
}

/// Generates `count` different targets.
pub(crate) fn spellings(count: usize) -> Vec<String> {
    let mut dice = Dice(7);
    let mut found: BTreeSet<String> = PATHS.iter().map(|path| (*path).to_owned()).collect();
    while found.len() < count {
        let mut path = PATHS[dice.roll(PATHS.len())].to_owned();
        for _ in 0..=dice.roll(4) {
            path = changed(&path, &mut dice);
        }
        path.push_str(QUERIES[dice.roll(16).min(3)]);
        if path.starts_with('/') {
            found.insert(path);
        }
    }
    found.into_iter().collect()
}

fn changed(path: &str, dice: &mut Dice) -> String {
    let at = dice.roll(path.len() + 1);
    let (head, tail) = path.split_at(at);
    match dice.roll(6) {
        0 | 1 => format!("{head}{}{tail}", PIECES[dice.roll(PIECES.len())]),
        2 | 3 => escaped(head, tail, dice),
        4 => format!("{head}{}", PIECES[dice.roll(PIECES.len())]),
        _ => format!(
            "{}{path}",
            ["/.", "/..", "/x/..", "/", "/%2e"][dice.roll(5)]
        ),
    }
}

/// Escapes the next character, with lower-case or capital digits.
fn escaped(head: &str, tail: &str, dice: &mut Dice) -> String {
    let Some(first) = tail.bytes().next() else {
        return head.to_owned();
    };
    let rest = &tail[1..];
    match dice.roll(2) {
        0 => format!("{head}%{first:02x}{rest}"),
        _ => format!("{head}%{first:02X}{rest}"),
    }
}
