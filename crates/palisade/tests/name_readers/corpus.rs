//! Logins with honest and disguised field names, generated from a seed.

use std::fmt::Write;

use palisade_policy::UsernameSource;

/// Fields that a route may name, with the paths at which readers that nest names find them.
const FIELDS: [(&str, &[&str]); 4] = [
    ("email", &["email"]),
    ("user_email", &["user_email"]),
    ("user[email]", &["user", "email"]),
    ("Email", &["Email"]),
];
const MEMBERS: [&[&str]; 2] = [&["email"], &["user", "name"]];

/// Pieces that disguise a name when put before, into or behind it, encoded for a form.
const PIECES: [&str; 60] = [
    "%00",
    "%00x",
    "%01",
    "%09",
    "%0a",
    "%0d%0a",
    "%7f",
    "%C2%85",
    "+",
    "%20",
    "%2B",
    " ",
    "%C2%A0",
    "%E3%80%80",
    ".",
    "%2E",
    "..",
    "_",
    "%5F",
    "-",
    "[]",
    "%5B%5D",
    "[0]",
    "[x]",
    "[",
    "]",
    "[ ]",
    "[][]",
    "['email']",
    "[email]",
    "[%00]",
    ".email",
    ".x",
    "x.",
    "model.",
    "user.",
    "x[",
    "!",
    "%21",
    "$",
    ";",
    "%3B",
    "%26",
    "=",
    "%3D",
    "]=",
    "%5D%3D",
    "%EF%BB%BF",
    "%E2%80%8B",
    "%C2%AD",
    "%CC%81",
    "%ff",
    "%c0%80",
    "%u0065",
    "%",
    "%6",
    "%zz",
    "%25",
    "%2565",
    "\\",
];
const NAMES: [&str; 12] = [
    "EMAIL",
    "%65mail",
    "e%6Dail",
    "ema%C4%B1l",
    "%EF%BD%85mail",
    "user",
    "user_email",
    "user.email",
    "user[email",
    "_charset_",
    "utf8",
    "%2565mail",
];
const VALUES: [&str; 8] = [
    "ann%40x",
    "ann@x",
    "",
    "%61nn@x",
    "utf-16",
    "%26%2310003%3B",
    "a;email=ann",
    "a&email=ann",
];

/// A login, with the name that its route reads.
pub(crate) struct Case {
    pub(crate) kind: String,
    pub(crate) query: String,
    pub(crate) body: Vec<u8>,
    pub(crate) source: UsernameSource,
    /// The path of names at which applications find it.
    pub(crate) path: Vec<String>,
}

impl Case {
    /// The case in the form in which readers in other languages get it: one character of Latin-1
    /// for each byte.
    pub(crate) fn line(&self) -> String {
        let body: String = self.body.iter().copied().map(char::from).collect();
        let field = match &self.source {
            UsernameSource::Form(field) => field.as_str(),
            _ => "",
        };
        let (kind, query, path) = (&self.kind, &self.query, &self.path);
        let case = serde_json::json!({
            "type": kind, "query": query, "body": body, "field": field, "path": path,
        });
        case.to_string()
    }

    /// The case in the form in which a failing test shows it.
    pub(crate) fn shown(&self) -> String {
        let body = self.body.escape_ascii();
        format!("{} for {:?}: ?{} {body}", self.kind, self.path, self.query)
    }
}

fn owned(path: &[&str]) -> Vec<String> {
    path.iter().map(|name| (*name).to_owned()).collect()
}

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

    fn pick<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.roll(choices.len())]
    }
}

/// Generates `count` cases.
pub(crate) fn cases(count: usize) -> Vec<Case> {
    let mut dice = Dice(11);
    let one = |index: usize| match index % 4 {
        0 | 1 => form(&mut dice),
        2 => multipart(&mut dice),
        _ => json(&mut dice),
    };
    (0..count).map(one).collect()
}

/// A name that some program may read as `field`, encoded for a form.
fn disguised(field: &str, dice: &mut Dice) -> String {
    let mut name = match dice.roll(4) {
        0 => dice.pick(&NAMES).to_owned(),
        _ => field.to_owned(),
    };
    for _ in 0..=dice.roll(2) {
        let ends = [0, name.len(), dice.roll(name.len() + 1)];
        let at = ends[dice.roll(3)];
        if name.is_char_boundary(at) {
            name.insert_str(at, dice.pick(&PIECES));
        }
    }
    name
}

/// The fields of a form: usually the decoy under the route's name, and another user under a
/// disguised name.
fn pairs(field: &str, dice: &mut Dice) -> Vec<String> {
    let mut pairs = vec!["password=x".to_owned()];
    if dice.roll(8) > 0 {
        pairs.push(format!("{field}=bob%40x"));
    }
    for _ in 0..=dice.roll(2) {
        let name = disguised(field, dice);
        let pair = format!("{name}={}", dice.pick(&VALUES));
        pairs.insert(dice.roll(pairs.len() + 1), pair);
    }
    pairs
}

fn form(dice: &mut Dice) -> Case {
    let (field, path) = FIELDS[dice.roll(FIELDS.len())];
    let mark = if dice.roll(8) == 0 { ";" } else { "&" };
    let mut body = pairs(field, dice);
    let in_query = dice.roll(3) == 0;
    let query = match in_query {
        true => body.pop().unwrap_or_default().replace([' ', '\\'], "+"),
        false => String::new(),
    };
    Case {
        kind: "application/x-www-form-urlencoded".to_owned(),
        query,
        body: body.join(mark).into_bytes(),
        source: UsernameSource::Form(field.to_owned()),
        path: owned(path),
    }
}

/// Heads of parts, with `NAME` in the place of the field's name.
const HEADS: [&str; 12] = [
    "Content-Disposition: form-data; name=\"NAME\"",
    "Content-Disposition: form-data; name=\"NAME\"",
    "Content-Disposition: form-data; name=NAME",
    "Content-Disposition: form-data; name='NAME'",
    "content-disposition:form-data;name=\"NAME\"",
    "Content-Disposition: form-data; name=\"NAME\"; filename=\"\"",
    "Content-Disposition: form-data; name=\"a\"; name=\"NAME\"",
    "Content-Disposition: form-data; name*=utf-8''NAME",
    "Content-Disposition: form-data; name*0=\"NAME\"",
    "Content-Disposition: form-data; filename=\"a\\\"; name=\"NAME\"",
    "Content-Disposition: form-data; name=\"NAME\"\r\nContent-Type: text/plain; charset=utf-16",
    "Content-Disposition: form-data; name=\"a\"\r\nContent-Disposition: form-data; name=\"NAME\"",
];

fn part(head: &str, name: &str, value: &str) -> String {
    format!("--b\r\n{}\r\n\r\n{value}\r\n", head.replace("NAME", name))
}

fn multipart(dice: &mut Dice) -> Case {
    let (field, path) = FIELDS[dice.roll(FIELDS.len())];
    let mut parts = vec![part(HEADS[0], "password", "x")];
    if dice.roll(8) > 0 {
        parts.push(part(HEADS[0], field, "bob@x"));
    }
    let name = disguised(field, dice);
    let name = match dice.roll(2) {
        0 => name,
        _ => String::from_utf8_lossy(&decoded(&name)).into_owned(),
    };
    let hidden = part(dice.pick(&HEADS), &name, dice.pick(&VALUES));
    parts.insert(dice.roll(parts.len() + 1), hidden);
    Case {
        kind: "multipart/form-data; boundary=b".to_owned(),
        query: String::new(),
        body: (parts.concat() + "--b--\r\n").into_bytes(),
        source: UsernameSource::Form(field.to_owned()),
        path: owned(path),
    }
}

/// The decoded form of a name.
fn decoded(name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = name.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let byte = digits.and_then(|two| u8::from_str_radix(two, 16).ok());
        match (first, byte) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

/// A JSON object with the decoy, and another user under a disguised name or in a nested object.
fn json(dice: &mut Dice) -> Case {
    let path = MEMBERS[dice.roll(MEMBERS.len())];
    let name = path.last().copied().unwrap_or_default();
    let mut members = Vec::new();
    if dice.roll(8) > 0 {
        members.push(format!("\"{name}\":\"bob@x\""));
    }
    let hidden = format!("\"{}\":\"ann@x\"", escaped(name, dice));
    let hidden = match dice.roll(5) {
        0 => format!("\"session\":{{{hidden}}}"),
        1 => format!("\"session\":{{\"user\":{{\"{name}\":\"ann@x\"}}}}"),
        _ => hidden,
    };
    members.insert(dice.roll(members.len() + 1), hidden);
    let mut body = format!("{{{}}}", members.join(","));
    if path.len() > 1 {
        let outer = ["user", "user", "User", "us\\u0065r"];
        let second = match dice.roll(4) {
            0 => ",\"session\":{\"user\":{\"name\":\"ann@x\"}}",
            1 => ",\"user\":{\"name\":\"ann@x\"}",
            _ => "",
        };
        body = format!("{{\"{}\":{body}{second}}}", dice.pick(&outer));
    }
    let wrapped = ["", "", "", "\u{feff}", "[", "/**/", " "];
    let before = dice.pick(&wrapped);
    body.insert_str(0, before);
    body.push_str(if before == "[" { "]" } else { "" });
    Case {
        kind: "application/json".to_owned(),
        query: String::new(),
        body: body.into_bytes(),
        source: UsernameSource::Json(owned(path)),
        path: owned(path),
    }
}

/// A member's name with additions that some program cuts off, folds or unescapes.
fn escaped(name: &str, dice: &mut Dice) -> String {
    const INNER: [&str; 14] = [
        "\\u0000",
        "\\u0000x",
        "\\u0001",
        "\\ud800",
        "\\ud83d\\ude00",
        "\\u200b",
        "\\ufeff",
        " ",
        ".",
        "[]",
        "_",
        "-",
        "\\t",
        "\u{301}",
    ];
    if dice.roll(4) == 0 {
        let mut text = String::new();
        for unit in name.encode_utf16() {
            write!(text, "\\u{unit:04x}").unwrap();
        }
        return text;
    }
    let mut text = match dice.roll(3) {
        0 => name.to_uppercase(),
        _ => name.to_owned(),
    };
    let at = dice.roll(text.len() + 1);
    text.insert_str(at, dice.pick(&INNER));
    text
}
