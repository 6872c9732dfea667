//! Scalar members of a JSON text that arrives in pieces, without keeping it.
//!
//! This is no validator: a text that is no JSON has whatever members it seems to have.

use std::sync::Arc;

/// Longest name or scalar that is read, in bytes.
const TOKEN_BYTES_MAX: usize = 512;
/// Deepest object that a path leads into.
const DEPTH_MAX: usize = 12;
/// Most paths; each is a bit.
pub(super) const PATHS_MAX: usize = 64;

/// A path of names, outermost first.
pub(super) type Path = Vec<String>;

/// A value at one of the paths.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Scalar {
    Null,
    Bool(bool),
    /// A number that is not negative, rounded up.
    Number(u64),
    Text(String),
    /// An object, a list, a negative number, or a text too long to be read.
    Other,
}

/// The piece of the text that is being read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Token {
    None,
    Text { is_escaped: bool },
    Plain,
}

/// A scan for the values at some paths.
pub(super) struct Members {
    paths: Arc<[Path]>,
    token: Token,
    /// Bytes of the token, if it is of interest.
    bytes: Vec<u8>,
    is_collected: bool,
    depth: usize,
    /// For each depth, the paths that lead into the object there; none of a list.
    open: [u64; DEPTH_MAX + 1],
    /// The next text is a name.
    expects_name: bool,
    /// The paths that lead on by the last name.
    named: u64,
}

impl Members {
    pub(super) fn new(paths: &Arc<[Path]>) -> Self {
        Self {
            paths: Arc::clone(paths),
            token: Token::None,
            bytes: Vec::new(),
            is_collected: false,
            depth: 0,
            open: [0; DEPTH_MAX + 1],
            expects_name: false,
            named: 0,
        }
    }

    /// Begins a new text.
    pub(super) fn restart(&mut self) {
        *self = Self::new(&self.paths);
    }

    /// Reads a piece; `found` is told the position of a path and its value, once for each time
    /// that the member is there.
    pub(super) fn feed(&mut self, piece: &[u8], found: &mut impl FnMut(usize, Scalar)) {
        for byte in piece {
            self.step(*byte, found);
        }
    }

    fn step(&mut self, byte: u8, found: &mut impl FnMut(usize, Scalar)) {
        match self.token {
            Token::None => self.begin(byte, found),
            Token::Text { is_escaped } => {
                self.collect(byte);
                let ends = byte == b'"' && !is_escaped;
                let is_escaped = byte == b'\\' && !is_escaped;
                self.token = Token::Text { is_escaped };
                if ends {
                    self.token = Token::None;
                    self.end_text(found);
                }
            }
            Token::Plain if b",:]} \t\r\n".contains(&byte) => {
                self.token = Token::None;
                self.end_plain(found);
                self.begin(byte, found);
            }
            Token::Plain => self.collect(byte),
        }
    }

    fn begin(&mut self, byte: u8, found: &mut impl FnMut(usize, Scalar)) {
        match byte {
            b' ' | b'\t' | b'\r' | b'\n' => {}
            b'{' => self.descend(true, found),
            b'[' => self.descend(false, found),
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                (self.expects_name, self.named) = (false, 0);
            }
            b',' => (self.expects_name, self.named) = (true, 0),
            b':' => self.expects_name = false,
            _ => {
                let is_text = byte == b'"';
                self.token = match is_text {
                    true => Token::Text { is_escaped: false },
                    false => Token::Plain,
                };
                let is_name = is_text && self.expects_name;
                self.is_collected = self.here() != 0 && (is_name || self.named != 0);
                self.bytes.clear();
                self.collect(byte);
            }
        }
    }

    /// The paths that lead into the innermost object.
    fn here(&self) -> u64 {
        match self.depth {
            0 => 0,
            depth => self.open.get(depth).copied().unwrap_or(0),
        }
    }

    fn collect(&mut self, byte: u8) {
        if self.is_collected && self.bytes.len() <= TOKEN_BYTES_MAX {
            self.bytes.push(byte);
        }
    }

    fn descend(&mut self, is_object: bool, found: &mut impl FnMut(usize, Scalar)) {
        let leading = match self.depth {
            0 => u64::MAX,
            _ if self.here() == 0 => 0,
            _ => self.named,
        };
        self.report(&Scalar::Other, found);
        self.depth = self.depth.saturating_add(1);
        if let Some(open) = self.open.get_mut(self.depth) {
            *open = if is_object { leading } else { 0 };
        }
        (self.expects_name, self.named) = (is_object, 0);
    }

    fn end_text(&mut self, found: &mut impl FnMut(usize, Scalar)) {
        if !self.is_collected {
            return;
        }
        let text = serde_json::from_slice::<String>(&self.bytes).ok();
        if self.expects_name {
            self.named = text.map_or(0, |name| self.lead_on(&name));
            return;
        }
        let value = text.map_or(Scalar::Other, Scalar::Text);
        self.report(&value, found);
    }

    fn end_plain(&mut self, found: &mut impl FnMut(usize, Scalar)) {
        if self.is_collected {
            self.report(&plain(&self.bytes), found);
        }
    }

    /// The paths that lead on by this name of the innermost object.
    fn lead_on(&self, name: &str) -> u64 {
        let here = self.here();
        let own = self.paths.iter().enumerate().filter(|(at, path)| {
            let is_named =
                self.depth > 0 && path.get(self.depth - 1).is_some_and(|one| one == name);
            here & bit(*at) != 0 && is_named
        });
        own.fold(0, |named, (at, _)| named | bit(at))
    }

    /// Tells the value of the last name to the paths that end there.
    fn report(&self, value: &Scalar, found: &mut impl FnMut(usize, Scalar)) {
        if self.named == 0 || self.expects_name {
            return;
        }
        for (at, path) in self.paths.iter().enumerate() {
            if self.named & bit(at) != 0 && path.len() == self.depth {
                found(at, value.clone());
            }
        }
    }
}

const fn bit(at: usize) -> u64 {
    if at < PATHS_MAX { 1 << at } else { 0 }
}

fn plain(bytes: &[u8]) -> Scalar {
    match bytes {
        b"null" => return Scalar::Null,
        b"true" => return Scalar::Bool(true),
        b"false" => return Scalar::Bool(false),
        _ => {}
    }
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    if let Ok(number) = text.parse() {
        return Scalar::Number(number);
    }
    match text.parse::<f64>() {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "what is too large becomes the largest"
        )]
        Ok(number) if number.is_finite() && number >= 0.0 => Scalar::Number(number.ceil() as u64),
        _ => Scalar::Other,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn paths(texts: &[&str]) -> Arc<[Path]> {
        let path = |text: &&str| text.split('.').map(str::to_owned).collect();
        texts.iter().map(path).collect()
    }

    /// Reads a text in pieces of this many bytes.
    fn read(text: &str, wanted: &[&str], piece: usize) -> Vec<(usize, Scalar)> {
        let mut members = Members::new(&paths(wanted));
        let mut all = Vec::new();
        for piece in text.as_bytes().chunks(piece) {
            members.feed(piece, &mut |at, value| all.push((at, value)));
        }
        all
    }

    #[test]
    fn b_spend_members_are_found_at_their_paths_and_nowhere_else() {
        let wanted = ["usage.total_tokens", "n", "usage.details.cached"];
        for (text, expected) in [
            (
                r#"{"usage":{"total_tokens":812}}"#,
                vec![(0, Scalar::Number(812))],
            ),
            (
                r#" { "n" : 3 , "usage" : null } "#,
                vec![(1, Scalar::Number(3))],
            ),
            (r#"{"\u006e":3}"#, vec![(1, Scalar::Number(3))]),
            (r#"{"x":{"n":1,"usage":{"total_tokens":1}}}"#, vec![]),
            (r#"[{"n":1}]"#, vec![]),
            (
                r#"{"usage":[{"total_tokens":1}],"n":2}"#,
                vec![(1, Scalar::Number(2))],
            ),
            (
                r#"{"a":"\"n\":1,","n":"2"}"#,
                vec![(1, Scalar::Text("2".into()))],
            ),
            (
                r#"{"a":"n","b":{"c":["n"]},"n":1e2}"#,
                vec![(1, Scalar::Number(100))],
            ),
            (
                r#"{"n":1,"n":null,"n":{},"n":-1}"#,
                vec![
                    (1, Scalar::Number(1)),
                    (1, Scalar::Null),
                    (1, Scalar::Other),
                    (1, Scalar::Other),
                ],
            ),
            (
                r#"{"usage":{"details":{"cached":7,"x":[[{}]]},"total_tokens":9.5},"n":true}"#,
                vec![
                    (2, Scalar::Number(7)),
                    (0, Scalar::Number(10)),
                    (1, Scalar::Bool(true)),
                ],
            ),
            ("n: 1, }]}{", vec![]),
        ] {
            for piece in [1, 2, 1000] {
                assert_eq!(read(text, &wanted, piece), expected, "{text} {piece}");
            }
        }
        let long = format!(
            r#"{{"n":"{}","{}":1,"n":4}}"#,
            "x".repeat(9_999),
            "n".repeat(9_999)
        );
        assert_eq!(
            read(&long, &wanted, 7),
            [(1, Scalar::Other), (1, Scalar::Number(4))]
        );
        let deep = format!("{}{}{}", r#"{"n":"#.repeat(200), 1, "}".repeat(200));
        assert_eq!(read(&deep, &wanted, 64), [(1, Scalar::Other)]);
    }

    fn tree() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<u32>().prop_map(Value::from),
            r#"[ab"\\{}\[\]:,é]{0,4}"#.prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[ab\"]{1,2}", inner, 0..4).prop_map(|map| json!(map)),
            ]
        })
    }

    proptest! {
        #[test]
        fn b_spend_any_document_has_the_members_that_a_parser_finds(
            document in tree(), piece in 1_usize..9, is_pretty: bool,
        ) {
            let wanted = ["a", "b", "a.b", "a.a.b"];
            let text = match is_pretty {
                true => serde_json::to_string_pretty(&document).unwrap(),
                false => document.to_string(),
            };
            let mut found = read(&text, &wanted, piece);
            found.sort_by_key(|(at, _)| *at);
            let expected: Vec<(usize, Scalar)> = wanted
                .iter()
                .enumerate()
                .filter_map(|(at, path)| {
                    let pointer = format!("/{}", path.replace('.', "/"));
                    // Lists have no members by name.
                    let value = document.pointer(&pointer)?;
                    Some((at, match value {
                        Value::Null => Scalar::Null,
                        Value::Bool(flag) => Scalar::Bool(*flag),
                        Value::Number(number) => Scalar::Number(number.as_u64().unwrap()),
                        Value::String(text) => Scalar::Text(text.clone()),
                        _ => Scalar::Other,
                    }))
                })
                .collect();
            prop_assert_eq!(found, expected, "{}", text);
        }
    }
}
